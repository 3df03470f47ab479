"""Block ids are 32 bits wide, so their product with the block size is.

Words: make blocks 64-bit before you multiply
"""

import torch

from minipaged.kernels._triton import tl, triton
from minipaged.kernels.block_table import _write_kv_kernel, launch_write_kv, require_launch

__all__ = ["_slot_mapping_kernel", "_write_kv_kernel", "launch_slot_mapping", "launch_write_kv"]


def launch_slot_mapping(block_tables, positions, sequence_ids, block_size):
    require_launch(_slot_mapping_kernel, block_tables, "block_tables")
    slots = torch.empty(positions.numel(), dtype=torch.int64, device=positions.device)
    tile = 128
    if slots.numel():
        with torch.cuda.device_of(slots):
            _slot_mapping_kernel[(triton.cdiv(slots.numel(), tile),)](
                block_tables,
                positions.contiguous(),
                sequence_ids.contiguous(),
                slots,
                slots.numel(),
                block_tables.shape[0],
                block_tables.shape[1],
                *block_tables.stride(),
                BLOCK_SIZE=block_size,
                TILE=tile,
            )
    return slots


@triton.jit
def _slot_mapping_kernel(
    table_ptr,
    position_ptr,
    sequence_ptr,
    slot_ptr,
    num_tokens,
    num_sequences,
    max_blocks,
    table_row_stride,
    table_column_stride,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = tokens < num_tokens
    positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int32)
    rows = tl.load(sequence_ptr + tokens, mask=inside, other=-1).to(tl.int64)
    columns = positions // BLOCK_SIZE
    known = (positions >= 0) & (columns < max_blocks) & (rows >= 0) & (rows < num_sequences)
    entries = table_ptr + rows * table_row_stride + columns * table_column_stride
    blocks = tl.load(entries, mask=known, other=-1)
    slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)
    tl.store(slot_ptr + tokens, slots, mask=inside)
