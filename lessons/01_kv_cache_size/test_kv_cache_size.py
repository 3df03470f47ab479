"""Grades lesson 1. All figures are published ones, or counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from minipaged.course.checks import check, check_close, check_raises, only_for, trying

NOT_POSITIVE = "a block size is a positive integer: check_block_size says so for you"
ANY_SIZE = "a block size need not be a power of two: any positive integer will do"
NO_BLOCK_SIZES: tuple[tuple[Any, str], ...] = (
    (0, NOT_POSITIVE),
    (-4, NOT_POSITIVE),
    (2.5, f"2.5 is no integer. {NOT_POSITIVE}"),
    (4.0, f"4.0 is a float and no integer, though it is whole. {NOT_POSITIVE}"),
    (True, f"True counts as 1 in Python, but it is no number of slots. {NOT_POSITIVE}"),
)


def test_bytes_of_a_token(exercise: ModuleType) -> None:
    """A token stores a key and a value for each layer and each KV head."""
    for name, shape, expected in (
        ("a toy model", (1, 1, 1, 1), 2),
        ("a toy model", (3, 1, 1, 1), 6),
        ("a toy model", (1, 5, 1, 1), 10),
        ("a toy model", (1, 1, 7, 1), 14),
        ("a toy model", (1, 1, 1, 4), 8),
        ("OPT-13B", (40, 40, 128, 2), 819_200),
        ("Llama 3 8B", (32, 8, 128, 2), 131_072),
        ("SmolLM2-135M in float32", (30, 3, 64, 4), 46_080),
    ):
        tried = f"bytes_per_token{shape}, {name}"
        with trying(tried):
            check(tried, exercise.bytes_per_token(*shape), expected, _wrong_bytes(expected))


def test_whole_blocks_fit(exercise: ModuleType) -> None:
    """Only whole blocks fit into memory."""
    for memory, size, token, expected in (
        (39, 4, 10, 0),
        (40, 4, 10, 1),
        (79, 4, 10, 1),
        (80, 4, 10, 2),
        (0, 4, 10, 0),
        (35, 1, 10, 3),
        (65, 3, 10, 2),
        (12 * 2**30, 16, 819_200, 983),
        (2**60 - 1, 16, 1, 2**56 - 1),
    ):
        tried = f"blocks_that_fit({memory}, {size}, {token})"
        with trying(tried, only_for(ValueError, ANY_SIZE)):
            check(
                tried,
                exercise.blocks_that_fit(memory, size, token),
                expected,
                _wrong_fit(memory, size, token),
            )
    for size, why in NO_BLOCK_SIZES:
        tried = f"blocks_that_fit(100, {size}, 10)"
        check_raises(tried, ValueError, lambda s=size: exercise.blocks_that_fit(100, s, 10), why)


def test_reserved_slots(exercise: ModuleType) -> None:
    """Reservation takes the maximum for every request, however short it is."""
    for lengths, limit, expected in (
        ([1], 8, 8),
        ([8], 8, 8),
        ([2, 3], 8, 16),
        ([0, 3], 8, 16),
        ([], 8, 0),
        ([300] * 100, 2048, 204_800),
    ):
        tried = f"slots_reserved({_short(lengths)}, {limit})"
        none = only_for((LookupError, ValueError), "no request at all is a normal case")
        with trying(tried, _refused(limit) if lengths else none):
            check(
                tried, exercise.slots_reserved(lengths, limit), expected, _wrong_reserved(lengths, expected)
            )
    why = "a request longer than max_length does not fit into what is reserved for it"
    check_raises("slots_reserved([9], 8)", ValueError, lambda: exercise.slots_reserved([9], 8), why)
    check_raises("slots_reserved([9, 2], 8)", ValueError, lambda: exercise.slots_reserved([9, 2], 8), why)
    why = "look at every request, not only at the first: the second does not fit into its max_length"
    check_raises("slots_reserved([2, 9], 8)", ValueError, lambda: exercise.slots_reserved([2, 9], 8), why)


def test_paged_slots(exercise: ModuleType) -> None:
    """Each request takes whole blocks of its own, as many as its tokens need."""
    for lengths, size, expected in (
        ([3], 4, 4),
        ([1], 4, 4),
        ([4], 4, 4),
        ([5], 4, 8),
        ([1, 1, 1], 4, 12),
        ([1, 4, 5, 0], 4, 16),
        ([3, 4], 1, 7),
        ([3, 4], 3, 9),
        ([], 4, 0),
        ([300] * 100, 16, 30_400),
    ):
        tried = f"slots_paged({_short(lengths)}, {size})"
        with trying(tried, only_for(ValueError, ANY_SIZE)):
            check(tried, exercise.slots_paged(lengths, size), expected, _wrong_paged(lengths, size))
    for size, why in NO_BLOCK_SIZES:
        for lengths in ([3], []):
            tried = f"slots_paged({lengths}, {size})"
            check_raises(tried, ValueError, lambda n=lengths, s=size: exercise.slots_paged(n, s), why)


def test_what_is_wasted(exercise: ModuleType) -> None:
    """Waste is the share of the slots taken that hold no token."""
    for lengths, slots, expected in (
        ([3], 4, 0.25),
        ([4], 4, 0.0),
        ([0], 4, 1.0),
        ([1, 2], 12, 0.75),
        ([], 0, 0.0),
        ([], 8, 1.0),
        ([300] * 100, 204_800, 0.853515625),
        ([300] * 100, 30_400, 400 / 30_400),
    ):
        tried = f"share_wasted({_short(lengths)}, {slots})"
        with trying(tried, only_for(ZeroDivisionError, "no slot taken, none wasted: 0 / 0 is no number")):
            check_close(tried, exercise.share_wasted(lengths, slots), expected, _wrong_share(lengths, slots))


def test_lengths_of_any_collection(exercise: ModuleType) -> None:
    """The lengths may be any collection, which need not have an entry 0."""
    lengths = {"a": 3, "b": 5}.values()
    why = "lengths is a Collection: it has a length and can be walked, and has no entry [0]"
    for name, number, expected in (("slots_reserved", 8, 16), ("slots_paged", 4, 12)):
        tried = f"{name}({{'a': 3, 'b': 5}}.values(), {number})"
        with trying(tried, only_for((AttributeError, TypeError), why)):
            check(tried, getattr(exercise, name)(lengths, number), expected, why)
    tried = "share_wasted({'a': 3, 'b': 5}.values(), 16)"
    with trying(tried, only_for((AttributeError, TypeError), why)):
        check_close(tried, exercise.share_wasted(lengths, 16), 0.5, why)


def _refused(limit: int) -> Callable[[Any], str]:
    def why(error: Any) -> str:
        if isinstance(error, ValueError):
            return f"exactly {limit} tokens fit in max_length {limit}: refuse only longer ones, > and not >="
        return ""

    return why


def _short(lengths: list[int]) -> str:
    return str(lengths) if len(lengths) < 10 else f"[{lengths[0]}] * {len(lengths)}"


def _wrong_bytes(expected: int) -> Callable[[Any], str]:
    def why(got: Any) -> str:
        if got == expected / 2:
            return "half of it is missing: a token stores a key and a value, 2 vectors a head"
        if got == expected * 8:
            return "that is in bits: bytes_per_value is in bytes already"
        if got == expected * 3 / 2:
            return "that is 3 vectors a head: the query is used once and not kept"
        return "2 * num_layers * num_kv_heads * head_dim * bytes_per_value, and nothing else"

    return why


def _wrong_fit(memory: int, size: int, token: int) -> Callable[[Any], str]:
    def why(got: Any) -> str:
        if got == memory // token:
            return "that counts tokens: a block holds block_size of them"
        if not isinstance(got, float) and got == int(memory / (size * token)):
            return "a quotient by / is a float, which rounds large numbers: // keeps all digits"
        if isinstance(got, float):
            return "a part of a block is no block: round down, with //"
        if got == -(-memory // (size * token)):
            return "rounded up: the last block would not fit, only whole blocks do"
        return "memory // (block_size * token_bytes)"

    return why


def _wrong_reserved(lengths: list[int], expected: int) -> Callable[[Any], str]:
    def why(got: Any) -> str:
        own = (sum(lengths), len(lengths) * max(lengths, default=0))
        if isinstance(got, int) and got < expected and got not in own:
            return "one maximum for EACH request: len(lengths) * max_length"
        return "each request gets max_length slots: their own lengths play no part"

    return why


def _wrong_paged(lengths: list[int], size: int) -> Callable[[Any], str]:
    def why(got: Any) -> str:
        if got == sum(round(length / size) for length in lengths) * size:
            return "round up, not to the nearest: one token in a block takes the whole block"
        if got == sum(lengths) // size * size or got == sum(length // size * size for length in lengths):
            return "rounded down: the tokens of the last block would have no slot"
        if got == -(-sum(lengths) // size) * size:
            return "requests don't share a last block here: round up for each request, not for their sum"
        if got == sum(length // size + 1 for length in lengths) * size:
            return "one block too many at an exact multiple: 4 tokens fill one block of 4"
        if got == sum(-(-max(length, 1) // size) for length in lengths) * size:
            return "a request of 0 tokens has no block yet: it takes 0 slots"
        if got == sum(-(-length // size) for length in lengths):
            return "that counts blocks: each has block_size slots"
        return "num_blocks_for(length, block_size) * block_size, for each request"

    return why


def _wrong_share(lengths: list[int], slots: int) -> Callable[[Any], str]:
    used = sum(lengths)

    def why(got: Any) -> str:
        if slots and not lengths:
            return (
                "slots are taken and no token is in them, so all are wasted: 0.0 only where no slot is taken"
            )
        if got == slots - used:
            return "that is a number of slots: the share is that number divided by all slots taken"
        if slots and got == used / slots:
            return "that is the share that is used: what is wasted is the rest"
        if used and got == (slots - used) / used:
            return "of the wrong total: a share of the slots taken, not of the tokens"
        if slots and got in [round((slots - used) / slots, digits) for digits in range(5)]:
            return "that is rounded: return the quotient with all its digits"
        if slots and got == 100 * (slots - used) / slots:
            return "in per cent: a share lies between 0.0 and 1.0"
        return "(num_slots - sum(lengths)) / num_slots, and 0.0 where no slot is taken"

    return why
