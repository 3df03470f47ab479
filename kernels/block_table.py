"""Where a token's K and V live, and writing them there: slot = block * block_size + offset.

One Triton launch serves a whole batch; on CPU tensors the same two functions index the
tensors' memory.
Twin: reference/block_table.py. Lesson: lessons/10_slot_mapping_kernel.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ._triton import tl, triton

_INTEGERS = (torch.int32, torch.int64)
_SAME_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    _check_mapping(block_tables, positions, sequence_ids, block_size)
    if block_tables.is_cuda:
        return launch_slot_mapping(block_tables, positions, sequence_ids, block_size)
    if positions.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    padding = positions < 0
    rows = torch.where(padding, 0, sequence_ids).long()
    columns = torch.where(padding, 0, positions).long() // block_size
    _check_index("sequence_ids", rows, block_tables.shape[0], "block_tables has {} rows")
    _check_index(
        "positions", columns, block_tables.shape[1], f"block_tables holds {{}} blocks of {block_size}"
    )
    blocks = block_tables[rows, columns].long()
    if bool(((blocks < 0) & ~padding).any()):
        raise ValueError("block_tables: the entry of a token's block is below 0, allocate the block first")
    return torch.where(padding, -1, blocks * block_size + positions % block_size)


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
    _check_write(keys, values, key_cache, value_cache, slots)
    if slots.numel() == 0:
        return
    if key_cache.is_cuda:
        launch_write_kv(keys, values, key_cache, value_cache, slots)
        return
    _write_on_cpu(keys, values, key_cache, value_cache, slots.numpy())


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


def require_launch(kernel: object, tensor: Tensor, name: str) -> None:
    """Raise RuntimeError where `kernel` was compiled for a GPU and the argument `name` is a CPU tensor."""
    if tensor.is_cuda or not isinstance(kernel, triton.JITFunction):
        return
    raise RuntimeError(
        f"{name} is a CPU tensor: Triton runs those in its interpreter only, "
        "set TRITON_INTERPRET=1 before the first import of triton (transformers imports it too)"
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
    tokens = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = tokens < num_tokens
    positions = tl.load(position_ptr + tokens, mask=inside, other=-1).to(tl.int64)
    rows = tl.load(sequence_ptr + tokens, mask=inside, other=-1).to(tl.int64)
    columns = positions // BLOCK_SIZE
    # Signed division of a negative position differs between the interpreter and a GPU: mask it by its sign.
    known = (positions >= 0) & (columns < max_blocks) & (rows >= 0) & (rows < num_sequences)
    entries = table_ptr + rows * table_row_stride + columns * table_column_stride
    blocks = tl.load(entries, mask=known, other=-1).to(tl.int64)
    slots = tl.where(blocks >= 0, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, -1)
    tl.store(slot_ptr + tokens, slots, mask=inside)


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
    # 64-bit from here on: a pool of many gigabytes has more than 2^31 elements.
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if (slot < 0) | (slot >= num_slots):
        return
    block = slot // BLOCK_SIZE
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
        key = tl.load(key_ptr + head * key_head_stride + dim * key_dim_stride, mask=inside, other=0)
        value = tl.load(value_ptr + head * value_head_stride + dim * value_dim_stride, mask=inside, other=0)
        key_slot = key_cache_ptr + head * key_cache_head_stride + dim * key_cache_dim_stride
        value_slot = value_cache_ptr + head * value_cache_head_stride + dim * value_cache_dim_stride
        tl.store(key_slot, key, mask=inside)
        tl.store(value_slot, value, mask=inside)


def _write_on_cpu(
    keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: np.ndarray
) -> None:
    num_blocks, block_size = key_cache.shape[:2]
    outside = slots[(slots < -1) | (slots >= num_blocks * block_size)]
    if outside.size:
        last = num_blocks * block_size - 1
        raise ValueError(f"slots: {outside[0]} is out of range, the cache has slots 0 to {last} (-1 skips)")
    kept = np.flatnonzero(slots >= 0)
    blocks, offsets = np.divmod(slots[kept], block_size)
    for cache, tokens in ((key_cache, keys), (value_cache, values)):
        _as_numpy(cache)[blocks, offsets] = _as_numpy(tokens)[kept]


def _as_numpy(tensor: Tensor) -> np.ndarray:
    """The same memory as integers, since numpy has no bfloat16.

    NumPy and not torch: a few rows a layer are too few for torch's threads, which cost more than the copy.
    """
    return tensor.detach().view(_SAME_WIDTH[tensor.element_size()]).numpy()


def _check_mapping(block_tables: Tensor, positions: Tensor, sequence_ids: Tensor, block_size: int) -> None:
    if block_size < 1:
        raise ValueError(f"block_size: {block_size}, must be at least 1")
    if block_tables.dtype != torch.int32:
        raise TypeError(f"block_tables: dtype {block_tables.dtype}, must be torch.int32")
    if block_tables.ndim != 2:
        raise ValueError(
            f"block_tables: shape {list(block_tables.shape)}, must be [num_sequences, max_blocks]"
        )
    for name, tensor in (("positions", positions), ("sequence_ids", sequence_ids)):
        if tensor.dtype not in _INTEGERS:
            raise TypeError(f"{name}: dtype {tensor.dtype}, must be torch.int32 or torch.int64")
        if tensor.ndim != 1 or tensor.shape != positions.shape:
            raise ValueError(f"{name}: shape {list(tensor.shape)}, must be [tokens] like positions")
        if tensor.device != block_tables.device:
            raise ValueError(f"{name}: on {tensor.device}, but block_tables is on {block_tables.device}")


def _check_index(name: str, index: Tensor, size: int, allowed: str) -> None:
    lowest, highest = (int(bound) for bound in torch.aminmax(index))
    if lowest < 0 or highest >= size:
        raise ValueError(f"{name}: out of range, {allowed.format(size)}")


def _check_write(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    if key_cache.ndim != 4 or value_cache.shape != key_cache.shape:
        raise ValueError(
            f"key_cache, value_cache: shapes {list(key_cache.shape)}, {list(value_cache.shape)}, "
            "must be equal, [num_blocks, block_size, num_kv_heads, head_dim]"
        )
    if slots.dtype != torch.int64:
        raise TypeError(f"slots: dtype {slots.dtype}, must be torch.int64")
    if slots.ndim != 1:
        raise ValueError(f"slots: shape {list(slots.shape)}, must be [tokens]")
    expected = [slots.shape[0], *key_cache.shape[2:]]
    for name, tensor in (("keys", keys), ("values", values)):
        if list(tensor.shape) != expected:
            raise ValueError(f"{name}: shape {list(tensor.shape)}, must be {expected}")
    for name, tensor in (("keys", keys), ("values", values), ("value_cache", value_cache)):
        if tensor.dtype != key_cache.dtype:
            raise TypeError(f"{name}: dtype {tensor.dtype}, but key_cache is {key_cache.dtype}")
    for name, tensor in (("keys", keys), ("values", values), ("value_cache", value_cache), ("slots", slots)):
        if tensor.device != key_cache.device:
            raise ValueError(f"{name}: on {tensor.device}, but key_cache is on {key_cache.device}")
