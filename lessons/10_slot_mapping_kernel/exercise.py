"""10. A first Triton kernel: turn a batch of positions into slots, and write K and V there

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/10_slot_mapping_kernel    A hint: minipaged lessons hint 10
"""

from __future__ import annotations

import torch
from torch import Tensor

from minipaged.kernels._triton import require_launch, tl, triton
from minipaged.kernels._triton_arguments import CacheShape, TableStrides, write_strides_for


@triton.jit
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
    raise NotImplementedError


@triton.jit
def _write_kv_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_ptr, num_slots, strides,
    SHAPE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write K and V of one token, NUM_KV_HEADS heads of HEAD_DIM each, into its slot; program i has token i.

    slot_ptr: int64 [tokens], block * BLOCK_SIZE + offset. A slot below 0 is padding: nothing is written for
    it, and neither for one that is none of the num_slots.
    key_ptr, value_ptr: [tokens, NUM_KV_HEADS, HEAD_DIM]; key_cache_ptr, value_cache_ptr: [num_blocks,
    BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM]. Each has a stride for every axis: an element lies the sum of
    index * stride elements after the first one, computed in 64 bits.
    strides: key and value, each with token, head and dim; key_cache and value_cache, each with block, slot,
    head and dim. For example strides.key_cache.block.
    SHAPE: BLOCK_SIZE, NUM_KV_HEADS and HEAD_DIM, as SHAPE.BLOCK_SIZE and so on.
    TILE: a power of two, the number of elements that are moved at once; more, or not as many, may be left.
    """
    raise NotImplementedError


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
