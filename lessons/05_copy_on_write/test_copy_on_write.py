"""Grades lesson 5. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import chain, pairwise, product
from random import Random
from types import ModuleType
from typing import Any

from minipaged.course.checks import check, check_raises, check_true, only_for, trying
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError

Pair = tuple[int, int]


class Watched(BlockAllocator):
    """The allocator of lesson 3, which also notes whether it was called."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.calls: list[str] = []

    def allocate(self, num_blocks: int = 1) -> list[int]:
        self.calls.append(f"allocate({num_blocks})")
        return super().allocate(num_blocks)

    def free(self, blocks: Any) -> list[int]:
        self.calls.append(f"free({list(blocks)})")
        return super().free(blocks)


def sharing(num_blocks: int, length: int, users: int) -> tuple[Watched, list[list[int]]]:
    """A pool in which `users` tables name blocks 0 to length - 1, and these tables."""
    allocator = Watched(num_blocks)
    table = allocator.allocate(length)
    for _ in range(users - 1):
        allocator.share(table)
    allocator.calls.clear()
    return allocator, [list(table) for _ in range(users)]


def counts(allocator: BlockAllocator) -> list[int]:
    return [allocator.reference_count(block) for block in range(allocator.num_blocks)]


# ---- copy_on_write ----------------------------------------------------------------------------------------


def test_a_block_of_ones_own_is_not_copied(exercise: ModuleType) -> None:
    """A block with one user is written to as it is: no copy, no new block."""
    allocator, (table,) = sharing(3, 2, users=1)
    why = (
        "one user: the block is the writer's own, so nothing is to be copied. Compare the count with 1, not 0"
    )
    for index in (0, 1):
        tried = f"copy_on_write([0, 1], {index}), where each block has one user"
        with trying(tried):
            check(tried, exercise.copy_on_write(table, index, allocator), None, why)
        check(f"the table after {tried}", table, [0, 1], why)
        check(f"all counts after {tried}", counts(allocator), [1, 1, 0], why)
        check(f"what {tried} asked of the allocator", allocator.calls, [], _count_first)


def _count_first(got: Any) -> str:
    return "ask for the count first: a block that is taken and given back may not even be there to take"


def test_a_shared_block_is_copied(exercise: ModuleType) -> None:
    """A block with two users: the writer gets a new one, and the other keeps the old one for itself."""
    allocator, (writer, other) = sharing(4, 1, users=2)
    tried = "copy_on_write([0], 0), where block 0 has two users and block 1 is on top of the free stack"
    with trying(tried):
        pair = exercise.copy_on_write(writer, 0, allocator)
    check(tried, pair, (0, 1), _wrong_pair)
    why = (
        "the entry was not repointed: the writer would go on writing into the block that the other one reads"
    )
    check(f"the writer's table after {tried}", writer, [1], why)
    check(f"the other table after {tried}", other, [0], "only the writer's table changes")
    check(f"all counts after {tried}", counts(allocator), [1, 1, 0, 0], _wrong_counts)
    check(
        f"the free blocks after {tried}",
        allocator.free_order(),
        [2, 3],
        "one block was taken, none given back",
    )


def _wrong_pair(got: Any) -> str:
    if got is None:
        return "two users: someone else reads this block, so the writer needs a copy of its own"
    if got == (1, 0):
        return "the pair is (source, destination): the old block first, and then the new one"
    return "a pair (source, destination): the block that the entry named, and the one that `allocate` gave"


def _wrong_counts(got: Any) -> str:
    if got[0] == 2:
        return (
            "the count of the old block was not lowered: its writer names it no longer, so give up one use. "
            "Else the other one will copy too, when it writes, and the block is never free again"
        )
    if got[0] == 0:
        return "the old block still has a user: give up one use of it, not both"
    if got[1] == 0:
        return "the count of the new block is 0 while a table names it: take it with `allocate`, and keep it"
    return (
        "the old block has one user less, and the new one has one user: `allocate` has counted that already"
    )


def test_a_copy_that_is_shared_in_its_turn(exercise: ModuleType) -> None:
    """A block of one's own may be shared later: each call asks for its count."""
    allocator, (writer, _) = sharing(4, 1, users=2)
    with trying("copy_on_write([0], 0), where block 0 has two users"):
        exercise.copy_on_write(writer, 0, allocator)
    tried = "copy_on_write([1], 0) after an earlier call has made block 1, and after a fork has shared it"
    with trying(tried):
        allocator.share([1])
        pair = exercise.copy_on_write(writer, 0, allocator)
    why = "block 1 had one user after its copy and has two now: ask for the count in each call, remember none"
    check(tried, pair, (1, 2), why)


def test_an_entry_in_the_middle(exercise: ModuleType) -> None:
    """Only the entry that is written to changes; all other blocks stay shared."""
    allocator, (writer, other) = sharing(8, 3, users=2)
    tried = "copy_on_write([0, 1, 2], 1), where each block has two users"
    with trying(tried):
        pair = exercise.copy_on_write(writer, 1, allocator)
    why = "entry 1 is repointed, the others stay shared: nobody is about to write to them"
    check(f"the writer's table after {tried}", writer, [0, 3, 2], why)
    check(f"the other table after {tried}", other, [0, 1, 2], "only the writer's table changes")
    check(tried, pair, (1, 3), _wrong_pair)
    why = "blocks 0 and 2 are still shared, block 1 has one user less, block 3 one user"
    check(f"all counts after {tried}", counts(allocator), [2, 1, 2, 1, 0, 0, 0, 0], why)


def test_the_last_user_keeps_the_block(exercise: ModuleType) -> None:
    """Of three users, two copy and the third finds that the block is its own."""
    allocator, tables = sharing(4, 1, users=3)
    for number, expected in enumerate([(0, 1), (0, 2), None]):
        tried = f"copy_on_write by writer {number + 1} of the three users of block 0"
        with trying(tried):
            pair = exercise.copy_on_write(tables[number], 0, allocator)
        why = "a copy for the first and the second; the third is alone by then, if each has given up its use"
        check(tried, pair, expected, why)
    check("the tables of the three writers", tables, [[1], [2], [0]], "each has a block of its own now")
    check("all counts after three writers", counts(allocator), [1, 1, 1, 0], "each block has one user")
    with trying("copy_on_write by the first writer again"):
        again = exercise.copy_on_write(tables[0], 0, allocator)
    why = "after its copy the block is the writer's own: a second token needs no second copy"
    check("copy_on_write by the first writer again", again, None, why)


def test_a_block_with_many_users(exercise: ModuleType) -> None:
    """However many users a block has, a writer gets its copy and gives up one use."""
    for users in (4, 9):
        allocator, tables = sharing(3, 1, users)
        tried = f"copy_on_write([0], 0), where block 0 has {users} users"
        with trying(tried):
            pair = exercise.copy_on_write(tables[0], 0, allocator)
        why = f"{users} users: any number above 1 means that someone else reads this block"
        check(tried, pair, (0, 1), why)
        check(f"the writer's table after {tried}", tables[0], [1], why)
        why = f"one writer gives up one use, its own: {users - 1} are left, and block 1 has one"
        check(f"all counts after {tried}", counts(allocator), [users - 1, 1, 0], why)


def test_a_table_that_names_a_block_twice(exercise: ModuleType) -> None:
    """`index` says which entry is written to; another entry may name the same block, as another user."""
    for index, expected in ((1, [0, 1]), (0, [1, 0])):
        allocator, (table, _) = sharing(3, 1, users=2)
        table += [0]
        tried = f"copy_on_write([0, 0], {index}), where block 0 has two users: both are entries of this table"
        with trying(tried):
            pair = exercise.copy_on_write(table, index, allocator)
        check(tried, pair, (0, 1), _wrong_pair)
        why = "repoint entry `index` and no other: don't look for the block's id in the table"
        check(f"the table after {tried}", table, expected, why)
        check(f"all counts after {tried}", counts(allocator), [1, 1, 0], _wrong_counts)


def test_no_block_is_left(exercise: ModuleType) -> None:
    """In a full pool the writer is refused, and nothing has changed: it can wait, and try again."""
    allocator, (writer, other) = sharing(2, 2, users=2)
    tried = "copy_on_write([0, 1], 1), where both blocks have two users and none is free"
    why = "let OutOfBlocksError from `allocate` through: the engine waits for it, to make room and try again"
    check_raises(tried, OutOfBlocksError, lambda: exercise.copy_on_write(writer, 1, allocator), why)
    why = (
        "the use of the old block was given up before `allocate` failed: take the new block first, it is the "
        "only step that can fail, and change the rest after it"
    )
    check(f"all counts after the refused {tried}", counts(allocator), [2, 2], why)
    why = (
        "the entry was set before `allocate` had answered: take the new block first, the only step that "
        "can fail, and repoint the entry after it"
    )
    check(f"the writer's table after the refused {tried}", writer, [0, 1], why)
    check(f"the other table after the refused {tried}", other, [0, 1], "only the writer's table changes")


def test_a_block_of_ones_own_in_a_full_pool(exercise: ModuleType) -> None:
    """Where nothing is to be copied a full pool is no obstacle."""
    allocator, (table,) = sharing(1, 1, users=1)
    tried = "copy_on_write([0], 0) with one user, where no block is free"
    why = "ask for the count first: without another user no block is needed"
    with trying(tried, only_for(OutOfBlocksError, why)):
        check(tried, exercise.copy_on_write(table, 0, allocator), None, why)


def test_the_last_free_block_is_taken(exercise: ModuleType) -> None:
    """One free block is enough for a copy."""
    allocator, (writer, _) = sharing(2, 1, users=2)
    tried = "copy_on_write([0], 0) with two users, where one block is free"
    why = "a copy needs one block, and one is free"
    with trying(tried, only_for(OutOfBlocksError, why)):
        pair = exercise.copy_on_write(writer, 0, allocator)
    check(tried, pair, (0, 1), why)


def test_a_block_that_nobody_uses(exercise: ModuleType) -> None:
    """A table that names a free block is broken: writing there would hit whoever gets the block next."""
    allocator, (table,) = sharing(3, 1, users=1)
    stale = [0, 2]
    tried = "copy_on_write([0, 2], 1), where block 2 has no user"
    why = "count 0: nobody may name this block, this table neither. Raise ValueError, and change nothing"
    check_raises(tried, ValueError, lambda: exercise.copy_on_write(stale, 1, allocator), why)
    check(f"the table after the refused {tried}", stale, [0, 2], why)
    check(f"all counts after the refused {tried}", counts(allocator), [1, 0, 0], why)
    check(f"the table [0] after the refused {tried}", table, [0], why)


class Narrow:
    """An allocator that has the three methods of `Allocator` and no other."""

    def __init__(self, allocator: BlockAllocator) -> None:
        self.reference_count = allocator.reference_count
        self.allocate = allocator.allocate
        self.free = allocator.free


def test_an_allocator_of_another_kind(exercise: ModuleType) -> None:
    """Any allocator with the three methods of `Allocator` will do."""
    allocator, (writer, _) = sharing(2, 1, users=2)
    narrow = Narrow(allocator)
    tried = "copy_on_write([0], 0) with an allocator that has reference_count, allocate and free only"
    why = only_for(
        AttributeError,
        "call the methods that `Allocator` lists and no others. `allocate` itself knows whether a block is "
        "left: the prefix cache of lesson 7 can hand out more blocks than are free",
    )
    with trying(tried, why):
        pair = exercise.copy_on_write(writer, 0, narrow)
    check(tried, pair, (0, 1), _wrong_pair)
    allocator.share([1])
    tried = "copy_on_write([1], 0) with that allocator, where block 1 has two users and none is free"
    check_raises(tried, OutOfBlocksError, lambda: exercise.copy_on_write(writer, 0, narrow), why)


# ---- independent_copies -----------------------------------------------------------------------------------


def check_launches(
    exercise: ModuleType, pairs: list[Any], expected: list[list[Any]], why: str | Callable[[Any], str]
) -> None:
    tried = f"independent_copies({pairs})"
    given = list(pairs)
    with trying(tried):
        got = exercise.independent_copies(given)
        got = [list(launch) for launch in got]
    check(tried, got, expected, why)
    check(
        f"the pairs given to {tried}",
        given,
        pairs,
        "the list that was passed is the caller's: leave it alone",
    )


def test_one_launch_where_nothing_meets(exercise: ModuleType) -> None:
    """Pairs that have no block in common are copied by one launch; no pairs, no launch."""
    check_launches(exercise, [], [], "nothing to copy: no launch at all")
    check_launches(exercise, [(0, 1)], [[(0, 1)]], "one pair, one launch")
    why = "no block in common: both can be copied at once, and a launch costs time"
    check_launches(exercise, [(0, 1), (2, 3)], [[(0, 1), (2, 3)]], why)
    check_launches(
        exercise, [(5, 4), (2, 3), (0, 1)], [[(5, 4), (2, 3), (0, 1)]], "the pairs stay in their order"
    )


def test_every_call_cuts_anew(exercise: ModuleType) -> None:
    """What one call returned is not changed by the next one."""
    tried = "independent_copies([(0, 1)]) after a call with [(0, 1)]"
    with trying(tried):
        first = exercise.independent_copies([(0, 1)])
        second = exercise.independent_copies([(0, 1)])
    why = "pairs of an earlier call are still there: lists and sets begin empty in each call"
    check(tried, [list(launch) for launch in second], [[(0, 1)]], why)
    tried = "independent_copies([(0, 1)]), kept while independent_copies([(2, 3)]) is called"
    with trying(tried):
        exercise.independent_copies([(2, 3)])
    why = "both calls returned the same list, so the second wrote over the first's: make a new list each time"
    check(tried, [list(launch) for launch in first], [[(0, 1)]], why)


def test_reading_twice_is_no_conflict(exercise: ModuleType) -> None:
    """Two copies of the same source may share a launch."""
    why = "both only read block 0: that may happen at once, and is what two samples of one prompt do"
    check_launches(exercise, [(0, 1), (0, 2)], [[(0, 1), (0, 2)]], why)


def test_a_source_that_is_used_again(exercise: ModuleType) -> None:
    """A block that was copied and then taken again must not be overwritten before it has been read."""
    why = (
        "block 1 is read by the first pair and written by the second, the source was reused: at once, the "
        "first could copy what the second has written. Remember what a launch reads, too"
    )
    check_launches(exercise, [(1, 3), (4, 1)], [[(1, 3)], [(4, 1)]], why)


def test_a_copy_of_a_copy(exercise: ModuleType) -> None:
    """A block that was just written can be read only by a later launch."""
    why = "block 1 is written by the first pair and read by the second: at once, that could be too early"
    check_launches(exercise, [(0, 1), (1, 2)], [[(0, 1)], [(1, 2)]], why)


def test_a_destination_twice(exercise: ModuleType) -> None:
    """Of two copies into one block the later one counts."""
    why = "both write block 2, and the later one counts: at once, either could be the last"
    check_launches(exercise, [(0, 2), (1, 2)], [[(0, 2)], [(1, 2)]], why)


def test_a_pair_onto_itself(exercise: ModuleType) -> None:
    """A block copied onto itself is a pair like any other: the cut asks only what earlier pairs do."""
    why = "every pair once: independent_copies cuts the row, it leaves out nothing"
    check_launches(exercise, [(1, 1)], [[(1, 1)]], why)
    why = "a pair is compared with the earlier ones of its launch, and not with itself: (0, 1) has no block 2"
    check_launches(exercise, [(0, 1), (2, 2)], [[(0, 1), (2, 2)]], why)
    check_launches(
        exercise,
        [(1, 1), (0, 1)],
        [[(1, 1)], [(0, 1)]],
        "the second pair writes block 1, which the first one reads and writes: it needs a launch of its own",
    )


def test_a_new_launch_starts_afresh(exercise: ModuleType) -> None:
    """Only the pairs of the same launch count: earlier launches are over."""
    why = "the first launch, which met blocks 0 and 1, is over: empty both sets when a new one begins"
    check_launches(exercise, [(0, 1), (1, 2), (3, 0)], [[(0, 1)], [(1, 2), (3, 0)]], why)
    why = "cut the row of pairs, don't sort it: a pair that fits an earlier launch stays where it stands"
    check_launches(exercise, [(0, 1), (1, 2), (4, 5)], [[(0, 1)], [(1, 2), (4, 5)]], why)
    why = "the pair that began the new launch is in it: block 2 is written there"
    check_launches(exercise, [(0, 1), (1, 2), (2, 3)], [[(0, 1)], [(1, 2)], [(2, 3)]], why)
    why = "block 1 is read by the second launch, so (5, 1) begins a third; (3, 4) meets nothing and stays"
    pairs = [(0, 1), (1, 2), (3, 4), (5, 1)]
    check_launches(exercise, pairs, [[(0, 1)], [(1, 2), (3, 4)], [(5, 1)]], why)


def test_places_may_be_anything_hashable(exercise: ModuleType) -> None:
    """With several pools a place is a pair of a pool's name and a block id: it is compared, and no more."""
    pairs = [(("gpu", 0), ("host", 0)), (("gpu", 1), ("host", 1)), (("host", 0), ("gpu", 1))]
    why = "block 0 of the GPU and block 0 of the host are different places: compare places as a whole"
    check_launches(exercise, pairs, [pairs[:2], pairs[2:]], why)


def test_all_sequences_of_three_copies(exercise: ModuleType) -> None:
    """Launch by launch, each all at once, comes out as pair by pair; and no launch ends before it must."""
    choices = [
        (source, destination) for source in range(4) for destination in range(4) if source != destination
    ]
    for pairs in map(list, product(choices, repeat=3)):
        tried = f"independent_copies({pairs})"
        with trying(tried):
            launches = [list(launch) for launch in exercise.independent_copies(pairs)]
        check(
            f"all pairs of {tried}, in order",
            list(chain(*launches)),
            pairs,
            "every pair once, in the same order",
        )
        wanted = one_after_the_other(pairs)
        for backwards in (False, True):
            pool = ["a", "b", "c", "d"]
            for launch in launches:
                run(pool, launch[::-1] if backwards else launch)
            why = f"a launch may copy its pairs in any order, and these are not independent: {launches}"
            check(f"blocks a, b, c, d after the launches of {tried}, run in any order", pool, wanted, why)
        for launch, following in pairwise(launches):
            why = (
                "nothing forbids this pair in the launch before: no block is in common, or only read by both"
            )
            expected = f"{following[0]} in the same launch as {launch}"
            check_true(tried, meets(launch, following[0]), expected, str(launches), why)


def one_after_the_other(pairs: list[Pair]) -> list[str]:
    pool = ["a", "b", "c", "d"]
    run(pool, pairs)
    return pool


def run(pool: list[str], pairs: list[Pair]) -> None:
    for source, destination in pairs:
        pool[destination] = pool[source]


def meets(launch: list[Pair], pair: Pair) -> bool:
    return any(pair[1] in each or pair[0] == each[1] for each in launch)


# ---- copy_blocks ------------------------------------------------------------------------------------------


def copied(
    exercise: ModuleType, tried: str, pool: list[Any], sources: list[int], destinations: list[int]
) -> list[Any]:
    with trying(tried):
        exercise.copy_blocks(pool, sources, destinations)
    return pool


def test_one_block_is_copied(exercise: ModuleType) -> None:
    """The whole block is copied, within the pool that was passed, and no other block changes."""
    pool = [["a", "b", "c"], ["x", "y", "z"], ["p", "q", None]]
    tried = "copy_blocks from block 0 to block 1 of three"

    def why(got: Any) -> str:
        if got[0] == ["x", "y", "z"]:
            return "copied the wrong way: sources are read, destinations written"
        if got[1] == ["x", "y", "z"]:
            return "nothing was copied: the pool is changed in place"
        return "the whole block, all slots of it: pool[destination] = pool[source], and no other block"

    expected = [["a", "b", "c"], ["a", "b", "c"], ["p", "q", None]]
    check(f"the pool after {tried}", copied(exercise, tried, pool, [0], [1]), expected, why)
    tried = "copy_blocks from block 2, whose last slot is empty, to block 0"
    expected = [["p", "q", None], ["a", "b", "c"], ["p", "q", None]]
    check(f"the pool after {tried}", copied(exercise, tried, pool, [2], [0]), expected, why)


def test_all_pairs_are_copied(exercise: ModuleType) -> None:
    """Every pair is copied, one source as often as it is named; and without pairs nothing happens."""
    why = "pair i is (sources[i], destinations[i]), for each i"
    pool = [["a"], ["b"], ["c"], ["d"], ["e"]]
    tried = "copy_blocks from blocks 3, 0 to blocks 1, 4"
    check(
        f"the pool after {tried}",
        copied(exercise, tried, pool, [3, 0], [1, 4]),
        [["a"], ["d"], ["c"], ["d"], ["a"]],
        why,
    )
    tried = "copy_blocks from blocks 2, 2 to blocks 0, 1"
    check(
        f"the pool after {tried}",
        copied(exercise, tried, pool, [2, 2], [0, 1]),
        [["c"], ["c"], ["c"], ["d"], ["a"]],
        why,
    )
    tried = "copy_blocks of no pairs"
    check(
        f"the pool after {tried}",
        copied(exercise, tried, pool, [], []),
        [["c"], ["c"], ["c"], ["d"], ["a"]],
        why,
    )


def test_the_lists_of_pairs_are_the_callers(exercise: ModuleType) -> None:
    """`sources` and `destinations` are read, not used up."""
    sources, destinations = [0, 2], [1, 3]
    tried = "copy_blocks from blocks 0, 2 to blocks 1, 3"
    pool = copied(exercise, tried, [["a"], ["b"], ["c"], ["d"]], sources, destinations)
    check(f"the pool after {tried}", pool, [["a"], ["a"], ["c"], ["c"]], "both pairs are copied")
    why = "the lists that were passed are the caller's: go through them with zip, and take nothing out"
    check(f"sources and destinations after {tried}", (sources, destinations), ([0, 2], [1, 3]), why)


def test_a_copy_has_nothing_in_common_with_its_source(exercise: ModuleType) -> None:
    """What is written to a block afterwards, at any depth, is not seen in its copy."""
    pool = [[[[1.0, 2.0]], [[3.0, 4.0]]], [[[0.0, 0.0]], [[0.0, 0.0]]], [[[0.0, 0.0]], [[0.0, 0.0]]]]
    tried = "copy_blocks from blocks 0, 0 to blocks 1, 2, and a token written into block 1"
    copied(exercise, tried, pool, [0, 0], [1, 2])
    pool[1][1] = [[7.0, 8.0]]
    alias = "the same list stands in two places (an alias): pool[d] = pool[s] copies no slots"
    check(f"block 0 after {tried}", pool[0], [[[1.0, 2.0]], [[3.0, 4.0]]], alias)
    check(f"block 2 after {tried}", pool[2], [[[1.0, 2.0]], [[3.0, 4.0]]], alias)
    pool[1][0][0][0] = 9.0
    shallow = "slots are the same lists in both (a shallow copy): list() and [:] copy one level, deepcopy all"
    tried = "copy_blocks from blocks 0, 0 to blocks 1, 2, and a number written into a slot of block 1"
    check(f"block 0 after {tried}", pool[0], [[[1.0, 2.0]], [[3.0, 4.0]]], shallow)
    check(f"block 2 after {tried}", pool[2], [[[1.0, 2.0]], [[3.0, 4.0]]], shallow)


def test_what_cannot_be_copied_at_once(exercise: ModuleType) -> None:
    """Pairs that a launch can't copy at once are refused, and nothing is copied."""
    wrong = {
        "a destination twice": ([0, 1], [3, 3]),
        "a block that is both source and destination": ([0, 3], [3, 1]),
        "more sources than destinations": ([0, 1], [3]),
        "fewer sources than destinations": ([0], [3, 2]),
        "a block copied onto itself": ([0, 1], [3, 1]),
        "a destination past the end": ([0, 1], [3, 4]),
        "a negative source": ([0, -1], [3, 1]),
    }
    for name, (sources, destinations) in wrong.items():
        pool = [["a"], ["b"], ["c"], ["d"]]
        tried = f"copy_blocks from {sources} to {destinations} in a pool of 4 blocks: {name}"
        why = "a launch copies all pairs at the same time, within the pool: `_check_copies` looks for this"
        check_raises(
            tried, ValueError, lambda p=pool, s=sources, d=destinations: exercise.copy_blocks(p, s, d), why
        )
        why = "block 3 was written before the rest was looked at: check all pairs, then copy all or nothing"
        check(f"the pool after the refused {tried}", pool, [["a"], ["b"], ["c"], ["d"]], why)


# ---- together ---------------------------------------------------------------------------------------------

BLOCK_SIZE = 3


class Samples:
    """Sequences that write tokens into one pool, by way of the exercise."""

    def __init__(self, exercise: ModuleType, num_blocks: int) -> None:
        self.exercise = exercise
        self.allocator = BlockAllocator(num_blocks)
        self.pool: list[Any] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self.tables: list[list[int]] = [[]]
        self.written: list[list[int]] = [[]]  # what each sample has to read back
        self.noted: list[Pair] = []

    def fork(self, parent: int) -> None:
        self.allocator.share(self.tables[parent])
        self.tables.append(list(self.tables[parent]))
        self.written.append(list(self.written[parent]))

    def drop(self, sample: int) -> None:
        self.allocator.free(self.tables.pop(sample))
        self.written.pop(sample)

    def make_room(self, sample: int) -> None:
        """Before a token: a new block where the last one is full, else a copy of it if it is shared."""
        table, length = self.tables[sample], len(self.written[sample])
        if length % BLOCK_SIZE == 0:
            table += self.allocator.allocate(1)
            return
        pair = self.exercise.copy_on_write(table, length // BLOCK_SIZE, self.allocator)
        if pair is not None:
            self.noted.append(pair)

    def copy(self) -> None:
        """Run the copies that were noted."""
        for launch in self.exercise.independent_copies(self.noted):
            self.exercise.copy_blocks(self.pool, [s for s, _ in launch], [d for _, d in launch])
        self.noted = []

    def write(self, sample: int, token: int) -> None:
        index, offset = divmod(len(self.written[sample]), BLOCK_SIZE)
        self.pool[self.tables[sample][index]][offset] = token
        self.written[sample].append(token)

    def read(self, sample: int) -> list[int]:
        slots = [slot for block in self.tables[sample] for slot in self.pool[block]]
        return slots[: len(self.written[sample])]


def test_samples_read_back_what_they_wrote(exercise: ModuleType) -> None:
    """Samples that fork, write and end in any order each read back their own tokens, and no block is lost."""
    random = Random(5)
    samples = Samples(exercise, 40)
    for turn in range(80):
        tried = f"step {turn} of samples that fork, write a token each, and end, with blocks of 3"
        with trying(tried):
            if len(samples.tables) < 4 and turn % 2:
                samples.fork(random.randrange(len(samples.tables)))
            samples.make_room(0)
            if len(samples.tables) > 2 and turn % 3 == 2:
                samples.drop(1)  # its blocks are taken again within this step
            for sample in range(1, len(samples.tables)):
                samples.make_room(sample)
            samples.copy()
            for sample in range(len(samples.tables)):
                samples.write(sample, 10 * turn + sample)
            if len(samples.tables) > 1 and (turn % 5 == 4 or len(samples.written[0]) > 12):
                samples.drop(0 if len(samples.written[0]) > 12 else random.randrange(len(samples.tables)))
        got = [samples.read(sample) for sample in range(len(samples.tables))]
        why = "a sample wrote into a block that another one reads, or its copy came too late"
        check(f"all tokens of all samples after {tried}", got, deepcopy(samples.written), why)
        named = [sum(table.count(block) for table in samples.tables) for block in range(40)]
        why = "a block's count is the number of table entries that name it: one use given up for each copy"
        check(f"all counts after {tried}", counts(samples.allocator), named, why)
