"""What both attention files refuse, by name, before they read or write anything."""

from __future__ import annotations

import torch
from torch import Tensor

from ._triton import triton
from .block_table import require_launch

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_inputs(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lengths: Tensor,
    window: int | None,
    softcap: float | None,
) -> None:
    """Refuse shapes, dtypes, strides and options that attention can't take; looks at no tensor's values."""
    if queries.dtype not in DTYPES:
        raise TypeError(f"queries: dtype {queries.dtype}, must be one of {', '.join(map(str, DTYPES))}")
    if queries.ndim != 3:
        raise ValueError(f"queries: shape {list(queries.shape)}, must be [tokens, num_heads, head_dim]")
    num_heads, head_dim = queries.shape[1:]
    if min(num_heads, head_dim, *key_cache.shape[2:]) < 1:
        raise ValueError(
            f"queries, key_cache: shapes {list(queries.shape)}, {list(key_cache.shape)}, "
            "heads and head_dim must be at least 1"
        )
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache.dtype != queries.dtype:
            raise TypeError(f"{name}: dtype {cache.dtype}, but queries is {queries.dtype}")
        if cache.ndim != 4 or cache.shape[3] != head_dim or cache.shape != key_cache.shape:
            raise ValueError(
                f"{name}: shape {list(cache.shape)}, must be "
                f"[num_blocks, block_size, num_kv_heads, {head_dim}] like the other cache"
            )
    if num_heads % key_cache.shape[2]:
        raise ValueError(f"queries: {num_heads} heads, not a multiple of the {key_cache.shape[2]} KV heads")
    batch = block_tables.shape[0]
    if block_tables.dtype != torch.int32 or context_lengths.dtype != torch.int32:
        raise TypeError(
            f"block_tables, context_lengths: dtypes {block_tables.dtype}, {context_lengths.dtype}, "
            "must be torch.int32"
        )
    if block_tables.ndim != 2 or context_lengths.shape != (batch,):
        raise ValueError(
            f"block_tables, context_lengths: shapes {list(block_tables.shape)}, "
            f"{list(context_lengths.shape)}, must be [batch, max_blocks], [batch]"
        )
    for name, tensor in (
        ("queries", queries),
        ("key_cache", key_cache),
        ("value_cache", value_cache),
        ("block_tables", block_tables),
    ):
        if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
            raise ValueError(f"{name}: stride {tensor.stride(-1)} in the last dimension, must be 1")
        if tensor.device != context_lengths.device:
            raise ValueError(
                f"{name}: on {tensor.device}, but context_lengths is on {context_lengths.device}"
            )
    if window is not None and window < 1:
        raise ValueError(f"window: {window}, must be at least 1, or None")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap: {softcap}, must be above 0, or None")


def check_tables(block_tables: Tensor, context_lengths: Tensor, num_blocks: int, block_size: int) -> None:
    """Refuse what would read outside the pool; on the CPU only, where looking at values costs no wait."""
    capacity = block_tables.shape[1] * block_size
    outside = context_lengths[(context_lengths < 0) | (context_lengths > capacity)]
    if outside.numel():
        raise ValueError(f"context_lengths: {int(outside[0])}, block_tables holds 0 to {capacity} tokens")
    column = torch.arange(block_tables.shape[1])
    used = block_tables[column * block_size < context_lengths[:, None]]
    outside = used[(used < 0) | (used >= num_blocks)]
    if outside.numel():
        raise ValueError(f"block_tables: block {int(outside[0])}, the cache has blocks 0 to {num_blocks - 1}")


def check_starts(
    query_starts: Tensor, batch: int, total_tokens: int, max_query_length: int, device: torch.device
) -> None:
    """Refuse row offsets that don't share the queries out; looks at their values on the CPU only."""
    if query_starts.dtype != torch.int32:
        raise TypeError(f"query_starts: dtype {query_starts.dtype}, must be torch.int32")
    if query_starts.shape != (batch + 1,):
        raise ValueError(f"query_starts: shape {list(query_starts.shape)}, must be [{batch + 1}]")
    if query_starts.device != device:
        raise ValueError(f"query_starts: on {query_starts.device}, but queries is on {device}")
    if max_query_length < 0:
        raise ValueError(f"max_query_length: {max_query_length}, must be at least 0")
    if device.type != "cpu":
        return
    lengths = query_starts.diff()
    if int(query_starts[0]) < 0 or int(query_starts[-1]) > total_tokens or bool((lengths < 0).any()):
        raise ValueError(f"query_starts: must rise from 0 to at most {total_tokens}, the rows of queries")
    if batch and int(lengths.max()) > max_query_length:
        raise ValueError(
            f"max_query_length: {max_query_length}, but a sequence has {int(lengths.max())} rows"
        )


def check_launch(
    kernel: object, queries: Tensor, key_cache: Tensor, block_tables: Tensor, context_lengths: Tensor
) -> None:
    """What only a launch needs; on the CPU the tables too, where looking at values costs no wait."""
    require_launch(kernel, queries, "queries")
    if not isinstance(kernel, triton.JITFunction) and queries.dtype == torch.bfloat16:
        raise TypeError("queries: dtype torch.bfloat16, which Triton's interpreter lacks: use torch.float32")
    if not queries.is_cuda:
        check_tables(block_tables, context_lengths, *key_cache.shape[:2])
