"""4. Attention over blocks: fold scattered blocks into one softmax, one block at a time

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/04_paged_attention    A hint: minipaged lessons hint 4
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, inf
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
) -> list[list[float]]:
    """Attention of a sequence's newest token, whose own K and V are in the cache already.

    query: [num_heads][head_dim]. key_cache, value_cache: [num_blocks][block_size][num_kv_heads][head_dim].
    Returns [num_heads][head_dim]. Query head h reads KV head h // (num_heads // num_kv_heads). Formula 4 of
    the paper: o = sum over blocks j of V_j softmax(K_j q * scale). A context of 0 tokens or fewer gives
    zeros.
    """
    raise NotImplementedError


def visible_blocks(
    key_cache: Any, value_cache: Any, block_table: Sequence[int], first: int, end: int
) -> Iterator[tuple[Any, Any]]:
    """The keys and values of positions first to end - 1, block by block, for 0 <= first < end.

    Yields one pair for each block that holds one of these positions, in the order of the table: the visible
    slots of key_cache[block], and those of value_cache[block], both [num_slots][num_kv_heads][head_dim]. No
    other slot is touched, and no other table entry: they may hold anything.
    """
    raise NotImplementedError


def fold_block(partial: Partial, scores: Sequence[float], values: Sequence[Vector]) -> Partial:
    """Fold one block's scores and values into the running softmax (online softmax, Milakov 2018).

    scores: [num_slots]; values: [num_slots][head_dim]. The sums so far are relative to the old maximum.
    Multiplied by exp(old maximum - new maximum) they are relative to the new one. Without scores the partial
    stays as it was. No argument is changed.
    """
    raise NotImplementedError


def merge_partials(partials: Sequence[Partial]) -> list[float]:
    """Attention over a context that was split into parts, from each part's result: [head_dim].

    This is how a long context is spread over many programs (flash decoding): each folds its own blocks,
    and the parts are merged at the end by the same rescaling. A part without scores changes nothing. If no
    part has scores, the result is zeros. The order of the parts doesn't matter.
    """
    raise NotImplementedError


def _dot(left: Vector, right: Vector) -> float:
    """The sum of the products, number by number."""
    return sum(x * y for x, y in zip(left, right, strict=True))
