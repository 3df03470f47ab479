"""Make any Hugging Face model attend through block tables, without touching its code.

transformers lets a caller register an attention function; models call it with the queries, keys and values
of their own forward. Ours writes K and V to their slots and attends through the tables. This is the only
file that knows how transformers calls attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from ..errors import ModelNotSupportedError
from ..kernels.block_table import write_kv
from ..models.attention_call import check_attention_call
from .backends import AttentionBackend, Options
from .batch import Batch
from .kv_cache import KVCache

if TYPE_CHECKING:
    from .cpu_step import CPUStep

ATTENTION_NAME = "minipaged"


@dataclass(frozen=True)
class PagedStep:
    """What the attention function needs in a step: the batch, the pool, and how to attend."""

    batch: Batch
    cache: KVCache
    backend: AttentionBackend

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, options: Options) -> Tensor:
        """Write K and V of a layer to their slots, then attend: decodes first, and the rest as prefills.

        queries: [T, heads, head_dim]; keys, values: [T, kv_heads, head_dim]. options: scale, window, softcap.
        Returns [T, heads, head_dim].
        """
        batch, (key_cache, value_cache) = self.batch, self.cache.layers[layer]
        write_kv(keys, values, key_cache, value_cache, batch.slots)
        named: dict[str, Any] = dict(zip(("scale", "window", "softcap"), options, strict=True))
        n = batch.num_decodes
        parts = []
        if n:
            tables, lengths = batch.decode_tables, batch.context_lengths[:n]
            parts.append(self.backend.decode(queries[:n], key_cache, value_cache, tables, lengths, **named))
        if n < len(batch.block_tables):
            tables, lengths = batch.block_tables[n:], batch.context_lengths[n:]
            rows = tables, lengths, batch.prefill_starts
            named["max_query_length"] = batch.max_query_length
            parts.append(self.backend.prefill(queries[n:], key_cache, value_cache, *rows, **named))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def new_step(batch: Batch, cache: KVCache, backend: AttentionBackend) -> PagedStep | CPUStep:
    """The step for a backend: the CPU's compiled one has its own, which saves a tenth of a decode step."""
    if backend.name != "numba":
        return PagedStep(batch, cache, backend)
    from .cpu_step import CPUStep  # Numba, which a GPU doesn't need

    return CPUStep(batch, cache)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: PagedStep | CPUStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, called by the model with query [1, heads, T, head_dim].

    key and value: [1, kv_heads, T, head_dim]. Returns [1, T, heads, head_dim].

    Raises ModelNotSupportedError for anything that would change the result and that paged attention doesn't
    do.
    """
    if paged is None:
        raise ModelNotSupportedError(f"{type(module).__name__} does not pass its arguments on to attention")
    check_attention_call(module, attention_mask, dropout, is_causal, others)
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    scale = float(scaling) if scaling is not None else query.shape[-1] ** -0.5
    layer: int = module.layer_idx  # type: ignore[assignment]
    output = paged.attend(layer, queries, keys, values, (scale, sliding_window, softcap))
    return output.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, paged_attention)
