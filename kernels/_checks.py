"""What the kernels refuse, by name, before they read or write anything.

No tensor's values are looked at, except by the functions whose first line says "on the CPU": there it costs
no wait for a device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ._triton import require_launch, triton

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_dtype(name: str, tensor: Tensor, *allowed: torch.dtype) -> None:
    """Refuse any dtype that is not among `allowed`."""
    if tensor.dtype not in allowed:
        raise TypeError(f"{name}: dtype {tensor.dtype}, must be {' or '.join(map(str, allowed))}")


def check_shape(name: str, tensor: Tensor, *sizes: int) -> None:
    """Refuse any shape but `sizes`."""
    if tensor.shape != sizes:
        _refuse_shape(name, tensor, sizes)


def check_axes(name: str, tensor: Tensor, *axes: str) -> None:
    """Refuse any number of axes but that of `axes`."""
    if tensor.ndim != len(axes):
        _refuse_shape(name, tensor, axes)


def _refuse_shape(name: str, tensor: Tensor, expected: tuple[int | str, ...]) -> None:
    raise ValueError(f"{name}: shape {list(tensor.shape)}, must be [{', '.join(map(str, expected))}]")


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse a tensor that is elsewhere."""
    if tensor.device != device:
        raise ValueError(f"{name}: on {tensor.device}, must be on {device}")


def check_tables(block_tables: Tensor, device: torch.device) -> tuple[int, int]:
    """Refuse anything but int32 [batch, max_blocks] on `device`; return batch and max_blocks."""
    check_axes("block_tables", block_tables, "batch", "max_blocks")
    check_dtype("block_tables", block_tables, torch.int32)
    check_device("block_tables", block_tables, device)
    return block_tables.shape[0], block_tables.shape[1]


def check_vector(name: str, tensor: Tensor, device: torch.device) -> None:
    """Refuse anything but int32 [n] on `device`."""
    check_dtype(name, tensor, torch.int32)
    check_axes(name, tensor, "n")
    check_device(name, tensor, device)


# ---- slot mapping, and writing K and V -------------------------------------------------------------------


def check_mapping(block_tables: Tensor, positions: Tensor, sequence_ids: Tensor, block_size: int) -> None:
    """Refuse what `slot_mapping` can't take."""
    if block_size < 1:
        raise ValueError(f"block_size: {block_size}, must be at least 1")
    check_tables(block_tables, block_tables.device)
    check_axes("positions", positions, "tokens")
    check_shape("sequence_ids", sequence_ids, len(positions))
    for name, tensor in (("positions", positions), ("sequence_ids", sequence_ids)):
        check_dtype(name, tensor, torch.int32, torch.int64)
        check_device(name, tensor, block_tables.device)


def check_range(name: str, index: Tensor, size: int, reason: str) -> None:
    """Refuse numbers outside of [0, size), on the CPU."""
    if index.numel():
        lowest, highest = (int(bound) for bound in torch.aminmax(index))
        if lowest < 0 or highest >= size:
            raise ValueError(f"{name}: out of range, {reason}")


def check_write(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Refuse what `write_kv` can't take."""
    check_axes("key_cache", key_cache, "num_blocks", "block_size", "num_kv_heads", "head_dim")
    check_shape("value_cache", value_cache, *key_cache.shape)
    check_dtype("slots", slots, torch.int64)
    check_axes("slots", slots, "tokens")
    expected = (slots.shape[0], *key_cache.shape[2:])
    check_shape("keys", keys, *expected)
    check_shape("values", values, *expected)
    check_device("slots", slots, key_cache.device)
    for name, tensor in (("keys", keys), ("values", values), ("value_cache", value_cache)):
        check_dtype(name, tensor, key_cache.dtype)
        check_device(name, tensor, key_cache.device)


def check_slots(slots: np.ndarray, num_slots: int) -> None:
    """Refuse slots that the cache doesn't have, on the CPU; -1 is padding."""
    outside = slots[(slots < -1) | (slots >= num_slots)]
    if outside.size:
        raise ValueError(
            f"slots: {outside[0]} is out of range, the cache has slots 0 to {num_slots - 1} (-1 skips)"
        )


# ---- attention -------------------------------------------------------------------------------------------


def check_inputs(
    queries: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, context_lengths: Tensor
) -> None:
    """Refuse tensors that attention can't take."""
    check_dtype("queries", queries, *FLOATS)
    check_axes("queries", queries, "tokens", "num_heads", "head_dim")
    num_heads, head_dim = queries.shape[1:]
    if min(num_heads, head_dim, *key_cache.shape[2:]) < 1:
        raise ValueError(
            f"queries, key_cache: shapes {list(queries.shape)}, {list(key_cache.shape)}, "
            "heads and head_dim must be at least 1"
        )
    check_dtype("key_cache", key_cache, queries.dtype)
    check_dtype("value_cache", value_cache, queries.dtype)
    if key_cache.ndim != 4 or key_cache.shape[3] != head_dim:
        _refuse_shape("key_cache", key_cache, ("num_blocks", "block_size", "num_kv_heads", head_dim))
    check_shape("value_cache", value_cache, *key_cache.shape)
    if num_heads % key_cache.shape[2]:
        raise ValueError(f"queries: {num_heads} heads, not a multiple of the {key_cache.shape[2]} KV heads")
    batch, _ = check_tables(block_tables, context_lengths.device)
    check_dtype("context_lengths", context_lengths, torch.int32)
    if context_lengths.shape != (batch,):
        shapes = f"shapes {list(block_tables.shape)}, {list(context_lengths.shape)}"
        raise ValueError(f"block_tables, context_lengths: {shapes}, must be [batch, max_blocks], [batch]")
    named = ("queries", queries), ("key_cache", key_cache), ("value_cache", value_cache)
    for name, tensor in (*named, ("block_tables", block_tables)):
        check_device(name, tensor, context_lengths.device)
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name}: stride {tensor.stride(-1)} in the last dimension, must be 1")


def check_options(window: int | None, softcap: float | None) -> None:
    """Refuse options that mean nothing."""
    if window is not None and window < 1:
        raise ValueError(f"window: {window}, must be at least 1, or None")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap: {softcap}, must be above 0, or None")


def check_one_query_each(queries: Tensor, block_tables: Tensor) -> None:
    """Refuse a decode batch whose sequences don't have one query each."""
    if len(queries) != len(block_tables):
        raise ValueError(f"queries: {len(queries)} rows, but block_tables has {len(block_tables)}")


def check_starts(query_starts: Tensor, batch: int, queries: Tensor, max_query_length: int | None) -> int:
    """Refuse row offsets that don't share the queries out; on the CPU also by their values.

    Returns max_query_length, and the number of queries for None.
    """
    max_query_length = len(queries) if max_query_length is None else max_query_length
    check_dtype("query_starts", query_starts, torch.int32)
    check_shape("query_starts", query_starts, batch + 1)
    check_device("query_starts", query_starts, queries.device)
    if max_query_length < 0:
        raise ValueError(f"max_query_length: {max_query_length}, must be at least 0")
    if queries.device.type != "cpu":
        return max_query_length
    lengths = query_starts.diff()
    if int(query_starts[0]) < 0 or int(query_starts[-1]) > len(queries) or bool((lengths < 0).any()):
        raise ValueError(f"query_starts: must rise from 0 to at most {len(queries)}, the rows of queries")
    if batch and int(lengths.max()) > max_query_length:
        raise ValueError(f"max_query_length: {max_query_length}, but a sequence has {lengths.max()} rows")
    return max_query_length


def check_launch(
    kernel: object, queries: Tensor, key_cache: Tensor, block_tables: Tensor, context_lengths: Tensor
) -> None:
    """Refuse what only a Triton launch can't take; on the CPU also lengths and blocks out of range."""
    require_launch(kernel, queries, "queries")
    if queries.is_cuda:
        return
    if not isinstance(kernel, triton.JITFunction) and queries.dtype == torch.bfloat16:
        raise TypeError("queries: dtype torch.bfloat16, which Triton's interpreter lacks: use torch.float32")
    from ._cpu_arguments import check_contents  # Numba, which a GPU's launch doesn't need

    check_contents(block_tables.numpy(), context_lengths.numpy(), *key_cache.shape[:2])
