"""Contiguous pieces: where they lie, how large they are, and what becomes of every slot.

Addresses and sums are worked out by hand, or are the paper's own; random operations run beside a plain list
that says for each slot who holds it.
"""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.reference.contiguous import (
    ContiguousCache,
    Policy,
    SlotUsage,
    growing,
    maximum,
    oracle,
    power_of_two,
)
from minipaged.reference.slot_allocator import (
    BuddyAllocator,
    FirstFitAllocator,
    OutOfSlotsError,
    Piece,
    SlotAllocator,
    next_power_of_two,
)

ALLOCATORS = (BuddyAllocator, FirstFitAllocator)
POLICIES = (maximum, power_of_two, oracle, growing)
quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def state(thing: SlotAllocator | ContiguousCache) -> Any:
    """All that it knows, as plain values that can be compared."""
    if isinstance(thing, SlotAllocator):
        return deepcopy(vars(thing))
    return deepcopy(vars(thing) | {"allocator": vars(thing.allocator)})


def fails_unchanged(thing: Any, error: type[Exception], call: Any, *arguments: Any) -> str:
    """Assert that the call raises and leaves everything as it was. Returns the message."""
    before = state(thing)
    with pytest.raises(error) as caught:
        call(*arguments)
    assert state(thing) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------- where pieces lie


def test_buddies_split_and_merge_as_worked_out_by_hand():
    pool = BuddyAllocator(16)
    assert pool.free_pieces() == [(0, 16)]
    assert pool.allocate(3) == (0, 4)  # 16 = 8 + 8, 8 = 4 + 4
    assert pool.free_pieces() == [(4, 4), (8, 8)]
    assert pool.allocate(5) == (8, 8)
    assert pool.allocate(2) == (4, 2)  # 4 = 2 + 2
    assert pool.free_pieces() == [(6, 2)]
    assert (pool.num_free, pool.largest_free) == (2, 2)

    pool.free(Piece(0, 4))  # its buddy at 4 is split
    assert pool.free_pieces() == [(0, 4), (6, 2)]
    pool.free(Piece(4, 2))  # 2 + 2 = 4, 4 + 4 = 8; the buddy at 8 is in use
    assert pool.free_pieces() == [(0, 8)]
    pool.free(Piece(8, 8))
    assert pool.free_pieces() == [(0, 16)]
    assert pool.num_free == 16


def test_neighbours_that_are_no_buddies_stay_apart():
    pool = BuddyAllocator(16)
    for start in (0, 4, 8, 12):
        assert pool.allocate(4) == (start, 4)
    pool.free(Piece(4, 4))
    pool.free(Piece(8, 4))
    assert pool.free_pieces() == [(4, 4), (8, 4)]
    message = fails_unchanged(pool, OutOfSlotsError, pool.allocate, 8)
    assert message == "asked for a piece of 8 slots: 8 are free, the largest free piece has 4"


def test_the_smallest_piece_that_is_large_enough_is_split():
    pool = BuddyAllocator(16)
    assert [pool.allocate(size) for size in (2, 1)] == [(0, 2), (2, 1)]
    assert pool.free_pieces() == [(3, 1), (4, 4), (8, 8)]
    assert pool.allocate(1) == (3, 1)
    assert pool.allocate(3) == (4, 4)
    assert pool.allocate(8) == (8, 8)
    assert pool.free_pieces() == []
    assert pool.largest_free == 0


def test_a_buddy_pool_of_any_size_begins_as_powers_of_two():
    pool = BuddyAllocator(13)
    assert pool.free_pieces() == [(0, 8), (8, 4), (12, 1)]
    assert [pool.allocate(size) for size in (4, 8, 1)] == [(8, 4), (0, 8), (12, 1)]
    fails_unchanged(pool, OutOfSlotsError, pool.allocate, 1)
    for piece in (Piece(12, 1), Piece(0, 8), Piece(8, 4)):
        pool.free(piece)
    assert pool.free_pieces() == [(0, 8), (8, 4), (12, 1)]


def test_enough_slots_are_free_but_no_gap_is_large_enough():
    pool = FirstFitAllocator(10)
    first, second, third = (pool.allocate(size) for size in (3, 3, 4))
    assert (first, second, third) == ((0, 3), (3, 3), (6, 4))
    pool.free(first)
    pool.free(third)
    assert pool.free_pieces() == [(0, 3), (6, 4)]
    message = fails_unchanged(pool, OutOfSlotsError, pool.allocate, 5)
    assert message == "asked for a piece of 5 slots: 7 are free, the largest free piece has 4"
    assert pool.allocate(4) == (6, 4)
    assert pool.allocate(1) == (0, 1)  # the first gap, not the best
    pool.free(second)
    assert pool.free_pieces() == [(1, 5)]  # merged with the gap before it
    assert pool.allocate(5) == (1, 5)


def test_a_freed_piece_merges_with_the_gaps_on_both_sides():
    pool = FirstFitAllocator(9)
    first, second, third = (pool.allocate(3) for _ in range(3))
    pool.free(third)
    pool.free(first)
    pool.free(second)
    assert pool.free_pieces() == [(0, 9)]


def test_the_error_says_what_was_asked_and_what_there_is():
    pool = FirstFitAllocator(6)
    pieces = [pool.allocate(2) for _ in range(3)]
    pool.free(pieces[0])
    pool.free(pieces[2])
    with pytest.raises(OutOfSlotsError) as caught:
        pool.allocate(3)
    error = caught.value
    assert (error.requested, error.num_free, error.largest_free) == (3, 4, 2)
    assert isinstance(error, RuntimeError)


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_only_a_piece_in_use_can_be_freed(kind: type[SlotAllocator]):
    pool = kind(8)
    piece = pool.allocate(4)
    for other in (Piece(0, 2), Piece(4, 4), Piece(2, 2), Piece(-4, 4), Piece(8, 4)):
        message = fails_unchanged(pool, ValueError, pool.free, other)
        assert message == f"double free: {other} is not in use"
    pool.free(piece)
    fails_unchanged(pool, ValueError, pool.free, piece)


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", None])
def test_numbers_of_slots_are_positive_integers(kind: type[SlotAllocator], value: Any):
    with pytest.raises(ValueError, match=f"num_slots must be a positive integer, got {value!r}"):
        kind(value)
    pool = kind(8)
    fails_unchanged(pool, ValueError, pool.allocate, value)


def test_next_power_of_two():
    expected = {0: 0, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 25: 32, 32: 32, 33: 64, 2047: 2048, 2049: 4096}
    assert {number: next_power_of_two(number) for number in expected} == expected


def longest_run(owners: list[int | None]) -> int:
    """The most free slots side by side."""
    longest = run = 0
    for owner in owners:
        run = run + 1 if owner is None else 0
        longest = max(longest, run)
    return longest


def largest_aligned(owners: list[int | None]) -> int:
    """The largest power of two of free slots that starts at a multiple of itself."""
    for size in (64, 32, 16, 8, 4, 2, 1):
        for start in range(0, len(owners) - size + 1, size):
            if not any(owner is not None for owner in owners[start : start + size]):
                return size
    return 0


@quick
@given(
    st.sampled_from(ALLOCATORS),
    st.integers(1, 64),
    st.lists(st.tuples(st.booleans(), st.integers(1, 70)), max_size=60),
)
def test_no_two_pieces_overlap_and_all_merge_back(
    kind: type[SlotAllocator], num_slots: int, operations: list[tuple[bool, int]]
):
    pool = kind(num_slots)
    at_first = pool.free_pieces()
    owners: list[int | None] = [None] * num_slots
    held: dict[int, Piece] = {}
    for name, (is_free, number) in enumerate(operations):
        if is_free and held:
            freed = sorted(held)[number % len(held)]
            pool.free(held.pop(freed))
            owners = [None if owner == freed else owner for owner in owners]
            continue
        largest = longest_run(owners) if kind is FirstFitAllocator else largest_aligned(owners)
        assert pool.largest_free == largest
        if number > largest:
            fails_unchanged(pool, OutOfSlotsError, pool.allocate, number)
            continue
        start, size = held[name] = pool.allocate(number)
        if kind is FirstFitAllocator:
            assert size == number
        else:
            assert number <= size < 2 * number and size & (size - 1) == 0 and start % size == 0
        assert owners[start : start + size] == [None] * size  # all of them in the pool, and nobody's
        owners[start : start + size] = [name] * size
        assert pool.num_free == owners.count(None)
    tiles = sorted([*held.values(), *pool.free_pieces()])
    ends = [start + size for start, size in tiles]
    assert [start for start, _ in tiles] == [0, *ends[:-1]] and ends[-1] == num_slots
    for piece in held.values():
        pool.free(piece)
    assert pool.free_pieces() == at_first
    assert pool.num_free == num_slots


# ---------------------------------------------------------------- how large they are


@pytest.mark.parametrize(
    ("policy", "lengths", "reserved"),
    [
        (maximum, (100, 125, 2048), 2048),
        (power_of_two, (100, 125, 2048), 132),  # the paper's example: 32 positions for an output of 25
        (power_of_two, (100, 132, 2048), 132),
        (power_of_two, (100, 133, 2048), 164),
        (power_of_two, (100, 100, 2048), 100),
        (power_of_two, (2000, 2040, 2048), 2048),  # never beyond what the request may have
        (oracle, (100, 125, 2048), 125),
        (growing, (100, 125, 2048), 128),
        (growing, (128, 1000, 2048), 128),
    ],
)
def test_what_a_policy_reserves(policy: Policy, lengths: tuple[int, int, int], reserved: int):
    assert policy(*lengths) == reserved
    assert ContiguousCache(FirstFitAllocator(2048), policy).admit("a", *lengths) == (0, reserved)


def test_growing_copies_into_a_piece_twice_as_large():
    cache = ContiguousCache(BuddyAllocator(128), growing)
    assert cache.admit("a", 5, 40, 64) == (0, 8)
    places = [cache.append("a") for _ in range(35)]
    # Tokens 6 to 8 fit. The 9th finds the half of 16 at 0 taken by the old piece, and so goes to 16. By then
    # 0 to 15 is free, and 32 slots are first found at 32, after that 64 at 64.
    assert places == [(0, 8)] * 3 + [(16, 16)] * 8 + [(32, 32)] * 16 + [(64, 64)] * 8
    assert cache.num_copied == 8 + 16 + 32
    assert cache.usage() == SlotUsage(tokens=40, reserved=0, internal=24, external=0, free=64)


@pytest.mark.parametrize("kind", ALLOCATORS)
@pytest.mark.parametrize("first", [1, 3, 16, 17])
@pytest.mark.parametrize("final", [17, 32, 33, 100])
def test_all_copies_together_are_fewer_than_twice_the_final_length(
    kind: type[SlotAllocator], first: int, final: int
):
    cache = ContiguousCache(kind(512), growing)
    cache.admit("a", first, final, 200)
    for _ in range(final - first):
        cache.append("a")
    assert cache.num_copied == sum(size for size in (1, 2, 4, 8, 16, 32, 64) if first <= size < final)
    assert cache.num_copied < 2 * final


def test_a_request_that_cannot_grow_keeps_its_piece():
    cache = ContiguousCache(BuddyAllocator(16), growing)
    cache.admit("a", 8, 12, 16)
    # The larger piece of 16 would be the whole pool, half of which is taken by the tokens to be copied.
    message = fails_unchanged(cache, OutOfSlotsError, cache.append, "a")
    assert message == "asked for a piece of 16 slots: 8 are free, the largest free piece has 8"
    assert cache.usage(16) == SlotUsage(tokens=8, reserved=0, internal=0, external=8, free=0)


@pytest.mark.parametrize("policy", [maximum, power_of_two, oracle])
def test_what_was_reserved_beforehand_is_never_copied(policy: Policy):
    cache = ContiguousCache(FirstFitAllocator(64), policy)
    piece = cache.admit("a", 3, 20, 40)
    assert {cache.append("a") for _ in range(17)} == {piece}
    assert cache.num_copied == 0


def test_what_makes_no_sense_is_refused():
    cache = ContiguousCache(BuddyAllocator(64), oracle)
    cache.admit("a", 3, 4, 8)
    message = fails_unchanged(cache, ValueError, cache.admit, "a", 1, 2, 3)
    assert message == "request 'a' has a piece already"
    for lengths in ((3, 2, 8), (3, 9, 8), (9, 9, 8)):
        message = fails_unchanged(cache, ValueError, cache.admit, "b", *lengths)
        assert message == "num_tokens <= final_length <= max_length must hold, got {}, {}, {}".format(
            *lengths
        )
    message = fails_unchanged(cache, ValueError, cache.admit, "b", 0, 2, 3)
    assert message == "num_tokens must be a positive integer, got 0"
    for call in (cache.append, cache.free):
        assert fails_unchanged(cache, ValueError, call, "b") == "request 'b' has no piece"

    cache.append("a")
    message = fails_unchanged(cache, ValueError, cache.append, "a")
    assert message == "request 'a' has its final_length of 4 tokens"
    cache.free("a")
    assert fails_unchanged(cache, ValueError, cache.free, "a") == "request 'a' has no piece"
    assert cache.allocator.free_pieces() == [(0, 64)]


def test_a_piece_is_where_the_allocator_put_it():
    cache = ContiguousCache(FirstFitAllocator(16), oracle)
    cache.admit("a", 2, 5, 16)
    cache.admit("b", 1, 7, 16)
    assert (cache.piece("a"), cache.piece("b")) == (Piece(0, 5), Piece(5, 7))
    cache.free("a")
    with pytest.raises(ValueError, match="request 'a' has no piece"):
        cache.piece("a")


def test_a_request_that_does_not_fit_takes_nothing():
    cache = ContiguousCache(BuddyAllocator(64), maximum)
    cache.admit("a", 1, 2, 40)  # rounded to 64
    message = fails_unchanged(cache, OutOfSlotsError, cache.admit, "b", 1, 1, 1)
    assert message == "asked for a piece of 1 slots: 0 are free, the largest free piece has 0"
    cache.free("a")
    assert cache.admit("b", 1, 1, 1) == (0, 1)


# ---------------------------------------------------------------- what becomes of every slot


def test_the_two_requests_of_figure_3():
    """Each holds its prompt and one generated token. The figure's numbers take ten slots for A's text, where
    it shows eleven words: 7 + 1 + 2 + 2038 = 2048 and, for B, 3 + 1 + 1 + 507 = 512."""
    cache = ContiguousCache(BuddyAllocator(4096), maximum)
    assert cache.admit("A", 7, 10, 2048) == (0, 2048)
    cache.append("A")
    assert cache.usage() == SlotUsage(tokens=8, reserved=2, internal=2038, external=0, free=2048)
    assert cache.admit("B", 3, 5, 512) == (2048, 512)
    cache.append("B")
    assert cache.usage() == SlotUsage(12, 2 + 1, 2038 + 507, 0, 1536)
    # Free are 512 slots and 1024 slots, side by side but no buddies. One like A finds no room in them.
    assert cache.usage(waiting_for=1024) == SlotUsage(12, 3, 2545, external=0, free=1536)
    assert cache.usage(waiting_for=1025) == SlotUsage(12, 3, 2545, external=1536, free=0)
    for name, num_more in (("A", 2), ("B", 1)):
        for _ in range(num_more):
            cache.append(name)
    assert cache.usage() == SlotUsage(10 + 5, 0, 2545, 0, 1536)


def test_the_pool_of_the_papers_13b_model_under_the_maximum():
    """12 GiB of 800 KiB a token (Table 1: 15.7K slots) serve 7 requests at once (Figure 13: 7.00); what is
    left is 8.9 % of the pool (Figure 2: external fragmentation and others)."""
    num_slots = 12 * 1024**3 // (800 * 1024)
    cache = ContiguousCache(BuddyAllocator(num_slots), maximum)
    with pytest.raises(OutOfSlotsError) as caught:
        for name in range(100):
            cache.admit(name, 160, 500, 2048)
    usage = cache.usage(caught.value.requested)
    assert usage == SlotUsage(7 * 160, 7 * 340, 7 * 1548, external=1392, free=0)
    assert f"{usage.external / num_slots:.1%}" == "8.9%"


@pytest.mark.parametrize(
    ("kind", "policy", "expected"),
    [
        # 100 tokens of 125, at most 300: what is reserved, and up to which power of two it is rounded.
        (BuddyAllocator, maximum, (100, 25, 175, 212, 0)),  # 300 of 512
        (BuddyAllocator, power_of_two, (100, 25, 7, 124, 256)),  # 132 of 256
        (BuddyAllocator, oracle, (100, 25, 0, 3, 384)),  # 125 of 128
        (BuddyAllocator, growing, (100, 25, 3, 0, 384)),  # 128, and it may use all of them
        (FirstFitAllocator, maximum, (100, 25, 175, 0, 212)),
        (FirstFitAllocator, power_of_two, (100, 25, 7, 0, 380)),
        (FirstFitAllocator, oracle, (100, 25, 0, 0, 387)),
        (FirstFitAllocator, growing, (100, 25, 3, 0, 384)),
    ],
)
def test_one_request_under_every_policy(
    kind: type[SlotAllocator], policy: Policy, expected: tuple[int, int, int, int, int]
):
    cache = ContiguousCache(kind(512), policy)
    cache.admit("a", 100, 125, 300)
    assert sum(expected) == 512
    assert cache.usage() == SlotUsage(*expected)


def test_growing_reserves_no_more_than_it_has_taken():
    cache = ContiguousCache(BuddyAllocator(64), growing)
    cache.admit("a", 5, 40, 64)
    assert cache.usage() == SlotUsage(tokens=5, reserved=3, internal=0, external=0, free=56)


def test_gaps_between_exact_pieces_are_external_fragmentation():
    cache = ContiguousCache(FirstFitAllocator(10), oracle)
    for name, length in (("a", 3), ("b", 3), ("c", 4)):
        cache.admit(name, 1, length, 10)
    cache.free("a")
    cache.free("c")
    message = fails_unchanged(cache, OutOfSlotsError, cache.admit, "d", 1, 5, 10)
    assert message == "asked for a piece of 5 slots: 7 are free, the largest free piece has 4"
    assert cache.usage(waiting_for=5) == SlotUsage(tokens=1, reserved=2, internal=0, external=7, free=0)
    assert cache.usage(waiting_for=4) == SlotUsage(tokens=1, reserved=2, internal=0, external=0, free=7)


def test_an_empty_pool_is_free():
    assert ContiguousCache(BuddyAllocator(13), maximum).usage() == SlotUsage(0, 0, 0, 0, 13)
    assert ContiguousCache(BuddyAllocator(13), maximum).usage(9) == SlotUsage(0, 0, 0, 13, 0)


requests = st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20))


@quick
@given(
    st.sampled_from(ALLOCATORS),
    st.sampled_from(POLICIES),
    st.integers(30, 200),
    st.lists(requests, min_size=1, max_size=12),
)
def test_every_slot_is_accounted_for_until_all_are_served(
    kind: type[SlotAllocator], policy: Policy, num_slots: int, wanted: list[tuple[int, int, int]]
):
    """First come, first served, one token a step; a request that can't grow is given up."""
    cache = ContiguousCache(kind(num_slots), policy)
    running: dict[int, tuple[int, int]] = {}
    waiting = list(enumerate(wanted))
    for _ in range(500):
        asked = 0
        while waiting and not asked:
            name, (first, more, beyond) = waiting[0]
            try:
                cache.admit(name, first, first + more, first + more + beyond)
            except OutOfSlotsError as error:
                asked = error.requested
            else:
                running[name] = (first, first + more)
                del waiting[0]
        usage = cache.usage(asked)
        assert sum(usage) == num_slots and min(usage) >= 0
        assert usage.tokens == sum(num_tokens for num_tokens, _ in running.values())
        assert usage.external + usage.free >= cache.allocator.num_free
        assert usage.free == (0 if asked else cache.allocator.num_free)
        if not running:
            break
        for name, (num_tokens, final) in list(running.items()):
            if num_tokens == final:
                cache.free(name)
                del running[name]
                continue
            try:
                cache.append(name)
            except OutOfSlotsError:
                cache.free(name)
                del running[name]
            else:
                running[name] = (num_tokens + 1, final)
    assert not running
    assert cache.allocator.num_free == num_slots
    assert cache.allocator.free_pieces() == kind(num_slots).free_pieces()


def test_a_policy_that_reserves_too_little_is_refused() -> None:
    cache = ContiguousCache(BuddyAllocator(16), lambda num_tokens, final_length, max_length: 1)
    with pytest.raises(ValueError, match="policy reserves 1 slots, the request has 5 tokens already"):
        cache.admit("a", 5, 8, 16)
    assert cache.allocator.num_free == 16


@pytest.mark.parametrize("lengths", [(1, 2.5, 4), (1.0, 2, 4), (1, 2, None), (1, 2, True)])
def test_a_length_that_is_no_integer_is_refused(lengths: tuple) -> None:
    with pytest.raises(ValueError, match="must be a positive integer"):
        ContiguousCache(BuddyAllocator(16), maximum).admit("a", *lengths)


def test_a_plain_tuple_is_no_piece() -> None:
    allocator = BuddyAllocator(16)
    allocator.allocate(4)
    with pytest.raises(TypeError, match="piece must be a Piece"):
        allocator.free((0, 4))  # type: ignore[arg-type]
    assert allocator.num_free == 12
