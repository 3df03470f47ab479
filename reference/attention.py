"""Attention that reads keys and values from blocks scattered over the pool, one block at a time.

The online softmax makes this possible: a running maximum and a running sum let each block be folded in
without knowing the scores of the blocks to come, so nothing is ever gathered into one piece.
Twins: kernels/attention.py (Triton), kernels/attention_cpu.py (Numba). Lesson: lessons/04_paged_attention.
Page: docs/concepts/attention.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, tanh
from typing import Any, NamedTuple

Vector = Sequence[float]


class Partial(NamedTuple):
    """Attention over a part of the context: what is needed to fold in, or merge with, another part."""

    maximum: float  # of the scores seen so far; -inf where there were none
    total: float  # sum of exp(score - maximum)
    weighted: list[float]  # sum of exp(score - maximum) * value, one number a dimension of the head


def decode_attention(
    query: Sequence[Vector],
    key_cache: Any,
    value_cache: Any,
    block_table: Sequence[int],
    context_length: int,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> list[list[float]]:
    """Attention of a sequence's newest token, whose own K and V are in the cache already.

    query: [num_heads][head_dim]. key_cache, value_cache: [num_blocks][block_size][num_kv_heads][head_dim].
    Returns [num_heads][head_dim]. Query head h reads KV head h // (num_heads // num_kv_heads). Formula 4
    of the paper: o = sum over blocks j of V_j softmax(K_j q * scale). `window` W lets a token see itself
    and the W - 1 before it; `softcap` c bends each score to c * tanh(score / c). No context gives zeros.
    Raises ValueError for a window or a softcap that is not positive.
    """
    _check_options(window, softcap)
    if context_length <= 0:
        return [[0.0] * len(head) for head in query]
    group_size = len(query) // len(key_cache[block_table[0]][0])
    first = max(0, context_length - window) if window is not None else 0
    outputs = []
    for head, vector in enumerate(query):
        partial = Partial(-inf, 0.0, [0.0] * len(vector))
        for keys, values in _visible_blocks(key_cache, value_cache, block_table, first, context_length):
            scores = [_score(vector, key[head // group_size], scale, softcap) for key in keys]
            partial = fold_block(partial, scores, [value[head // group_size] for value in values])
        outputs.append([x / partial.total for x in partial.weighted])
    return outputs


def prefill_attention(
    queries: Sequence[Sequence[Vector]],
    key_cache: Any,
    value_cache: Any,
    block_table: Sequence[int],
    context_length: int,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> list[list[list[float]]]:
    """Attention of a sequence's last tokens, each seeing itself and what lies before it.

    queries: [num_queries][num_heads][head_dim], for the last num_queries of the context_length tokens.
    With a chunk of a prompt, or after a prefix hit, earlier tokens are in the cache already: query i is at
    position context_length - num_queries + i. A query before position 0 sees nothing and gives zeros.
    Everything else is as in `decode_attention`.
    """
    offset = context_length - len(queries)
    options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap}
    return [
        decode_attention(query, key_cache, value_cache, block_table, offset + i + 1, **options)
        for i, query in enumerate(queries)
    ]


def fold_block(partial: Partial, scores: Sequence[float], values: Sequence[Vector]) -> Partial:
    """Fold one block's scores and values into the running softmax (online softmax, Milakov 2018).

    Whatever was summed so far was relative to the old maximum; `rescale` makes it relative to the new one.
    """
    if len(scores) == 0:
        return partial
    maximum = max(partial.maximum, *scores)
    rescale = exp(partial.maximum - maximum)
    weights = [exp(score - maximum) for score in scores]
    weighted = [x * rescale for x in partial.weighted]
    for weight, value in zip(weights, values, strict=True):
        weighted = [x + weight * v for x, v in zip(weighted, value, strict=True)]
    return Partial(maximum, partial.total * rescale + sum(weights), weighted)


def merge_partials(partials: Sequence[Partial]) -> list[float]:
    """Attention over a context that was split into parts, from each part's result. An empty part is neutral.

    This is how a long context is spread over many programs (flash decoding): each folds its own blocks,
    and the parts are merged at the end by the same rescaling.
    """
    maximum = max(partial.maximum for partial in partials)
    if maximum == -inf:
        return [0.0] * len(partials[0].weighted)
    rescale = [exp(partial.maximum - maximum) for partial in partials]
    total = sum(r * partial.total for r, partial in zip(rescale, partials, strict=True))
    columns = zip(*(partial.weighted for partial in partials), strict=True)
    return [sum(r * x for r, x in zip(rescale, column, strict=True)) / total for column in columns]


def _visible_blocks(
    key_cache: Any, value_cache: Any, block_table: Sequence[int], first: int, end: int
) -> list[tuple[Any, Any]]:
    """Keys and values of positions first to end - 1, block by block; no other slot is ever touched."""
    block_size = len(key_cache[block_table[0]])
    parts = []
    for index in range(first // block_size, -(-end // block_size)):
        start = max(first - index * block_size, 0)
        stop = min(end - index * block_size, block_size)
        block = block_table[index]
        parts.append((key_cache[block][start:stop], value_cache[block][start:stop]))
    return parts


def _check_options(window: int | None, softcap: float | None) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window must be a positive number of tokens or None, got {window}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be a positive number or None, got {softcap}")


def _score(query: Vector, key: Vector, scale: float, softcap: float | None) -> float:
    """The scaled dot product of one query and one key, bent by `softcap` if there is one."""
    score = sum(q * k for q, k in zip(query, key, strict=True)) * scale
    return softcap * tanh(score / softcap) if softcap is not None else score
