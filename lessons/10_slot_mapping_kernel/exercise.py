"""10. A first Triton kernel: turn a batch of positions into slots, and write K and V there

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/10_slot_mapping_kernel    A hint: minipaged lessons hint 10
"""

from __future__ import annotations

import torch
from torch import Tensor

from minipaged.kernels._triton import tl, triton
from minipaged.kernels.block_table import require_launch


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


def launch_write_kv(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
) -> None:
    """`write_kv` by its Triton kernel: CUDA tensors, or CPU tensors under Triton's interpreter."""
    require_launch(_write_kv_kernel, key_cache, "key_cache")
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    with torch.cuda.device_of(key_cache):
        _write_kv_kernel[(slots.numel(),)](
            keys,
            values,
            key_cache,
            value_cache,
            slots.contiguous(),
            num_blocks * block_size,
            *keys.stride(),
            *values.stride(),
            *key_cache.stride(),
            *value_cache.stride(),
            BLOCK_SIZE=block_size,
            NUM_KV_HEADS=num_kv_heads,
            HEAD_DIM=head_dim,
            TILE=min(1024, triton.next_power_of_2(num_kv_heads * head_dim)),
        )


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
    """Slots of TILE tokens: program i of the launch has those from i * TILE on, as far as there are any.

    position_ptr, sequence_ptr: int32 or int64 [num_tokens], a token's position and its row of the table.
    table_ptr: int32 [num_sequences, max_blocks], block ids; the entry at (row, column) lies
    row * table_row_stride + column * table_column_stride entries after the first one.
    slot_ptr: int64 [num_tokens], to be written: block * BLOCK_SIZE + offset, computed in 64 bits.

    A position below 0 is padding and gets the slot -1. So does a token that has no block: its position lies
    beyond the max_blocks of its row, its row is none of the num_sequences, or its entry is below 0. Nothing
    outside of these arrays is read or written.
    """
    raise NotImplementedError


@triton.jit
def _write_kv_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_ptr,
    num_slots,
    key_token_stride,
    key_head_stride,
    key_dim_stride,
    value_token_stride,
    value_head_stride,
    value_dim_stride,
    key_cache_block_stride,
    key_cache_slot_stride,
    key_cache_head_stride,
    key_cache_dim_stride,
    value_cache_block_stride,
    value_cache_slot_stride,
    value_cache_head_stride,
    value_cache_dim_stride,
    BLOCK_SIZE: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write K and V of one token, NUM_KV_HEADS heads of HEAD_DIM each, into its slot; program i has token i.

    slot_ptr: int64 [tokens], block * BLOCK_SIZE + offset. A slot below 0 is padding: nothing is written for
    it, and neither for one that is none of the num_slots.
    key_ptr, value_ptr: [tokens, NUM_KV_HEADS, HEAD_DIM]; key_cache_ptr, value_cache_ptr: [num_blocks,
    BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM]. Each has a stride for every axis: an element lies the sum of
    index * stride elements after the first one, computed in 64 bits.
    TILE: a power of two, the number of elements that are moved at once; more, or not as many, may be left.
    """
    raise NotImplementedError
