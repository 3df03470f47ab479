"""Where a token's K and V live, and writing them there: slot = block * block_size + offset.

One Triton launch serves a whole batch; on CPU tensors the same two functions index the
tensors' memory.
Twin: reference/block_table.py. Lesson: lessons/10_slot_mapping_kernel.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ._checks import check_mapping, check_range, check_slots, check_write
from ._triton import require_launch, tl, triton
from ._triton_arguments import CacheShape, TableStrides, write_strides_for

_SAME_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# One compiled kernel for batches of any size, whose numbers and addresses are multiples of 16 or not.
_ANY_BATCH: dict[str, list[str]] = {
    "do_not_specialize": ["num_tokens", "num_sequences"],
    "do_not_specialize_on_alignment": ["position_ptr", "sequence_ptr"],
}


@triton.jit(**_ANY_BATCH)
def _slot_mapping_kernel(
    table_ptr, position_ptr, sequence_ptr, slot_ptr, num_tokens, num_sequences, max_blocks, table_strides,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Slots of TILE tokens: program i of the launch has those from i * TILE on, as far as there are any.

    position_ptr, sequence_ptr: int32 or int64 [num_tokens], a token's position and its row of the table.
    table_ptr: int32 [num_sequences, max_blocks], block ids; the entry at (row, column) lies
    row * table_strides.row + column * table_strides.column entries after the first one.
    slot_ptr: int64 [num_tokens], to be written: block * BLOCK_SIZE + offset, computed in 64 bits.

    A position below 0 is padding and gets the slot -1. So does a token that has no block: its position lies
    beyond the max_blocks of its row, its row is none of the num_sequences, or its entry is below 0. Nothing
    outside of these arrays is read or written.
    """
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = tokens < num_tokens
    positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int64)
    rows = tl.load(sequence_ptr + tokens, mask=inside, other=-1).to(tl.int64)
    columns = positions // BLOCK_SIZE
    # The quotient of a negative position differs between the interpreter and a GPU, so its sign decides.
    known = (positions >= 0) & (columns < max_blocks) & (rows >= 0) & (rows < num_sequences)
    entries = table_ptr + rows * table_strides.row + columns * table_strides.column
    blocks = tl.load(entries, mask=known, other=-1).to(tl.int64)
    slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)
    tl.store(slot_ptr + tokens, slots, mask=inside)


@triton.jit
def _write_kv_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_ptr, num_slots, strides,
    SHAPE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write K and V of one token, NUM_KV_HEADS heads of HEAD_DIM each, into its slot; program i has token i.

    slot_ptr: int64 [tokens], block * BLOCK_SIZE + offset. Nothing is written for a slot below 0, which is
    padding, nor for a slot of num_slots or more.
    key_ptr, value_ptr: [tokens, NUM_KV_HEADS, HEAD_DIM]; key_cache_ptr, value_cache_ptr: [num_blocks,
    BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM]. Each has a stride for every axis: an element lies the sum of
    index * stride elements after the first one, computed in 64 bits.
    strides: key and value, each with token, head and dim; key_cache and value_cache, each with block, slot,
    head and dim. For example strides.key_cache.block.
    SHAPE: BLOCK_SIZE, NUM_KV_HEADS and HEAD_DIM, as SHAPE.BLOCK_SIZE and so on.
    TILE: a power of two, the number of elements that one round of the loop moves.
    """
    # 64-bit from here on: a pool of many gigabytes has more than 2^31 elements.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if (slot < 0) | (slot >= num_slots):
        return
    block = slot // SHAPE.BLOCK_SIZE
    offset = slot % SHAPE.BLOCK_SIZE
    key_ptr += token * strides.key.token
    value_ptr += token * strides.value.token
    key_cache_ptr += block * strides.key_cache.block + offset * strides.key_cache.slot
    value_cache_ptr += block * strides.value_cache.block + offset * strides.value_cache.slot
    for start in range(0, SHAPE.NUM_KV_HEADS * SHAPE.HEAD_DIM, TILE):
        elements = start + tl.arange(0, TILE)
        inside = elements < SHAPE.NUM_KV_HEADS * SHAPE.HEAD_DIM
        head = (elements // SHAPE.HEAD_DIM).to(tl.int64)
        dim = (elements % SHAPE.HEAD_DIM).to(tl.int64)
        key_at = head * strides.key.head + dim * strides.key.dim
        value_at = head * strides.value.head + dim * strides.value.dim
        key_slot = key_cache_ptr + head * strides.key_cache.head + dim * strides.key_cache.dim
        value_slot = value_cache_ptr + head * strides.value_cache.head + dim * strides.value_cache.dim
        key = tl.load(key_ptr + key_at, mask=inside, other=0)
        value = tl.load(value_ptr + value_at, mask=inside, other=0)
        tl.store(key_slot, key, mask=inside)
        tl.store(value_slot, value, mask=inside)


def slot_mapping(block_tables: Tensor, positions: Tensor, sequence_ids: Tensor, block_size: int) -> Tensor:
    """Slot of every token of a batch, from its sequence's block table (paper section 4.2).

    Args:
        block_tables: int32 [num_sequences, max_blocks], physical block ids; unused entries hold anything.
        positions: int32 or int64 [tokens], position of each token in its sequence; -1 marks padding.
        sequence_ids: int32 or int64 [tokens], row of `block_tables` each token belongs to.
        block_size: slots in a block.

    Returns:
        int64 [tokens]: block * block_size + offset, and -1 for padding.

    Raises:
        TypeError: a tensor is not of the dtype above.
        ValueError: a shape is wrong; or, on the CPU, a position lies beyond its block table, names a block
            below 0, or a sequence id names no row. A GPU can't raise: there such a token gets the slot -1.
    """
    check_mapping(block_tables, positions, sequence_ids, block_size)
    if block_tables.is_cuda:
        return launch_slot_mapping(block_tables, positions, sequence_ids, block_size)
    padding = positions < 0
    rows = torch.where(padding, 0, sequence_ids).long()
    columns = torch.where(padding, 0, positions).long() // block_size
    num_rows, num_columns = block_tables.shape
    check_range("sequence_ids", rows, num_rows, f"block_tables has {num_rows} rows")
    check_range("positions", columns, num_columns, f"block_tables holds {num_columns} blocks of {block_size}")
    blocks = block_tables[rows, columns].long()
    if bool(((blocks < 0) & ~padding).any()):
        raise ValueError("block_tables: the entry of a token's block is below 0, allocate the block first")
    return torch.where(padding, -1, blocks * block_size + positions % block_size)


def launch_slot_mapping(
    block_tables: Tensor, positions: Tensor, sequence_ids: Tensor, block_size: int
) -> Tensor:
    """`slot_mapping` by its Triton kernel: CUDA tensors, or CPU tensors under Triton's interpreter."""
    require_launch(_slot_mapping_kernel, block_tables, "block_tables")
    slots = torch.empty(positions.numel(), dtype=torch.int64, device=positions.device)
    tile = 128
    if slots.numel():
        with torch.cuda.device_of(slots):
            _slot_mapping_kernel[(triton.cdiv(slots.numel(), tile),)](
                block_tables, positions.contiguous(), sequence_ids.contiguous(), slots,
                slots.numel(), *block_tables.shape, TableStrides(*block_tables.stride()),
                BLOCK_SIZE=block_size, TILE=tile,
            )  # fmt: skip
    return slots


def write_kv(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Write each token's K and V into its slot of the paged cache, in place (paper section 4.2).

    Args:
        keys, values: [tokens, num_kv_heads, head_dim], may be strided views.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], may be strided views.
        slots: int64 [tokens]; -1 skips the token, no other slot may occur twice.

    Raises:
        TypeError: dtypes differ, or slots is not int64.
        ValueError: shapes or devices don't fit; or, on the CPU, a slot is out of range: nothing is written
            then. A GPU can't raise: there a token with such a slot is skipped.
    """
    check_write(keys, values, key_cache, value_cache, slots)
    if slots.numel() == 0:
        return
    if key_cache.is_cuda:
        launch_write_kv(keys, values, key_cache, value_cache, slots)
        return
    num_blocks, block_size = key_cache.shape[:2]
    slot_ids = slots.numpy()
    check_slots(slot_ids, num_blocks * block_size)
    kept = np.flatnonzero(slot_ids >= 0)
    blocks, offsets = np.divmod(slot_ids[kept], block_size)
    for cache, tokens in ((key_cache, keys), (value_cache, values)):
        _as_numpy(cache)[blocks, offsets] = _as_numpy(tokens)[kept]


def launch_write_kv(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """`write_kv` by its Triton kernel: CUDA tensors, or CPU tensors under Triton's interpreter."""
    require_launch(_write_kv_kernel, key_cache, "key_cache")
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    strides = write_strides_for(keys, values, key_cache, value_cache)
    with torch.cuda.device_of(key_cache):
        _write_kv_kernel[(slots.numel(),)](
            keys, values, key_cache, value_cache, slots.contiguous(), num_blocks * block_size, strides,
            SHAPE=CacheShape(block_size, num_kv_heads, head_dim),
            TILE=min(1024, triton.next_power_of_2(num_kv_heads * head_dim)),
        )  # fmt: skip


def _as_numpy(tensor: Tensor) -> np.ndarray:
    """The same memory as integers, since numpy has no bfloat16.

    NumPy and not torch: a few rows a layer are too few for torch's threads, which cost more than the copy.
    """
    return tensor.detach().view(_SAME_WIDTH[tensor.element_size()]).numpy()
