"""Grades lesson 6. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

from minipaged.course.checks import check, check_raises, check_true, only_for, trying
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.block_table import BlockTable

PARTIAL = "6 tokens, block size 4, blocks [0, 1]"
NO_CHANGE = "it only looks: no count may change, no table and no free block"
ONCE = "parents may be a generator, which can be gone through only once: parents = list(parents)"


def beam(pool: BlockAllocator, num_tokens: int, block_size: int = 4) -> BlockTable:
    """A beam of so many tokens, with blocks from the pool: 0, 1, ... if it is the first."""
    return BlockTable(block_size, pool.allocate(-(-num_tokens // block_size)), num_tokens)


def sharing(pool: BlockAllocator, table: BlockTable) -> BlockTable:
    """Another beam with the same blocks."""
    pool.share(table.blocks)
    return table.fork()


def counts(pool: BlockAllocator) -> list[int]:
    return [pool.reference_count(block) for block in range(pool.num_blocks)]


def state(pool: BlockAllocator, tables: list[BlockTable]) -> list[Any]:
    """All that a refused call must leave as it was."""
    return [pool.free_order(), counts(pool), [(list(table.blocks), table.num_tokens) for table in tables]]


def blocks(tables: Any) -> list[list[int]]:
    return [list(table.blocks) for table in tables]


# ---- counts_after -----------------------------------------------------------------------------------------


def check_counts(
    exercise: ModuleType,
    pool: BlockAllocator,
    tables: list[BlockTable],
    parents: list[int],
    told: str,
    want: Any,
) -> None:
    tried = f"counts_after of {told}, parents {parents}"
    before = state(pool, tables)
    why = "look at the blocks of all old tables; a block that no new table names has a count too"
    with trying(tried, only_for(KeyError, why)):
        got = exercise.counts_after(tables, parents, pool)
    check(tried, dict(got), want, lambda got: _wrong_counts(got, want))
    check(f"counts and free blocks after {tried}", state(pool, tables), before, NO_CHANGE)
    with trying(f"{tried} as a generator", only_for(TypeError, ONCE)):
        check(f"{tried} as a generator", dict(exercise.counts_after(tables, iter(parents), pool)), want, ONCE)


def _wrong_counts(got: dict[int, int], want: dict[int, int]) -> str:
    if set(got) < set(want):
        return "the blocks of pruned beams are missing: they have a count afterwards too, it may be 0"
    if set(got) != set(want):
        return "the keys are the blocks that old tables name, and no others"
    if any(got[block] > want[block] for block in want):
        return (
            "too many uses: the old tables are given up, so the count loses one for each old table that "
            "names "
            "the block. after = count now - old tables + new tables"
        )
    return (
        "too few uses: a new beam counts each time its parent is named, and whoever else uses the block (the "
        "count says so) still does. after = count now - old tables + new tables"
    )


def test_a_count_is_how_many_tables_name_the_block(exercise: ModuleType) -> None:
    """A count moves by the old tables that stop naming the block and the new ones that begin to."""
    for parents, want in (([0], {0: 1, 1: 1}), ([0, 0, 0], {0: 3, 1: 3}), ([], {0: 0, 1: 0})):
        pool = BlockAllocator(4)
        check_counts(exercise, pool, [beam(pool, 6)], parents, f"one beam ({PARTIAL})", want)
    told = "two beams with blocks [0, 1] and [2, 3]"
    for parents, want in (
        ([1, 0], {0: 1, 1: 1, 2: 1, 3: 1}),
        ([1, 1], {0: 0, 1: 0, 2: 2, 3: 2}),
        ([0, 1, 0], {0: 2, 1: 2, 2: 1, 3: 1}),
    ):
        pool = BlockAllocator(6)
        check_counts(exercise, pool, [beam(pool, 6), beam(pool, 7)], parents, told, want)


def test_beams_that_share_blocks_already(exercise: ModuleType) -> None:
    """A block that several old beams name loses a use for each of them."""
    pool = BlockAllocator(4)
    first = BlockTable(4, pool.allocate(2), 6)
    pool.share([0])
    tables = [first, BlockTable(4, [0, *pool.allocate(1)], 6)]
    told = "two beams with blocks [0, 1] and [0, 2]"
    check_counts(exercise, pool, tables, [0, 0], told, {0: 2, 1: 2, 2: 0})
    check_counts(exercise, pool, tables, [1], told, {0: 1, 1: 0, 2: 1})


def test_uses_by_others_stay(exercise: ModuleType) -> None:
    """Whoever isn't one of these beams goes on using a block."""
    pool = BlockAllocator(4)
    tables = [beam(pool, 6)]
    pool.share([1])
    pool.share([1])
    told = f"one beam ({PARTIAL}), where two others use block 1"
    check_counts(exercise, pool, tables, [0, 0], told, {0: 2, 1: 4})
    check_counts(exercise, pool, tables, [], told, {0: 0, 1: 2})


# ---- copies_needed ----------------------------------------------------------------------------------------


def check_copies(
    exercise: ModuleType,
    pool: BlockAllocator,
    tables: list[BlockTable],
    parents: list[int],
    told: str,
    want: int,
    why: str = "",
) -> None:
    tried = f"copies_needed of {told}, parents {parents}"
    before = state(pool, tables)
    with trying(tried, lambda error: _no_last_block(error, tables)):
        got = exercise.copies_needed(tables, parents, pool)
    check(tried, got, want, lambda got: why or _wrong_copies(got, want, told))
    check(f"counts and free blocks after {tried}", state(pool, tables), before, NO_CHANGE)
    with trying(f"{tried} as a generator", only_for(TypeError, ONCE)):
        check(f"{tried} as a generator", exercise.copies_needed(tables, iter(parents), pool), want, ONCE)


def _no_last_block(error: Exception, tables: list[BlockTable]) -> str:
    """The reason for an IndexError where a beam has no block, or a last one that is full."""
    if not isinstance(error, IndexError) or all(table.num_empty_slots for table in tables):
        return ""
    if not all(table.num_tokens for table in tables):
        return "a table of no tokens has no last block: ask num_empty_slots before blocks[-1]"
    return (
        "a full last block is written by nobody: ask num_empty_slots whether a beam writes to its last block"
    )


def _wrong_copies(got: int, want: int, told: str) -> str:
    if "full" in told:
        return (
            "a full block is written by nobody: at an exact multiple of the block size there is nothing to "
            "copy"
        )
    if "somebody else" in told:
        return (
            "somebody else reads this block, so none of the writers may keep it: the last one, too, needs "
            "a copy. "
            "counts_after says whether the writers are all"
        )
    if "same last block" in told:
        return (
            "count the writers of each block, not of each parent: two parents may share their last block, "
            "and "
            "a pruned one doesn't write"
        )
    if got > want:
        return (
            "one too many for each block: the last writer is alone by then and keeps it. n writers, n - 1 "
            "copies"
        )
    return "too few: every writer of a block but the last one needs a copy of its own"


def test_one_copy_less_than_there_are_writers(exercise: ModuleType) -> None:
    """Of the writers of a half-full block the last one keeps it."""
    for parents, want in (([0], 0), ([0, 0], 1), ([0, 0, 0], 2), ([], 0)):
        pool = BlockAllocator(4)
        check_copies(exercise, pool, [beam(pool, 6)], parents, f"one beam ({PARTIAL})", want)
    for parents, want in (([1, 0], 0), ([0, 0, 1, 1], 2), ([1, 1, 1], 2)):
        pool = BlockAllocator(4)
        told = "two beams of 1 and 7 tokens, block size 4"
        check_copies(exercise, pool, [beam(pool, 1), beam(pool, 7)], parents, told, want)


def test_a_full_block_is_never_copied(exercise: ModuleType) -> None:
    """At an exact multiple of the block size nothing is copied."""
    for num_tokens, block_size in ((4, 4), (8, 4), (3, 1), (6, 3)):
        pool = BlockAllocator(4)
        told = f"one beam of {num_tokens} tokens in full blocks of {block_size}"
        check_copies(exercise, pool, [beam(pool, num_tokens, block_size)], [0, 0, 0], told, 0)
    pool = BlockAllocator(4)
    told = "two beams of 8 and 5 tokens, block size 4"
    why = "beam 0 is full, and a full block is written by nobody; block 3 has two writers, so one copy"
    check_copies(exercise, pool, [beam(pool, 8), beam(pool, 5)], [0, 0, 1, 1], told, 1, why)
    pool = BlockAllocator(4)
    check_copies(exercise, pool, [beam(pool, 0)], [0, 0], "a beam of no tokens", 0)


def test_a_last_block_that_several_beams_share(exercise: ModuleType) -> None:
    """Writers are counted by block: two old beams may share their last one, until one of them writes."""
    told = "two beams with the same last block ([0, 1] both, 6 tokens, block size 4)"
    for parents, want in (([0], 0), ([1], 0), ([0, 1], 1), ([0, 0, 1], 2), ([], 0)):
        pool = BlockAllocator(4)
        first = beam(pool, 6)
        check_copies(exercise, pool, [first, sharing(pool, first)], parents, told, want)


def test_somebody_else_reads_the_last_block(exercise: ModuleType) -> None:
    """Where others than these beams read the block, every writer needs a copy."""
    for parents, want in (([0], 1), ([0, 0], 2), ([], 0)):
        pool = BlockAllocator(6)
        tables = [beam(pool, 6)]
        pool.share([1])
        told = f"one beam ({PARTIAL}), where somebody else uses block 1"
        check_copies(exercise, pool, tables, parents, told, want)
    why = (
        "count the writers, not the users: two others read block 1, but only new beams write to it, and each "
        "of these needs one copy. The count of a block says whether its writers are all its users, no more"
    )
    for parents, want in (([0], 1), ([0, 0], 2)):
        pool = BlockAllocator(6)
        tables = [beam(pool, 6)]
        pool.share([1])
        pool.share([1])
        told = f"one beam ({PARTIAL}), where two others use block 1"
        check_copies(exercise, pool, tables, parents, told, want, why)


def test_a_beam_that_reads_a_block_another_one_writes(exercise: ModuleType) -> None:
    """One beam's last block may be full for another beam, or lie in the middle of its table."""
    for num_tokens in (8, 9):
        for parents, want in (([0, 1], 1), ([0], 0), ([0, 0, 1], 2)):
            pool = BlockAllocator(6)
            first = beam(pool, 6)
            pool.share(first.blocks)
            second = BlockTable(4, [0, 1, *pool.allocate(num_tokens - 8)], num_tokens)
            told = f"two beams of 6 and {num_tokens} tokens, block size 4, blocks [0, 1] and {second.blocks}"
            why = (
                "the second beam does not write to block 1, but goes on reading it if it is continued. Then "
                "each writer needs a copy: compare the writers with all the users that counts_after tells"
            )
            check_copies(exercise, pool, [first, second], parents, told, want, why)


# ---- fork_beams -------------------------------------------------------------------------------------------


def check_fork(
    exercise: ModuleType,
    pool: BlockAllocator,
    tables: list[BlockTable],
    parents: list[int],
    want_counts: list[int],
    why: str = "",
) -> list[BlockTable]:
    names = " and ".join(str(table.blocks) for table in tables)
    want = [(list(tables[parent].blocks), tables[parent].num_tokens) for parent in parents]
    tried = f"fork_beams of beams with blocks {names or 'none'}, parents {parents}"
    in_between = only_for(
        ValueError,
        "blocks that live on may not fall to zero in between, or they are free before they can be shared: "
        "share the blocks of all new tables first, then free the old ones",
    )
    with trying(tried, only_for(OutOfBlocksError, why) if why else in_between):
        new = exercise.fork_beams(tables, parents, pool)
    check(
        f"blocks and num_tokens of {tried}",
        [(list(table.blocks), table.num_tokens) for table in new],
        want,
        "new beam i continues beam parents[i], in that order: its table names the same blocks, and as many "
        "tokens",
    )
    check(f"all counts after {tried}", counts(pool), want_counts, lambda got: _moved(got, want_counts))
    free = [block for block, count in enumerate(want_counts) if count == 0]
    check(
        f"the free blocks after {tried}", sorted(pool.free_order()), free, "free with a count of 0, and once"
    )
    return list(new)


def _moved(got: list[int], want: list[int]) -> str:
    if any(g > w for g, w in zip(got, want, strict=True)):
        if any(g > w == 0 for g, w in zip(got, want, strict=True)):
            return (
                "a pruned beam's blocks leak: every old table is given up, the one that nobody continues "
                "as well"
            )
        return "an old table is given up once, whether it was continued or not: free each old table's blocks"
    return (
        "each new table is one more user of each of its blocks, also where a parent is named again: share "
        "them"
    )


def test_a_fork_moves_counts_and_nothing_else(exercise: ModuleType) -> None:
    """New tables name their parents' blocks, and a count says how many tables do."""
    for parents, want in (([0], [1, 1, 0]), ([0, 0], [2, 2, 0]), ([0, 0, 0], [3, 3, 0]), ([], [0, 0, 0])):
        pool = BlockAllocator(3)
        why = "a fork copies nothing, so it needs no block and asks for no room" if len(parents) > 2 else ""
        check_fork(exercise, pool, [beam(pool, 6)], parents, want, why)
    pool = BlockAllocator(3)
    check_fork(exercise, pool, [], [], [0, 0, 0])


def test_pruned_and_reordered(exercise: ModuleType) -> None:
    """Beams change places, are pruned and forked at once; no block that lives on is free in between."""
    for parents, want in (
        ([1, 0], [1, 1, 1, 1]),
        ([0, 0], [2, 2, 0, 0]),
        ([1, 1], [0, 0, 2, 2]),
        ([1, 0, 1], [1, 1, 2, 2]),
        ([1], [0, 0, 1, 1]),
    ):
        pool = BlockAllocator(4)  # not a block to spare: none is needed
        check_fork(exercise, pool, [beam(pool, 6), beam(pool, 8)], parents, want)
    pool = BlockAllocator(4)
    first = beam(pool, 6)
    check_fork(exercise, pool, [first, sharing(pool, first)], [1], [1, 1, 0, 0])
    pool = BlockAllocator(4)
    first = beam(pool, 6)
    check_fork(exercise, pool, [first, sharing(pool, first)], [1, 1, 0], [3, 3, 0, 0])
    pool = BlockAllocator(3)
    table = beam(pool, 6)
    pool.share([0])  # somebody else
    check_fork(exercise, pool, [table], [], [1, 0, 0])


def test_every_beam_has_a_table_of_its_own(exercise: ModuleType) -> None:
    """What one beam appends, no other sees."""
    pool = BlockAllocator(4)
    first, second, third = check_fork(exercise, pool, [beam(pool, 6)], [0, 0, 0], [3, 3, 0, 0])
    first.append(2)
    first.append(1, [3])
    second.blocks[1] = 2
    tried = (
        "three beams of one parent, after the first has appended block 3 and the second replaced its last "
        "by 2"
    )
    why = "beams share a table object, or its list: aliased. Each needs its own: BlockTable.fork() makes one"
    check(f"blocks of {tried}", blocks([first, second, third]), [[0, 1, 3], [0, 2], [0, 1]], why)
    check(f"num_tokens of {tried}", [t.num_tokens for t in (first, second, third)], [9, 6, 6], why)


def test_what_a_fork_refuses(exercise: ModuleType) -> None:
    """A parent that isn't there, and tables that can't be given up, are errors that change nothing."""
    check_refusals(exercise.fork_beams, "fork_beams")


def check_refusals(function: Any, name: str) -> None:
    early = "nothing may have changed when the call is refused: call _check_beams before anything else"
    for parents in ([2], [0, -1], [0, 1, 5]):
        pool = BlockAllocator(6)
        tables = [beam(pool, 6), beam(pool, 6)]
        before = state(pool, tables)
        why = "there are beams 0 and 1 only, and Python reads -1 as the last one: _check_beams looks for that"
        tried = f"{name} of two beams, parents {parents}"
        check_raises(tried, ValueError, lambda t=tables, p=parents, a=pool: function(t, p, a), why)
        check(f"counts, free blocks and tables after {tried}", state(pool, tables), before, early)
    pool = BlockAllocator(6)
    table = beam(pool, 6)
    before = state(pool, [table])
    why = "block 0 is named twice and has one user, so it would be freed twice: _check_beams looks for that"
    tried = f"{name} of the same table twice, parents [0]"
    check_raises(tried, ValueError, lambda: function([table, table], [0], pool), why)
    check(f"counts, free blocks and tables after {tried}", state(pool, [table]), before, early)
    table = BlockTable(4, [5], 3)
    why = (
        "block 5 is free, so no table may name it. Also where each beam goes on for itself the tables are "
        "looked at: _check_beams comes before anything else"
    )
    tried = f"{name} of a beam with block 5, which is free, parents [0]"
    check_raises(tried, ValueError, lambda: function([table], [0], pool), why)
    check(
        f"counts, free blocks and tables after {tried}",
        state(pool, [table]),
        [*before[:2], [([5], 3)]],
        early,
    )


def test_parents_of_a_fork_may_be_any_iterable(exercise: ModuleType) -> None:
    """Parents may come from a generator."""
    pool = BlockAllocator(4)
    with trying("fork_beams with the parents 0 and 0 from a generator", only_for(TypeError, ONCE)):
        new = exercise.fork_beams([beam(pool, 6)], iter([0, 0]), pool)
    check("fork_beams with the parents 0 and 0 from a generator", blocks(new), [[0, 1], [0, 1]], ONCE)
    check("all counts after fork_beams with parents from a generator", counts(pool), [2, 2, 0, 0], ONCE)


# ---- reorder_beams ----------------------------------------------------------------------------------------


def check_reorder(
    exercise: ModuleType,
    pool: BlockAllocator,
    tables: list[BlockTable],
    parents: list[int],
    want: tuple[list[list[int]], list[tuple[int, int]]],
    want_counts: list[int],
    why: str = "",
) -> None:
    sizes = " and ".join(f"{table.blocks} ({table.num_tokens} tokens)" for table in tables)
    tried = (
        f"reorder_beams of beams with blocks {sizes}, block size {tables[0].block_size}, parents {parents}"
    )
    num_tokens = [tables[parent].num_tokens for parent in parents]
    in_words = only_for(OutOfBlocksError, why) if why else lambda error: _no_last_block(error, tables)
    with trying(tried, in_words):
        new, pairs = exercise.reorder_beams(tables, parents, pool)
    few = "a table for each of the new beams, of which there may be more or fewer than old ones"
    check(f"the number of tables of {tried}", len(new), len(parents), few)
    copied = blocks(new) == want[0]
    check(
        f"pairs to copy of {tried}",
        list(pairs),
        want[1],
        lambda got: why or _wrong_pairs(got, want[1], copied),
    )
    why = "each writer but the last points its last entry at its copy; all other entries are the parent's"
    check(f"blocks of {tried}", blocks(new), want[0], why)
    why = "a copy adds no token: num_tokens is the parent's"
    check(f"num_tokens of {tried}", [table.num_tokens for table in new], num_tokens, why)
    why = (
        "a block's count is the number of table entries that name it: whoever gets a copy gives up the "
        "block that "
        "it is a copy of, and pruned beams give up theirs"
    )
    check(f"all counts after {tried}", counts(pool), want_counts, why)


def _wrong_pairs(got: list[Any], want: list[tuple[int, int]], copied: bool) -> str:
    if any(pair is None for pair in got):
        return "copy_on_write returns None where there is nothing to copy: leave those out"
    if len(got) > len(want):
        if not want:
            return (
                "nothing is to be copied here: a full block is written by nobody, and a half-full one is its "
                "writer's own where no other table names it"
            )
        return (
            "a copy too many: only last blocks with an empty slot, and not for the last writer, who is "
            "alone by then"
        )
    if len(got) < len(want) and copied:
        return "the tables name new blocks, but nobody will copy to some of them: a pair for each new block"
    if len(got) < len(want):
        return (
            "two beams would write to one block without a copy: copy_on_write for the last block of every "
            "new "
            "beam, where it has an empty slot"
        )
    return (
        "in the order of the new beams: (the parent's last block, the new block), for all writers but the "
        "last"
    )


def test_the_last_writer_keeps_the_block(exercise: ModuleType) -> None:
    """Writers of a half-full last block get copies in the order of the beams; the last one keeps it."""
    pool = BlockAllocator(5)
    check_reorder(exercise, pool, [beam(pool, 6)], [0], ([[0, 1]], []), [1, 1, 0, 0, 0])
    pool = BlockAllocator(5)
    check_reorder(exercise, pool, [beam(pool, 6)], [0, 0], ([[0, 2], [0, 1]], [(1, 2)]), [2, 1, 1, 0, 0])
    pool = BlockAllocator(5)
    want = ([[0, 2], [0, 3], [0, 1]], [(1, 2), (1, 3)])
    check_reorder(exercise, pool, [beam(pool, 6)], [0, 0, 0], want, [3, 1, 1, 1, 0])
    pool = BlockAllocator(5)
    check_reorder(exercise, pool, [beam(pool, 1)], [0, 0], ([[1], [0]], [(0, 1)]), [1, 1, 0, 0, 0])
    pool = BlockAllocator(5)
    check_reorder(exercise, pool, [beam(pool, 6)], [], ([], []), [0, 0, 0, 0, 0])


def test_nothing_is_copied_at_an_exact_multiple(exercise: ModuleType) -> None:
    """A fork at an exact multiple of the block size copies nothing."""
    pool = BlockAllocator(4)
    check_reorder(exercise, pool, [beam(pool, 8)], [0, 0, 0], ([[0, 1]] * 3, []), [3, 3, 0, 0])
    pool = BlockAllocator(4)
    check_reorder(exercise, pool, [beam(pool, 2, 1)], [0, 0], ([[0, 1]] * 2, []), [2, 2, 0, 0])
    pool = BlockAllocator(4)
    tables = [beam(pool, 4), beam(pool, 3)]
    check_reorder(exercise, pool, tables, [0, 1, 0, 1], ([[0], [2], [0], [1]], [(1, 2)]), [2, 1, 1, 0])
    pool = BlockAllocator(4)
    check_reorder(exercise, pool, [beam(pool, 0), beam(pool, 1)], [0, 1], ([[], [0]], []), [1, 0, 0, 0])


def test_changing_places_copies_nothing(exercise: ModuleType) -> None:
    """Beams that only change places move no count and copy nothing."""
    pool = BlockAllocator(4)
    tables = [beam(pool, 6), beam(pool, 5)]
    check_reorder(exercise, pool, tables, [1, 0], ([[2, 3], [0, 1]], []), [1, 1, 1, 1])


def test_beams_that_shared_their_last_block(exercise: ModuleType) -> None:
    """Two old beams may name one half-full block; only those that go on write to it."""
    pool = BlockAllocator(4)
    first = beam(pool, 6)
    check_reorder(exercise, pool, [first, sharing(pool, first)], [1], ([[0, 1]], []), [1, 1, 0, 0])
    pool = BlockAllocator(4)
    first = beam(pool, 6)
    want = ([[0, 2], [0, 1]], [(1, 2)])
    check_reorder(exercise, pool, [first, sharing(pool, first)], [1, 0], want, [2, 1, 1, 0])


def test_beams_that_go_on_for_themselves(exercise: ModuleType) -> None:
    """Where new beam i continues old beam i there may be copies, too: writers of a shared block part now."""
    why = (
        "each beam goes on for itself, and yet both are about to write to block 1: it is not by the parents "
        "that a copy is needed, but by who else names the last block"
    )
    pool = BlockAllocator(4)
    first = beam(pool, 6)
    want = ([[0, 2], [0, 1]], [(1, 2)])
    check_reorder(exercise, pool, [first, sharing(pool, first)], [0, 1], want, [2, 1, 1, 0], why)
    why = (
        "the only beam goes on for itself, and yet somebody else reads block 1, which it is about to write "
        "to: it is not by the parents that a copy is needed, but by who else names the last block"
    )
    pool = BlockAllocator(4)
    first = beam(pool, 6)
    sharing(pool, first)  # somebody else
    check_reorder(exercise, pool, [first], [0], ([[0, 2]], [(1, 2)]), [2, 1, 1, 0], why)


def test_a_block_that_somebody_else_reads(exercise: ModuleType) -> None:
    """Where others read the block, the last writer gets a copy, too."""
    pool = BlockAllocator(4)
    table = beam(pool, 2)
    pool.share([0])
    check_reorder(exercise, pool, [table], [0, 0], ([[1], [2]], [(0, 1), (0, 2)]), [1, 1, 1, 0])


def test_a_pruned_beam_makes_room(exercise: ModuleType) -> None:
    """In a full pool the blocks that a pruned beam gives up are there for the copies."""
    why = (
        "no block is free, but the pruned beam gives up its one, and the copy may take it. Call _check_room "
        "before fork_beams: it counts such blocks, from the counts that the old tables have"
    )
    pool = BlockAllocator(2)
    tables = [beam(pool, 2), beam(pool, 3)]
    check_reorder(exercise, pool, tables, [0, 0], ([[1], [0]], [(0, 1)]), [1, 1], why)
    pool = BlockAllocator(2)
    tables = [beam(pool, 2), beam(pool, 3)]
    check_reorder(exercise, pool, tables, [1, 1], ([[0], [1]], [(1, 0)]), [1, 1], why)


def test_no_room_changes_nothing(exercise: ModuleType) -> None:
    """Where the copies don't fit, OutOfBlocksError is raised and nothing has changed."""
    for parents, missing in (([0, 0, 0], 1), ([0] * 5, 3)):
        pool = BlockAllocator(3)
        tables = [beam(pool, 6)]
        before = state(pool, tables)
        tried = f"reorder_beams of one beam ({PARTIAL}), parents {parents}, one block free"
        why = "with too few blocks for the copies the caller expects OutOfBlocksError, to preempt somebody"
        error = check_raises(
            tried,
            OutOfBlocksError,
            lambda t=tables, p=parents, a=pool: exercise.reorder_beams(t, p, a),
            why,
        )
        why = (
            "counts, tables or blocks had changed before it was clear that the copies don't all fit: "
            "_check_room "
            "first, then change all or nothing"
        )
        check(f"free blocks, counts and tables after the refused {tried}", state(pool, tables), before, why)
        why = "the error says how many blocks all copies together lack: that is what _check_room raises"
        check(f"`missing` of the error of {tried}", getattr(error, "missing", None), missing, why)
    pool = BlockAllocator(3)
    why = "one block is free and one copy is needed: the last free block may be used"
    tried = f"reorder_beams of one beam ({PARTIAL}), parents [0, 0], one block free"
    with trying(tried, only_for(OutOfBlocksError, why)):
        exercise.reorder_beams([beam(pool, 6)], [0, 0], pool)


def test_what_reordering_refuses(exercise: ModuleType) -> None:
    """A parent that isn't there, and tables that can't be given up, are errors that change nothing."""
    check_refusals(exercise.reorder_beams, "reorder_beams")


def test_parents_of_a_reorder_may_be_any_iterable(exercise: ModuleType) -> None:
    """Parents may come from a generator."""
    pool = BlockAllocator(4)
    tried = "reorder_beams with the parents 0 and 0 from a generator"
    with trying(tried, only_for(TypeError, ONCE)):
        new, pairs = exercise.reorder_beams([beam(pool, 6)], iter([0, 0]), pool)
    check(tried, (blocks(new), list(pairs)), ([[0, 2], [0, 1]], [(1, 2)]), ONCE)


def test_a_search_of_40_steps(exercise: ModuleType) -> None:
    """Through 40 steps every beam reads its own tokens, and counts are what the tables say."""
    for block_size in (1, 3, 4):
        random = Random(block_size)
        pool = BlockAllocator(200)
        memory = [[""] * block_size for _ in range(200)]
        tables = [BlockTable(block_size)]
        texts = [""]
        for step in range(40):
            tried = f"a search with block size {block_size}, step {step}"
            width = random.randint(1, 5)
            parents = [random.randrange(len(tables)) for _ in range(width)]
            with trying(f"{tried}: reorder_beams, parents {parents}"):
                tables, pairs = exercise.reorder_beams(tables, parents, pool)
                for source, destination in pairs:
                    memory[destination] = list(memory[source])
                texts = [texts[parent] for parent in parents]
                for beam_index, table in enumerate(tables):
                    token = chr(ord("a") + random.randrange(26))
                    table.append(1, pool.allocate(table.num_blocks_needed(1)))
                    block, offset = divmod(table.slot(table.num_tokens - 1), block_size)
                    memory[block][offset] = token
                    texts[beam_index] += token
            read = ["".join(memory[b][o] for b, o in _places(table)) for table in tables]
            wrong = [i for i in range(width) if read[i] != texts[i]]
            check_true(
                f"{tried}, parents {parents}: the tokens of all beams, read through their tables",
                not wrong,
                "what each of them wrote",
                f"other tokens for beams {wrong}",
                "two beams wrote to one block, or the wrong parent was continued",
            )
            named = [sum(table.blocks.count(block) for table in tables) for block in range(200)]
            why = (
                "a block's count is the number of table entries that name it: more is a leak, less a "
                "double use"
            )
            got = {block: (pool.reference_count(block), named[block]) for block in range(200)}
            wrong_counts = {block: pair for block, pair in got.items() if pair[0] != pair[1]}
            check(f"{tried}: blocks whose count isn't how often they are named", wrong_counts, {}, why)


def _places(table: BlockTable) -> list[tuple[int, int]]:
    return [divmod(table.slot(position), table.block_size) for position in range(table.num_tokens)]
