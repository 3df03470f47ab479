"""Attention that reads keys and values from blocks scattered over the pool, one block at a time.

The online softmax makes this possible: a running maximum and a running sum let each block be folded in
without knowing the scores of the blocks to come, so nothing is ever gathered into one piece.
Twins: kernels/attention.py (Triton), kernels/attention_cpu.py (Numba). Lesson: lessons/04_paged_attention.
Page: docs/concepts/attention.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, inf, tanh
from typing import Any, NamedTuple

Vector = Sequence[float]


class Partial(NamedTuple):
    """Attention over a part of the context: what is needed to fold in, or merge with, another part."""

    maximum: float  # of the scores seen so far; -inf where there were none
    total: float  # sum of exp(score - maximum)
    weighted: list[float]  # sum of exp(score - maximum) * value, one number per dimension of the head


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
    and the W - 1 before it; `softcap` c bends each score to c * tanh(score / c). A context of 0 tokens or
    fewer gives zeros. Raises ValueError for a window or a softcap that is not positive.
    """
    _check_options(window, softcap)
    if context_length <= 0:
        return [[0.0] * len(vector) for vector in query]
    group_size = len(query) // len(key_cache[block_table[0]][0])
    first = max(0, context_length - window) if window is not None else 0
    outputs = []
    for head, vector in enumerate(query):
        kv_head = head // group_size
        partial = Partial(-inf, 0.0, [0.0] * len(vector))
        for keys, values in visible_blocks(key_cache, value_cache, block_table, first, context_length):
            scores = [_bent(_dot(vector, key[kv_head]) * scale, softcap) for key in keys]
            partial = fold_block(partial, scores, [value[kv_head] for value in values])
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


def visible_blocks(
    key_cache: Any, value_cache: Any, block_table: Sequence[int], first: int, end: int
) -> Iterator[tuple[Any, Any]]:
    """The keys and values of positions first to end - 1, block by block, for 0 <= first < end.

    Yields one pair for each block that holds one of these positions, in the order of the table: the visible
    slots of key_cache[block], and those of value_cache[block], both [num_slots][num_kv_heads][head_dim]. No
    other slot is touched, and no other table entry: they may hold anything.
    """
    block_size = len(key_cache[block_table[0]])
    for index in range(first // block_size, -(-end // block_size)):
        block, before = block_table[index], index * block_size
        start, stop = max(first - before, 0), min(end - before, block_size)
        yield key_cache[block][start:stop], value_cache[block][start:stop]


def fold_block(partial: Partial, scores: Sequence[float], values: Sequence[Vector]) -> Partial:
    """Fold one block's scores and values into the running softmax (online softmax, Milakov 2018).

    scores: [num_slots]; values: [num_slots][head_dim]. The sums so far are relative to the old maximum.
    Multiplied by exp(old maximum - new maximum) they are relative to the new one. Without scores the partial
    stays as it was. No argument is changed.
    """
    if len(scores) == 0:
        return partial
    maximum = max(partial.maximum, *scores)
    rescale = exp(partial.maximum - maximum)
    weights = [exp(score - maximum) for score in scores]
    weighted = [
        x * rescale + _dot(weights, [value[i] for value in values]) for i, x in enumerate(partial.weighted)
    ]
    return Partial(maximum, partial.total * rescale + sum(weights), weighted)


def merge_partials(partials: Sequence[Partial]) -> list[float]:
    """Attention over a context that was split into parts, from each part's result: [head_dim].

    This is how a long context is spread over many programs (flash decoding): each folds its own blocks,
    and the parts are merged at the end by the same rescaling. A part without scores changes nothing. If no
    part has scores, the result is zeros. The order of the parts doesn't matter.
    """
    maximum = max(partial.maximum for partial in partials)
    head_dim = len(partials[0].weighted)
    if maximum == -inf:
        return [0.0] * head_dim
    rescale = [exp(partial.maximum - maximum) for partial in partials]
    total = _dot(rescale, [partial.total for partial in partials])
    return [_dot(rescale, [partial.weighted[i] for partial in partials]) / total for i in range(head_dim)]


def _dot(left: Vector, right: Vector) -> float:
    """The sum of the products, number by number."""
    return sum(x * y for x, y in zip(left, right, strict=True))


def _bent(score: float, softcap: float | None) -> float:
    return softcap * tanh(score / softcap) if softcap is not None else score


def _check_options(window: int | None, softcap: float | None) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window must be a positive number of tokens or None, got {window}")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be a positive number or None, got {softcap}")
