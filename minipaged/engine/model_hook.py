"""Make any Hugging Face model attend through block tables, without touching its code.

transformers lets a caller register an attention function; models call it with the queries, keys and values
of their own forward. Ours writes K and V to their slots and attends through the tables. This is the only
file that knows how transformers calls attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from ..errors import ModelNotSupportedError
from ..kernels.block_table import write_kv
from ..models.attention_call import check_attention_call
from .backends import AttentionBackend
from .batch import Batch
from .kv_cache import KVCache

ATTENTION_NAME = "minipaged"


@dataclass(frozen=True)
class PagedStep:
    """What the attention function needs in a step: the batch, the pool, and how to attend."""

    batch: Batch
    cache: KVCache
    backend: AttentionBackend


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: PagedStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, called by the model with query [1, heads, T, head_dim], K and V alike.

    Returns [1, T, heads, head_dim]. Raises ModelNotSupportedError for anything that would change the
    result and that paged attention doesn't do.
    """
    if paged is None:
        raise ModelNotSupportedError(f"{type(module).__name__} does not pass its arguments on to attention")
    check_attention_call(module, attention_mask, dropout, is_causal, others)
    batch = paged.batch
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    key_cache, value_cache = paged.cache.layers[module.layer_idx]  # type: ignore[index]
    write_kv(keys, values, key_cache, value_cache, batch.slots)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    options = {"scale": float(scale), "window": sliding_window, "softcap": softcap}
    num_decodes = batch.num_decodes
    parts = []
    if num_decodes:
        tables, lengths = batch.decode_tables, batch.context_lengths[:num_decodes]
        decode = paged.backend.decode
        parts.append(decode(queries[:num_decodes], key_cache, value_cache, tables, lengths, **options))
    if num_decodes < len(batch.block_tables):
        tables, lengths = batch.block_tables[num_decodes:], batch.context_lengths[num_decodes:]
        prefill, starts = paged.backend.prefill, batch.prefill_starts
        options["max_query_length"] = batch.max_query_length
        parts.append(
            prefill(queries[num_decodes:], key_cache, value_cache, tables, lengths, starts, **options)
        )
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, paged_attention)
