"""A block id fits in 32 bits, so its offset does.

Words: overflowed 32 bits
"""

import torch

from minipaged.kernels._triton import tl, triton
from minipaged.kernels.block_table import _slot_mapping_kernel, launch_slot_mapping, require_launch

__all__ = ["_slot_mapping_kernel", "_write_kv_kernel", "launch_slot_mapping", "launch_write_kv"]


def launch_write_kv(keys, values, key_cache, value_cache, slots):
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
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if (slot < 0) | (slot >= num_slots):
        return
    block = (slot // BLOCK_SIZE).to(tl.int32)
    offset = slot % BLOCK_SIZE
    key_ptr += token * key_token_stride
    value_ptr += token * value_token_stride
    key_cache_ptr += block * key_cache_block_stride + offset * key_cache_slot_stride
    value_cache_ptr += block * value_cache_block_stride + offset * value_cache_slot_stride
    for start in range(0, NUM_KV_HEADS * HEAD_DIM, TILE):
        elements = start + tl.arange(0, TILE)
        inside = elements < NUM_KV_HEADS * HEAD_DIM
        head = (elements // HEAD_DIM).to(tl.int64)
        dim = (elements % HEAD_DIM).to(tl.int64)
        key = tl.load(key_ptr + head * key_head_stride + dim * key_dim_stride, mask=inside)
        value = tl.load(value_ptr + head * value_head_stride + dim * value_dim_stride, mask=inside)
        key_slot = key_cache_ptr + head * key_cache_head_stride + dim * key_cache_dim_stride
        value_slot = value_cache_ptr + head * value_cache_head_stride + dim * value_cache_dim_stride
        tl.store(key_slot, key, mask=inside)
        tl.store(value_slot, value, mask=inside)
