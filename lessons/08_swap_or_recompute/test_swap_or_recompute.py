"""Grades lesson 8: tables that move to the host and back, their counts, and what is in their blocks."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

from minipaged.course.checks import TensorItem, check, check_raises, check_true, only_for, trying
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.prefix_cache import PrefixCache
from minipaged.reference.prefix_chain import PrefixChain


def counts(pool: Any, number: int) -> list[int]:
    return [pool.reference_count(block) for block in range(number)]


def state(*pools: BlockAllocator) -> list[Any]:
    return [(pool.free_order(), counts(pool, pool.num_blocks)) for pool in pools]


def two_samples(device: BlockAllocator) -> list[list[int]]:
    """Two tables that share their first two blocks: [0, 1, 2] and [0, 1, 3]."""
    shared = device.allocate(2)
    device.share(shared)
    return [shared + device.allocate(1), shared + device.allocate(1)]


ONCE = "a block that both tables name is one block: it moves once, and is as shared there as it was here"
ORDER = (
    "blocks move in order of first appearance: neither sorted nor as a set happens to list them, "
    "so that a step's copies are the same whenever it is planned again"
)


ITEM = (
    "a tensor's item equals nothing but itself as a key of a dict or a set: take operator.index(block), an "
    "int"
)


def or_reversed(pairs: list[tuple[int, int]], why: str) -> Callable[[Any], str]:
    """The reason for wrong pairs: that they are turned round, or else `why`."""
    turned = [(second, first) for first, second in pairs]
    told = (
        "the pairs are turned round: a pair is (source, destination), (device block, host block) on the way "
        "out and (host block, device block) on the way in"
    )
    return lambda got: told if got == turned else why


def test_one_table_out(exercise: ModuleType) -> None:
    """Out: the table names host blocks, the pairs say what to copy, the device blocks are free."""
    device, host = BlockAllocator(4), BlockAllocator(4)
    table = device.allocate(2)
    host.allocate(1)  # somebody else's: device block 0 is not host block 0
    with trying("swap_out([[0, 1]]) to a host pool whose block 0 is taken"):
        pairs = exercise.swap_out([table], device, host)
    why = "the host pool hands out its own blocks: a device id means nothing there"
    want = [(0, 1), (1, 2)]
    check("pairs of swap_out([[0, 1]]), host block 0 taken", pairs, want, or_reversed(want, why))
    check(
        "the table after swap_out([[0, 1]])",
        table,
        [1, 2],
        "repoint the table in place: the caller holds this very list",
    )
    why = "the device blocks were not given up: they are what the swap is for"
    check("free device blocks after swap_out([[0, 1]])", device.num_free, 4, why)
    check(
        "host counts after swap_out([[0, 1]])",
        counts(host, 4),
        [1, 1, 1, 0],
        "each block has one user, the table",
    )


def test_shared_blocks_move_once(exercise: ModuleType) -> None:
    """Out: a block that several tables name moves once, and is as shared on the host."""
    device, host = BlockAllocator(6), BlockAllocator(6)
    tables = two_samples(device)
    with trying("swap_out([[0, 1, 2], [0, 1, 3]])"):
        pairs = exercise.swap_out(tables, device, host)
    check("pairs of swap_out([[0, 1, 2], [0, 1, 3]])", pairs, [(0, 0), (1, 1), (2, 2), (3, 3)], ONCE)
    check("the tables after swap_out([[0, 1, 2], [0, 1, 3]])", tables, [[0, 1, 2], [0, 1, 3]], ONCE)
    why = "counts are lost: a host block has as many users as tables name it"
    check("host counts after swap_out([[0, 1, 2], [0, 1, 3]])", counts(host, 6), [2, 2, 1, 1, 0, 0], why)
    check(
        "free device blocks after it", device.num_free, 6, "each table gives up its uses: 2 of blocks 0 and 1"
    )


def test_the_picture(exercise: ModuleType) -> None:
    """Out: the picture of the README, blocks in order of first appearance."""
    device, host = BlockAllocator(8), BlockAllocator(4)
    device.allocate(8)
    device.free([0, 2, 3, 6])
    device.share([4, 7])
    tables = [[4, 7, 1], [4, 7, 5]]
    why = "the tables have 6 entries and name 4 blocks: room is needed for blocks, not for entries"
    with trying("swap_out([[4, 7, 1], [4, 7, 5]]) to a host pool of 4", only_for(OutOfBlocksError, why)):
        pairs = exercise.swap_out(tables, device, host)
    check("pairs of swap_out([[4, 7, 1], [4, 7, 5]])", pairs, [(4, 0), (7, 1), (1, 2), (5, 3)], ORDER)
    check("the tables after swap_out([[4, 7, 1], [4, 7, 5]])", tables, [[0, 1, 2], [0, 1, 3]], ONCE)
    check("host counts after swap_out([[4, 7, 1], [4, 7, 5]])", counts(host, 4), [2, 2, 1, 1], ONCE)


def test_the_order_of_first_appearance(exercise: ModuleType) -> None:
    """Out and in: pairs are in the order in which the tables name the blocks, also where ids fall."""
    device, host = BlockAllocator(4), BlockAllocator(4)
    device.allocate(3)
    table = [2, 0]
    with trying("swap_out([[2, 0]])"):
        pairs = exercise.swap_out([table], device, host)
    check("pairs of swap_out([[2, 0]])", pairs, [(2, 0), (0, 1)], or_reversed([(2, 0), (0, 1)], ORDER))
    device, host = BlockAllocator(4), BlockAllocator(4)
    host.allocate(3)
    tables = [[2, 0], [1]]
    with trying("swap_in([[2, 0], [1]])"):
        pairs = exercise.swap_in(tables, device, host)
    want = [(2, 0), (0, 1), (1, 2)]
    check("pairs of swap_in([[2, 0], [1]])", pairs, want, or_reversed(want, ORDER))
    check("the tables after swap_in([[2, 0], [1]])", tables, [[0, 1], [2]], ORDER)


def test_blocks_that_others_name_stay(exercise: ModuleType) -> None:
    """Out: a block that another request names as well is copied, and stays on the device for that one."""
    device, host = BlockAllocator(4), BlockAllocator(4)
    table = device.allocate(2)
    device.share([0])  # another request's table names block 0 too
    with trying("swap_out([[0, 1]]) where another request names block 0"):
        pairs = exercise.swap_out([table], device, host)
    check(
        "pairs of swap_out([[0, 1]]), 0 shared with another request",
        pairs,
        [(0, 0), (1, 1)],
        "it is copied all the same",
    )
    why = (
        "host counts come from these tables: each block has one entry here, and the other request's entry "
        "stays on the device"
    )
    check("host counts after swap_out([[0, 1]]), 0 shared", counts(host, 4), [1, 1, 0, 0], why)
    why = "the other request still reads block 0: give up one use, not the block"
    check("device counts after swap_out([[0, 1]]), 0 shared", counts(device, 4), [1, 0, 0, 0], why)


def test_the_tail_is_given_up_before_the_head(exercise: ModuleType) -> None:
    """Out: blocks that stay findable on the device are evicted from the tail of the table on."""
    device, host = PrefixCache(BlockAllocator(4)), BlockAllocator(4)
    table = device.allocate(3)
    device.publish(PrefixChain(list(range(12)), 4), table, 0, 3)
    tried = "swap_out([[0, 1, 2]]), whose blocks are findable by their prefix"
    with trying(tried):
        exercise.swap_out([table], device, host)
    got = device.cached_blocks
    why = "the device blocks were not given up: they are what the swap is for"
    if sorted(got) == [0, 1, 2]:
        why = (
            "the head is evicted before the tail, and without its head no tail is found. `free` begins with "
            "the last block: give it the whole table as it is, in one call"
        )
    check(f"cached device blocks, next to be evicted first, after {tried}", got, [2, 1, 0], why)


def test_there_and_back(exercise: ModuleType) -> None:
    """In: the way back of out, with tables, counts and sharing as they were, and an empty host pool."""
    device, host = BlockAllocator(6), BlockAllocator(6)
    tables = two_samples(device)
    with trying("swap_out and swap_in of [[0, 1, 2], [0, 1, 3]], a device block taken meanwhile"):
        exercise.swap_out(tables, device, host)
        (taken,) = device.allocate(1)
        pairs = exercise.swap_in(tables, device, host)
    check("host blocks that swap_in copies", [pair[0] for pair in pairs], [0, 1, 2, 3], ONCE)
    new = dict(pairs)
    check("the tables after swap_in", tables, [[new[0], new[1], new[2]], [new[0], new[1], new[3]]], ONCE)
    different = len({taken, *new.values()}) == 5
    check_true("device blocks of swap_in", different, "4 new ones", str(pairs), "none is taken twice")
    users = [device.reference_count(new[block]) for block in range(4)]
    check("counts of the new device blocks", users, [2, 2, 1, 1], "counts are lost in the round trip")
    check(
        "free host blocks after swap_in", host.num_free, 6, "the host blocks were not given back: they leak"
    )


def test_all_or_nothing(exercise: ModuleType) -> None:
    """Where blocks are missing nothing changes, neither tables nor counts nor free blocks, on either side."""
    device, host = BlockAllocator(6), BlockAllocator(3)
    tables = two_samples(device)
    before = state(device, host)
    why = "the host pool has 3 blocks, 4 are needed: say so, and let the scheduler recompute instead"
    call = lambda: exercise.swap_out(tables, device, host)  # noqa: E731
    error: Any = check_raises("swap_out of 4 blocks to a host pool of 3", OutOfBlocksError, call, why)
    kept = "a part was moved before the pool ran out: ask for room first, all or nothing"
    check("the tables after the refused swap_out", tables, [[0, 1, 2], [0, 1, 3]], kept)
    check(
        "free blocks and counts of both pools after the refused swap_out", state(device, host), before, kept
    )
    check(
        "`requested` and `available` of the error",
        (error.requested, error.available),
        (4, 3),
        "4 needed, 3 there",
    )
    device, host = BlockAllocator(4), BlockAllocator(4)
    table = device.allocate(3)
    host.allocate(2)  # somebody else's
    why = "the host pool has 4 blocks, but others hold some of them: count those it can still hand out"
    call = lambda: exercise.swap_out([table], device, host)  # noqa: E731
    tried = "swap_out of 3 blocks to a host pool of 4 with 2 taken"
    error = check_raises(tried, OutOfBlocksError, call, why)
    got = (error.requested, error.available)
    check(f"`requested` and `available` of the error of {tried}", got, (3, 2), why)
    host.allocate(1)
    tried = "swap_out of 3 blocks to a host pool of 4 with 3 taken"
    error = check_raises(tried, OutOfBlocksError, call, why)
    got = (error.requested, error.available)
    check(f"`requested` and `available` of the error of {tried}", got, (3, 1), why)
    device, host = BlockAllocator(4), BlockAllocator(4)
    tables = two_samples(device)
    with trying("swap_out of 4 blocks to a host pool of 4"):
        exercise.swap_out(tables, device, host)
    device.allocate(1)
    before = state(device, host)
    call = lambda: exercise.swap_in(tables, device, host)  # noqa: E731
    check_raises(
        "swap_in of 4 blocks with 3 free", OutOfBlocksError, call, "3 device blocks are free, 4 are needed"
    )
    check("the tables after the refused swap_in", tables, [[0, 1, 2], [0, 1, 3]], kept)
    check("free blocks and counts of both pools after the refused swap_in", state(device, host), before, kept)


EARLY = "the old blocks were given up before the other pool had its say: give them up last"
SAME = (
    "one list given twice would be repointed twice: the second time its ids are those of the other pool. "
    "Counts don't show it, the same list object does: _count_users refuses it"
)


def test_what_is_no_group(exercise: ModuleType) -> None:
    """A table given twice, or blocks that are not in use as often as named, are refused; nothing changes."""
    for name, make in (
        ("the same table twice", lambda table: [table, table]),
        ("a block named twice with one user", lambda table: [table, list(table)]),
        ("a block that is free", lambda table: [[*table, 3]]),
    ):
        device, host = BlockAllocator(4), BlockAllocator(8)
        tables = make(device.allocate(2))
        before = state(device, host)
        why = "_count_users refuses such tables: ask it first"
        check_raises(
            f"swap_out with {name}",
            ValueError,
            lambda t=tables, d=device, h=host: exercise.swap_out(t, d, h),
            why,
        )  # fmt: skip
        check(
            f"free blocks and counts after the refused swap_out with {name}", state(device, host), before, why
        )
    device, host = BlockAllocator(4), BlockAllocator(8)
    table = device.allocate(2)
    device.share(table)  # the counts would allow two tables
    check_raises(
        "swap_out with the same table twice, its blocks having two users",
        ValueError, lambda: exercise.swap_out([table, table], device, host), SAME,
    )  # fmt: skip
    now = (table, counts(device, 4), host.num_free)
    check("the table and the counts after that refusal", now, ([0, 1], [2, 2, 0, 0], 8), SAME)
    device, host = BlockAllocator(4), BlockAllocator(4)
    why = "no table, and a table without blocks, are normal cases: nothing moves, and the answer is []"
    with trying("swap_out([]) and swap_out([[]])", only_for((ValueError, IndexError, KeyError), why)):
        check("swap_out([])", exercise.swap_out([], device, host), [], why)
        check("swap_out([[]])", exercise.swap_out([[]], device, host), [], why)
    with trying("swap_in([]) and swap_in([[]])", only_for((ValueError, IndexError, KeyError), why)):
        check("swap_in([])", exercise.swap_in([], device, host), [], why)
        check("swap_in([[]])", exercise.swap_in([[]], device, host), [], why)
    tables = [[], device.allocate(1)]
    with trying(
        "swap_out([[], [0]]), one table without blocks", only_for((ValueError, IndexError, KeyError), why)
    ):
        check("swap_out([[], [0]])", exercise.swap_out(tables, device, host), [(0, 0)], "block 0 moves")


def test_resident_blocks_are_not_copied(exercise: ModuleType) -> None:
    """In: a block that is still on the device is shared and not copied; it needs no new block."""
    device, host = BlockAllocator(6), BlockAllocator(6)
    tables = two_samples(device)
    device.share([0, 1])  # another request names the shared part too, so it stays
    why = "`resident` may list host blocks of other requests, here 9: look up only what the tables name"
    with trying("swap_in with resident={0: 0, 1: 1, 9: 5}", only_for((LookupError, ValueError), why)):
        exercise.swap_out(tables, device, host)
        pairs = exercise.swap_in(tables, device, host, {0: 0, 1: 1, 9: 5})
    why = "resident blocks hold the content already: copying them again is work for nothing"
    check("host blocks that swap_in copies with 0 and 1 resident", [pair[0] for pair in pairs], [2, 3], why)
    new = dict(pairs)
    check("the tables after swap_in with 0 and 1 resident", tables, [[0, 1, new[2]], [0, 1, new[3]]], why)
    why = "both tables use the resident blocks, and so does the other request: 3 users"
    check("device counts after swap_in with 0 and 1 resident", counts(device, 6), [3, 3, 1, 1, 0, 0], why)
    why = "the host's copy of a resident block must be given back, too"
    check("free host blocks after swap_in with 0 and 1 resident", host.num_free, 6, why)
    device, host = BlockAllocator(4), BlockAllocator(4)
    tables = two_samples(device)
    device.share([0, 1, 2, 3])
    why = "all 4 blocks are in use on the device already: none is needed, and none was there to be handed out"
    with trying("swap_in where all blocks are resident and none is free", only_for(OutOfBlocksError, why)):
        exercise.swap_out(tables, device, host)
        pairs = exercise.swap_in(tables, device, host, {0: 0, 1: 1, 2: 2, 3: 3})
    check(
        "pairs of swap_in with all blocks resident", pairs, [], "nothing is missing: no new block is needed"
    )
    why = "a resident block gets one more user for each entry that names it, like any other: share it"
    check("device counts after swap_in with all blocks resident", counts(device, 4), [3, 3, 2, 2], why)


def cached(num_blocks: int) -> tuple[PrefixCache, list[int]]:
    """A cache with `num_blocks` blocks, two of them findable and used by nobody."""
    cache = PrefixCache(BlockAllocator(num_blocks))
    blocks = cache.allocate(2)
    cache.publish(PrefixChain(list(range(8)), 4), blocks, 0, 2)
    cache.free(blocks)
    return cache, blocks


def test_a_cached_block_that_is_used_cannot_be_handed_out(exercise: ModuleType) -> None:
    """In: resident blocks that nobody uses are counted as available, until they are used as they are."""
    for num_blocks, room in ((4, True), (3, False)):
        cache, blocks = cached(num_blocks)
        host = BlockAllocator(6)
        table = host.allocate(4)
        resident = dict(zip(table, blocks, strict=False))
        before = (state(host), counts(cache, num_blocks), cache.num_available)
        tried = f"swap_in of 4 blocks, 2 resident and cached, in a pool of {num_blocks}"
        evicted = "a resident block was handed out as new: use what is there before `allocate` evicts it"
        if room:
            with trying(tried, only_for(OutOfBlocksError, "2 blocks are resident, 2 are free: they suffice")):
                pairs = exercise.swap_in([table], cache, host, resident)
            check(f"how many pairs has {tried}", len(pairs), 2, evicted)
            check(f"the first two blocks after {tried}", table[:2], blocks, evicted)
            check_true(
                f"the table after {tried}", len(set(table)) == 4, "4 different blocks", str(table), evicted
            )
        else:
            why = "2 cached blocks are used, so 1 is left and 2 are needed: they were counted as available"
            call = lambda t=table, c=cache, h=host, r=resident: exercise.swap_in([t], c, h, r)  # noqa: E731
            error: Any = check_raises(tried, OutOfBlocksError, call, why)
            check(f"`available` of the error of {tried}", (error.requested, error.available), (2, 1), why)
            now = (state(host), counts(cache, num_blocks), cache.num_available)
            check(
                f"both pools after the refused {tried}",
                now,
                before,
                "all or nothing: count first, then share",
            )


def test_a_refusal_leaves_the_order_of_eviction(exercise: ModuleType) -> None:
    """In: a refused swap_in doesn't touch cached blocks, not even to share them and give them up again."""
    cache, blocks = cached(5)
    young = cache.allocate(1)
    cache.publish(PrefixChain([50, 51, 52, 53], 4), young, 0, 1)
    cache.free(young)
    host = BlockAllocator(6)
    table = host.allocate(6)
    resident = dict(zip(table, blocks, strict=False))
    tried = "swap_in of 6 blocks, 2 resident and cached, 1 cached, 2 free"
    why = "5 blocks are available, 2 of them are used as they are: 3 are left, 4 are needed"
    call = lambda: exercise.swap_in([table], cache, host, resident)  # noqa: E731
    error: Any = check_raises(tried, OutOfBlocksError, call, why)
    check(
        f"`requested` and `available` of the error of {tried}",
        (error.requested, error.available),
        (4, 3),
        why,
    )
    why = (
        "the resident blocks were shared before `allocate` refused, and given up again: by that they became "
        "the last to be evicted. Count first, and touch nothing where the blocks don't suffice"
    )
    check(
        f"cached blocks, next to be evicted first, after the refused {tried}",
        cache.cached_blocks,
        [1, 0, 2],
        why,
    )


def test_what_is_used_is_not_evicted(exercise: ModuleType) -> None:
    """In: resident blocks are shared first, so that `allocate` evicts others, even younger ones."""
    cache, blocks = cached(3)
    young = cache.allocate(1)
    cache.publish(PrefixChain([50, 51, 52, 53], 4), young, 0, 1)
    cache.free(young)  # no block is free, all 3 are cached: the resident ones would be evicted first
    host = BlockAllocator(3)
    table = host.allocate(3)
    resident = dict(zip(table, blocks, strict=False))
    tried = "swap_in of 3 blocks, 2 resident and cached, a younger one cached, none free"
    why = "a resident block was handed out as new: use what is there before `allocate` evicts it"
    with trying(tried, only_for((ValueError, OutOfBlocksError), why)):
        pairs = exercise.swap_in([table], cache, host, resident)
    check(f"the table after {tried}", table, [*blocks, *young], why)
    check(f"pairs of {tried}", pairs, [(2, young[0])], why)


def test_two_host_blocks_in_one_resident_block(exercise: ModuleType) -> None:
    """In: two host blocks with the same content may be resident as one block, which then has two users."""
    cache, (block, other) = cached(4)
    cache.share([other])  # in use, by somebody else
    host = BlockAllocator(4)
    tables = [host.allocate(2), host.allocate(2)]
    tried = "swap_in([[0, 1], [2, 3]]) with 0 and 2 resident in one cached block, and 2 blocks free"
    why = "the cached block is used by both: it is one block fewer to hand out, not two, and has two users"
    with trying(tried, only_for(OutOfBlocksError, why)):
        pairs = exercise.swap_in(tables, cache, host, {0: block, 2: block})
    check(f"host blocks copied by {tried}", [pair[0] for pair in pairs], [1, 3], why)
    check(f"the first block of both tables after {tried}", [t[0] for t in tables], [block, block], why)
    check(f"the count of the resident block after {tried}", cache.reference_count(block), 2, why)


def test_what_is_resident_for_others(exercise: ModuleType) -> None:
    """In: `resident` may speak of host blocks that are in none of these tables; it is only read."""
    cache, blocks = cached(2)
    host = BlockAllocator(4)
    table = host.allocate(2)
    resident = {0: blocks[0], 3: blocks[1]}  # host block 3 is another group's
    tried = "swap_in([[0, 1]]) with resident={0: 0, 3: 1}, in a pool of 2, both blocks cached"
    why = "host block 3 is in none of these tables: device block 1 may be handed out, to host block 1"
    with trying(tried, only_for((OutOfBlocksError, KeyError), why)):
        pairs = exercise.swap_in([table], cache, host, resident)
    check(f"pairs of {tried}", pairs, [(1, 1)], why)
    check(f"device counts after {tried}", counts(cache, 2), [1, 1], why)
    check(f"`resident` after {tried}", resident, {0: 0, 3: 1}, "the caller's dictionary is only read")


def test_what_the_allocator_does_not_hand_out(exercise: ModuleType) -> None:
    """In: where `can_reuse` is False a resident block was never available, and using it costs nothing."""
    device, host = BlockAllocator(3), BlockAllocator(3)
    device.allocate(1)
    device.retain(0)
    device.free([0])  # used by nobody, kept all the same: 2 blocks are available
    table = host.allocate(3)
    tried = "swap_in([[0, 1, 2]]) with 0 resident in a block that can't be reused, and 2 blocks free"
    why = "`num_available` never counted that block: only one that can_reuse leaves it when it is used"
    with trying(tried, only_for(OutOfBlocksError, why)):
        pairs = exercise.swap_in([table], device, host, {0: 0})
    check(f"host blocks copied by {tried}", [pair[0] for pair in pairs], [1, 2], why)
    check(f"device counts after {tried}", counts(device, 3), [1, 1, 1], why)


def test_what_is_no_group_on_the_host(exercise: ModuleType) -> None:
    """`swap_in` refuses what `swap_out` refuses, and a resident block that is free; nothing changes."""
    for name, make, resident in (
        ("the same table twice", lambda table: [table, table], {}),
        ("a block named twice with one user", lambda table: [table, list(table)], {}),
        ("a host block that is free", lambda table: [[*table, 3]], {}),
        ("resident={0: 2}, where device block 2 is free", lambda table: [table], {0: 2}),
        ("resident={0: 1}, where device block 1 is the next to be handed out", lambda table: [table], {0: 1}),
        ("resident={0: 0, 1: 2}, where 0 is in use and 2 is free", lambda table: [table], {0: 0, 1: 2}),
    ):
        device, host = BlockAllocator(8), BlockAllocator(4)
        device.allocate(1)
        tables = make(host.allocate(2))
        names, before = [list(table) for table in tables], state(device, host)
        why = "the way back has the same promises as the way out: look at all of it before anything changes"
        call = lambda t=tables, d=device, h=host, r=resident: exercise.swap_in(t, d, h, r)  # noqa: E731
        check_raises(f"swap_in with {name}", ValueError, call, why)
        if resident and host.num_free > 2:
            why = EARLY
        if len(resident) == 2 and counts(device, 1) != [1]:
            why = "block 0 was shared before block 2 was refused: share all resident blocks in one call"
        now = (tables, state(device, host))
        check(
            f"tables, free blocks and counts after the refused swap_in with {name}", now, (names, before), why
        )
    device, host = BlockAllocator(8), BlockAllocator(4)
    table = host.allocate(2)
    host.share(table)
    check_raises(
        "swap_in with the same table twice, its blocks having two users",
        ValueError, lambda: exercise.swap_in([table, table], device, host), SAME,
    )  # fmt: skip
    check("the table and the counts after that", (table, counts(host, 4)), ([0, 1], [2, 2, 0, 0]), SAME)


def test_an_allocation_that_fails_after_all(exercise: ModuleType) -> None:
    """Out and in: when `allocate` itself raises, nothing is given up and nothing stays shared."""

    def fail(num_blocks: int = 1) -> list[int]:
        raise MemoryError

    why = "the error of `allocate` must reach the caller"
    device, host = BlockAllocator(4), BlockAllocator(4)
    tables = two_samples(device)
    before = state(device)
    host.allocate = fail  # type: ignore[method-assign]
    call = lambda: exercise.swap_out(tables, device, host)  # noqa: E731
    check_raises("swap_out where `allocate` raises MemoryError", MemoryError, call, why)
    check("the tables after that", tables, [[0, 1, 2], [0, 1, 3]], EARLY)
    check("free device blocks and counts after that", state(device), before, EARLY)

    cache, blocks = cached(6)
    host = BlockAllocator(4)
    tables = two_samples(host)
    before = state(host)
    cache.allocate = fail  # type: ignore[method-assign]
    resident = dict(zip([0, 1], blocks, strict=True))
    call = lambda: exercise.swap_in(tables, cache, host, resident)  # noqa: E731
    tried = "swap_in where `allocate` raises MemoryError, two blocks resident"
    check_raises(tried, MemoryError, call, why)
    check(f"the tables after {tried}", tables, [[0, 1, 2], [0, 1, 3]], EARLY)
    check(f"free host blocks and counts after {tried}", state(host), before, EARLY)
    why = (
        "resident blocks were shared and kept: a leak, undo it where anything raises. Two tables name each, "
        "so two uses of each are to be given up"
    )
    check(f"device counts after {tried}", counts(cache, 6), [0] * 6, why)


def test_a_table_that_names_a_block_twice(exercise: ModuleType) -> None:
    """Out and in: a count is the number of entries, also where one table has two of them."""
    device, host = BlockAllocator(4), BlockAllocator(4)
    table = [*device.allocate(2), 0]
    device.share([0])
    why = "a block has one user once for each entry that names it, be the entries in one table or in several"
    with trying("swap_out([[0, 1, 0]]), block 0 having two users", only_for(ValueError, why)):
        pairs = exercise.swap_out([table], device, host)
    check("pairs of swap_out([[0, 1, 0]])", pairs, [(0, 0), (1, 1)], ONCE)
    check("the table after swap_out([[0, 1, 0]])", table, [0, 1, 0], ONCE)
    check("host counts after swap_out([[0, 1, 0]])", counts(host, 4), [2, 1, 0, 0], why)
    with trying(
        "swap_in([[0, 1, 0]]) with 0 resident in a block of another request", only_for(ValueError, why)
    ):
        (other,) = device.allocate(1)
        exercise.swap_in([table], device, host, {0: other})
    check("device counts after swap_in([[0, 1, 0]]) with 0 resident", counts(device, 4), [3, 1, 0, 0], why)


def kinds(table: list[Any]) -> list[str]:
    """The names of the types of a table's entries."""
    return [type(block).__name__ for block in table]


def test_ids_of_another_type(exercise: ModuleType) -> None:
    """Out and in: a table may hold a tensor's items, and names plain integers afterwards."""
    device, host = BlockAllocator(4), BlockAllocator(4)
    device.allocate(2)
    table: list[Any] = [TensorItem(0), TensorItem(1)]
    with trying(
        "swap_out of a table of a tensor's items 0 and 1", only_for((ValueError, KeyError, TypeError), ITEM)
    ):
        pairs = exercise.swap_out([table], device, host)
    check("pairs of swap_out of a tensor's items 0 and 1", pairs, [(0, 0), (1, 1)], ITEM)
    check("the table after it", table, [0, 1], ITEM)
    check("the types of its entries", kinds(table), ["int", "int"], ITEM)
    table = [TensorItem(0), TensorItem(1)]
    with trying(
        "swap_in of a table of a tensor's items 0 and 1", only_for((ValueError, KeyError, TypeError), ITEM)
    ):
        pairs = exercise.swap_in([table], device, host)
    check("pairs of swap_in of a tensor's items 0 and 1", pairs, [(0, 0), (1, 1)], ITEM)
    check("the table after swap_in of a tensor's items", table, [0, 1], ITEM)
    check("the types of its entries then", kinds(table), ["int", "int"], ITEM)
    device, host = BlockAllocator(4), BlockAllocator(4)
    device.allocate(2)
    host.allocate(2)
    table = [0, 1]
    with trying("swap_in of a table whose block 0 is resident in a tensor's item 1"):
        pairs = exercise.swap_in([table], device, host, {0: TensorItem(1)})
    why = f"the device blocks in `resident` are block ids too. {ITEM}"
    check("the table after swap_in with a tensor's item in `resident`", table, [1, 2], why)
    check("the types of its entries then", kinds(table), ["int", "int"], why)
    check("its pairs", pairs, [(1, 2)], why)


def test_swap_blocks_copies_content(exercise: ModuleType) -> None:
    """`swap_blocks` copies what is in the blocks, so that later writes to the source don't show."""
    device = [[float(block), [block]] for block in range(4)]
    host: list[Any] = [[0.5, [50]], [0.5, [51]], [0.5, [52]]]
    sources, destinations = [3, 1], [0, 2]
    why = "sources are blocks of the first pool, destinations of the second: each has its own length"
    with trying("swap_blocks(device, host, [3, 1], [0, 2])", only_for((ValueError, IndexError), why)):
        exercise.swap_blocks(device, host, sources, destinations)
    check(
        "the host pool after swap_blocks(device, host, [3, 1], [0, 2])",
        host,
        [[3.0, [3]], [0.5, [51]], [1.0, [1]]],
        "host[0] = device[3], host[2] = device[1], and no other block changes",
    )
    check(
        "the device pool after swap_blocks(device, host, [3, 1], [0, 2])",
        device,
        [[0.0, [0]], [1.0, [1]], [2.0, [2]], [3.0, [3]]],
        "the source is only read: other requests may still use its blocks",
    )
    check("sources and destinations afterwards", (sources, destinations), ([3, 1], [0, 2]), "they are read")
    device[3][1].append(99)  # type: ignore[union-attr]
    device[1][0] = -1.0
    why = "the same list, not a copy: the device block will be written by somebody else, copy the content"
    check(
        "the host pool after the device blocks were overwritten",
        host,
        [[3.0, [3]], [0.5, [51]], [1.0, [1]]],
        why,
    )
    with trying(
        "swap_blocks(device, host, [0, 0], [2, 1])",
        only_for(ValueError, "one source may serve several destinations"),
    ):
        exercise.swap_blocks(device, host, [0, 0], [2, 1])
    check(
        "the host pool after swap_blocks(device, host, [0, 0], [2, 1])",
        host,
        [[3.0, [3]], [0.0, [0]], [0.0, [0]]],
        "one source, two copies",
    )
    host[1][1].append(7)
    check("host[2] after a write to host[1]", host[2], [0.0, [0]], "two copies of one source are two blocks")
    many, copies = [[block] for block in range(100)], [[-1] for _ in range(100)]
    why = "all pairs are copied, however many there are"
    equal = "block 3 of one pool is not block 3 of the other: an id may be a source and a destination"
    with trying("swap_blocks of 100 blocks", only_for(ValueError, equal)):
        exercise.swap_blocks(many, copies, list(range(100)), list(range(99, -1, -1)))
    got = sum(copies[99 - block] == [block] for block in range(100))
    check("how many blocks swap_blocks of 100 pairs has copied", got, 100, why)
    small, large = [["a"], ["b"]], [["x"], ["x"], ["x"], ["x"], ["x"], ["x"]]
    why = "destinations are blocks of the second pool, whose size may be another: compare with its length"
    with trying(
        "swap_blocks from a pool of 2 to a pool of 6, [0] to [5]", only_for((ValueError, IndexError), why)
    ):
        exercise.swap_blocks(small, large, [0], [5])
    check("block 5 of the pool of 6 after that", large, [["x"]] * 5 + [["a"]], why)
    device, host = [["a"], ["b"]], [["a"], ["b"]]
    why = "two pools with equal content are two pools: tell them apart with `is`, not with =="
    with trying(
        "swap_blocks(device, host, [0], [1]), both pools with equal content", only_for(ValueError, why)
    ):
        exercise.swap_blocks(device, host, [0], [1])
    check("the host pool after that, both with equal content before", host, [["a"], ["a"]], why)
    device, host = [["a"], ["b"], ["c"]], [["x"], ["y"], ["z"]]
    why = "block 1 of one pool is not block 1 of the other: equal ids are no clash, and no copy onto itself"
    with trying("swap_blocks(device, host, [1, 0, 2], [0, 1, 2])", only_for(ValueError, why)):
        exercise.swap_blocks(device, host, [1, 0, 2], [0, 1, 2])
    check(
        "the host pool after swap_blocks(device, host, [1, 0, 2], [0, 1, 2])",
        host,
        [["b"], ["a"], ["c"]],
        why,
    )


def test_swap_blocks_refuses(exercise: ModuleType) -> None:
    """`swap_blocks` refuses what is no set of copies between two pools, and copies nothing then."""
    for name, sources, destinations in (
        ("two sources and one destination", [0, 1], [0]),
        ("one source and two destinations", [0], [0, 1]),
        ("a source beyond the pool", [0, 4], [0, 1]),
        ("a source far beyond the pool", [0, 9], [0, 1]),
        ("a source below 0", [0, -1], [0, 1]),
        ("a destination beyond the pool", [0, 1], [0, 3]),
        ("a destination below 0", [0, 1], [0, -1]),
        ("a destination twice", [0, 1], [2, 2]),
    ):
        device, host = [[block] for block in range(4)], [["x"], ["y"], ["z"]]
        why = "check all ids before the first copy; Python reads -1 as the last block"
        if name == "a destination twice":
            why = "a launch copies all pairs at once, and two would write one block: none may be twice"
        elif len(sources) != len(destinations):
            why = "each source needs its destination: zip() drops what is left over, so compare the lengths"
        check_raises(
            f"swap_blocks with {name}", ValueError,
            lambda d=device, h=host, s=sources, t=destinations: exercise.swap_blocks(d, h, s, t), why,
        )  # fmt: skip
        check(f"the host pool after the refused swap_blocks with {name}", host, [["x"], ["y"], ["z"]], why)
    device, host = [[block] for block in range(4)], [["x"], ["y"], ["z"]]
    tried = "swap_blocks with a destination twice, the ids being a tensor's items 2 and 2"
    sources, twice = [TensorItem(0), TensorItem(1)], [TensorItem(2), TensorItem(2)]
    call = lambda: exercise.swap_blocks(device, host, sources, twice)  # noqa: E731
    check_raises(tried, ValueError, call, ITEM)
    check(f"the host pool after the refused {tried}", host, [["x"], ["y"], ["z"]], ITEM)
    tried = "swap_blocks(device, host, [0, 1.5], [0, 1])"
    why = "1.5 is no block, and int() rounds it: operator.index raises TypeError, before the first copy"
    call = lambda: exercise.swap_blocks(device, host, [0, 1.5], [0, 1])  # noqa: E731
    check_raises(tried, TypeError, call, why)
    check(f"the host pool after the refused {tried}", host, [["x"], ["y"], ["z"]], why)
    pool = [[0], [1]]
    why = "within one pool a copy may read what another writes: that is copy_blocks' task"
    check_raises(
        "swap_blocks(pool, pool, [0], [1])",
        ValueError,
        lambda: exercise.swap_blocks(pool, pool, [0], [1]),
        why,
    )
    with trying(
        "swap_blocks(device, host, [], [])", only_for((ValueError, IndexError), "nothing to copy is no error")
    ):
        exercise.swap_blocks([[0]], [[1]], [], [])


def test_round_trips_with_content(exercise: ModuleType) -> None:
    """Whatever is shared, and whoever moves: every table still reads its own tokens."""
    for seed in range(20):
        chance = random.Random(seed)
        device, host = BlockAllocator(16), BlockAllocator(16)
        memory = {place: [[""] for _ in range(16)] for place in ("device", "host")}
        groups: list[list[list[int]]] = []
        wanted: list[list[list[str]]] = []
        for number in range(2):
            shared = device.allocate(chance.randint(1, 2))
            tables = []
            for _ in range(chance.randint(1, 3)):
                device.share(shared)
                tables.append(shared + device.allocate(chance.randint(0, 1)))
            device.free(shared)
            for index, table in enumerate(tables):
                for place, block in enumerate(table):
                    memory["device"][block] = [f"{number}.{index if block not in shared else '*'}.{place}"]
            groups.append(tables)
            wanted.append([[memory["device"][b][0] for b in table] for table in tables])
        with trying(f"30 swaps of two groups, number {seed}"):
            where = ["device", "device"]
            for _ in range(30):
                number = chance.randrange(2)
                if where[number] == "device":
                    pairs = exercise.swap_out(groups[number], device, host)
                    exercise.swap_blocks(
                        memory["device"], memory["host"], [a for a, _ in pairs], [b for _, b in pairs]
                    )
                    where[number] = "host"
                else:
                    pairs = exercise.swap_in(groups[number], device, host)
                    exercise.swap_blocks(
                        memory["host"], memory["device"], [a for a, _ in pairs], [b for _, b in pairs]
                    )
                    where[number] = "device"
                for each in range(2):
                    read = [[memory[where[each]][b][0] for b in table] for table in groups[each]]
                    check(
                        f"what group {each} reads after a swap, number {seed}",
                        read,
                        wanted[each],
                        "a table reads another's tokens",
                    )
        used = sum(len({b for table in group for b in table}) for group in groups)
        total = device.num_in_use + host.num_in_use
        check(
            f"blocks in use in both pools, number {seed}",
            total,
            used,
            "blocks leak, or shared blocks were duplicated",
        )
