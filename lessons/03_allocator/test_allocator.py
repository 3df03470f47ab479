"""Grades lesson 3. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from minipaged.course.checks import TensorItem, check, check_raises, only_for, trying
from minipaged.reference.allocator import OutOfBlocksError


def state(pool: Any) -> tuple[list[int], list[int], int]:
    """All that an allocator knows: the free blocks in order, every block's count, and how many are in use."""
    return (
        pool.free_order(),
        [pool.reference_count(block) for block in range(pool.num_blocks)],
        pool.num_in_use,
    )


STATE = "the free blocks, all counts and num_in_use"
SLICE = "zero blocks are a normal request, and the slice [-0:] is the whole list: treat 0 apart, or use pop"


def test_blocks_come_from_the_top_of_the_stack(exercise: ModuleType) -> None:
    """`allocate` takes blocks from the top of the stack, each with a count of one."""
    pool = exercise.BlockAllocator(4)
    with trying("allocate(1) from a pool of 4 blocks"):
        check("allocate(1) from a pool of 4 blocks", pool.allocate(1), [0], _not_the_top)
    check(
        "reference_count(0) after allocate(1)",
        pool.reference_count(0),
        1,
        "a block that is handed out has one user",
    )
    check("allocate(2) after allocate(1)", pool.allocate(2), [1, 2], _not_the_top)
    check(
        "the free blocks after allocate(1) and allocate(2) of 4",
        pool.free_order(),
        [3],
        "a block that is handed out leaves the free stack",
    )
    check(
        "num_in_use after allocate(1) and allocate(2)",
        pool.num_in_use,
        3,
        "_num_in_use counts the blocks with a count of 1 or more",
    )


def test_one_block_unless_told_otherwise(exercise: ModuleType) -> None:
    """`allocate()` without a number takes one block."""
    pool = exercise.BlockAllocator(3)
    with trying("allocate() from a pool of 3 blocks"):
        check("allocate() from a pool of 3 blocks", pool.allocate(), [0], "the default of num_blocks is 1")


def test_none_is_a_number_too(exercise: ModuleType) -> None:
    """Asking for no blocks is no error, and a negative number is."""
    pool = exercise.BlockAllocator(2)
    why = "zero blocks are a normal request: a token that fits in the last block needs none"
    with trying("allocate(0)", only_for((OutOfBlocksError, ValueError), why)):
        check("allocate(0)", pool.allocate(0), [], lambda got: SLICE if len(got) == 2 else why)
    check_raises(
        "allocate(-1)", ValueError, lambda: pool.allocate(-1), "a negative number of blocks is a mistake"
    )
    why = "a refused call changes nothing: look at the number before anything is counted"
    check(f"{STATE} after the refused allocate(-1)", state(pool), ([0, 1], [0, 0], 0), why)


def test_all_or_nothing(exercise: ModuleType) -> None:
    """An allocation that can't be met changes nothing."""
    pool = exercise.BlockAllocator(3)
    with trying("allocate(1) from a pool of 3 blocks"):
        pool.allocate(1)
    before = state(pool)
    error = check_raises(
        "allocate(3) with 2 free blocks",
        OutOfBlocksError,
        lambda: pool.allocate(3),
        "a pool that is too full is a normal state: the caller waits for OutOfBlocksError to preempt someone",
    )
    why = "the blocks taken before the pool ran out were kept (a partial allocation): count first"
    check(f"{STATE} after the refused allocate(3)", state(pool), before, why)
    check("num_in_use after the refused allocate(3)", pool.num_in_use, 1, why)
    check(
        "`missing` of the error of allocate(3) with 2 free blocks",
        error.missing,
        1,
        "OutOfBlocksError(requested, available): 3 asked, 2 free",
    )
    why = "the last free block can be handed out too"
    with trying("allocate(2) with 2 free blocks", only_for(OutOfBlocksError, why)):
        check("allocate(2) with 2 free blocks", pool.allocate(2), [1, 2], why)


def test_the_error_says_how_many(exercise: ModuleType) -> None:
    """The error of a refused allocation says how many blocks were asked for, and how many are free."""
    pool = exercise.BlockAllocator(3)
    with trying("allocate(2) from a pool of 3 blocks"):
        pool.allocate(2)
    tried = "allocate(4) with 1 free block"
    why = "4 asked, 1 free: count first, and raise OutOfBlocksError(requested, available)"
    error = check_raises(tried, OutOfBlocksError, lambda: pool.allocate(4), why)
    numbers = (error.requested, error.available)
    check(f"`requested` and `available` of the error of {tried}", numbers, (4, 1), why)


def test_share_counts_users(exercise: ModuleType) -> None:
    """A block goes back on the stack when the last of its users frees it, not before."""
    pool = exercise.BlockAllocator(2)
    with trying("share([0]) after allocate(1)"):
        pool.allocate(1)
        pool.share([0])
    check(
        "the count of block 0 after share([0])", pool.reference_count(0), 2, "share raises the count by one"
    )
    check(
        "num_in_use after allocate(1) and share([0])",
        pool.num_in_use,
        1,
        "a block with two users is still one block in use",
    )
    with trying("free([0]) with two users"):
        unused = pool.free([0])
    early = "the block was given up while another table still names it: free lowers the count by one, no more"
    check("free([0]) with two users", unused, [], early)
    check("the free blocks after free([0]) with two users", pool.free_order(), [1], early)
    with trying("free([0]) by the last user"):
        unused = pool.free([0])
    late = "no user is left, so the block goes back on the stack: count, and give it back at zero"
    check("free([0]) by the last user", unused, [0], late)
    bottom = "the block went to the bottom of the stack: the last one freed is on top. append() puts it there"
    check(
        "the free blocks after free([0]) by the last user",
        pool.free_order(),
        [0, 1],
        lambda got: bottom if got == [1, 0] else late,
    )
    check("num_in_use after free([0]) by the last user", pool.num_in_use, 0, _not_in_use)


def test_a_block_shared_twice_in_one_call(exercise: ModuleType) -> None:
    """`share` adds one user each time that a block is named."""
    pool = exercise.BlockAllocator(3)
    with trying("share([1, 1]) after allocate(3)"):
        pool.allocate(3)
        pool.share([1, 1])
    why = "block 1 is named twice, so two more users have it: 1 + 2. A set would forget the second one"
    check("the count of block 1 after share([1, 1])", pool.reference_count(1), 3, why)


def test_a_free_block_cannot_be_shared(exercise: ModuleType) -> None:
    """Sharing a block that nobody uses is an error that changes nothing."""
    pool = exercise.BlockAllocator(3)
    with trying("allocate(1) from a pool of 3 blocks"):
        pool.allocate(1)
    before = state(pool)
    why = "block 1 is free: whoever allocates next would get a block that a table names already"
    check_raises("share([0, 1]), where 1 is free", ValueError, lambda: pool.share([0, 1]), why)
    why = "block 0 was counted before block 1 was looked at: check all blocks, then change all or nothing"
    check(f"{STATE} after the refused share([0, 1])", state(pool), before, why)


def test_freed_as_a_whole_taken_in_the_same_order(exercise: ModuleType) -> None:
    """`free` gives back from the tail on: a table freed as a whole is taken again in the same order."""
    pool = exercise.BlockAllocator(4)
    with trying("free([0, 1, 2]) after allocate(3)"):
        pool.allocate(3)
        unused = pool.free([0, 1, 2])
    why = "the last block goes on the stack first, so that the first one comes out on top: from the tail on"
    check("free([0, 1, 2])", unused, [2, 1, 0], why)
    check("the free blocks after allocate(3) and free([0, 1, 2]) of 4", pool.free_order(), [0, 1, 2, 3], why)


def test_any_order_of_the_list(exercise: ModuleType) -> None:
    """`free` goes by the order of the list, not of the ids, and leaves the list as it was."""
    pool = exercise.BlockAllocator(4)
    blocks = [2, 0, 1]
    with trying("free([2, 0, 1]) after allocate(4)"):
        pool.allocate(4)
        unused = pool.free(blocks)
    why = "from the end of the list to its start, whatever the ids: they are not sorted"
    check("free([2, 0, 1]) after allocate(4)", unused, [1, 0, 2], why)
    check("the free blocks after free([2, 0, 1])", pool.free_order(), [2, 0, 1], why)
    why = "the list is the caller's block table: read it, don't change it"
    check("the list that was passed to free([2, 0, 1])", blocks, [2, 0, 1], why)
    why = "in the order in which the stack gave them: the top comes first, whatever its id. Don't sort"
    with trying("allocate(3) after free([2, 0, 1])"):
        check("allocate(3) after free([2, 0, 1])", pool.allocate(3), [2, 0, 1], why)


def test_no_blocks_at_all(exercise: ModuleType) -> None:
    """A list without blocks is no error: nothing is shared and nothing is freed."""
    pool = exercise.BlockAllocator(2)
    why = "an empty list is a normal case: there is nothing to do"
    with trying("share([])", only_for((LookupError, ValueError), why)):
        pool.share([])
    with trying("free([])", only_for((LookupError, ValueError), why)):
        check("free([])", pool.free([]), [], "free returns a list, an empty one where no block fell to zero")
    check(f"{STATE} after share([]) and free([])", state(pool), ([0, 1], [0, 0], 0), why)


def test_the_stack_is_the_allocators_own(exercise: ModuleType) -> None:
    """What the caller does to a list that `allocate` or `free` returned is not seen in the pool."""
    pool = exercise.BlockAllocator(2)
    with trying("free([0, 1]) after allocate(2) from a pool of 2 blocks"):
        taken = pool.allocate(2)
        taken.clear()
        unused = pool.free([0, 1])
        unused.clear()
    tried = "the free blocks after free([0, 1]) of a full pool, and after the caller has cleared its answer"
    why = "the list that was returned is the stack itself: extend `_free`, and return a list of its own"
    check(tried, pool.free_order(), [0, 1], why)


def test_blocks_may_come_from_any_iterable(exercise: ModuleType) -> None:
    """`share` and `free` take the ids from any iterable."""
    pool = exercise.BlockAllocator(2)
    why = "an iterator can be walked once: walk the list that `_checked` makes of it"
    with trying("share(iter([0])) after allocate(2)", only_for(TypeError, why)):
        pool.allocate(2)
        pool.share(iter([0]))
    check("the count of block 0 after share(iter([0]))", pool.reference_count(0), 2, why)
    with trying("free(iter([1])) after allocate(2)", only_for(TypeError, why)):
        unused = pool.free(iter([1]))
    check("free(iter([1])) after allocate(2)", unused, [1], why)
    check("the free blocks after free(iter([1]))", pool.free_order(), [1], why)


def test_double_free(exercise: ModuleType) -> None:
    """A block can be freed as often as it is used, and freeing it once more changes nothing."""
    pool = exercise.BlockAllocator(3)
    with trying("free([0]) after allocate(2)"):
        pool.allocate(2)
        pool.free([0])
    before = state(pool)
    twice = (
        "a block freed twice would be on the stack twice, and two requests would write to it (double free)"
    )
    check_raises("free([0]) again", ValueError, lambda: pool.free([0]), twice)
    check(f"{STATE} after free([0]) twice", state(pool), before, twice)
    check_raises("free([1, 1]), where 1 has one user", ValueError, lambda: pool.free([1, 1]), twice)
    partly = (
        "block 1 was given up before the double free was noticed: check the whole list first, all or nothing"
    )
    check(f"{STATE} after the refused free([1, 1])", state(pool), before, partly)
    check_raises("free([1, 0]), where 0 is free", ValueError, lambda: pool.free([1, 0]), twice)
    check(f"{STATE} after the refused free([1, 0])", state(pool), before, partly)
    check("num_in_use after two refused frees", pool.num_in_use, 1, partly)


def test_one_call_may_free_several_uses(exercise: ModuleType) -> None:
    """A block may be named as often in one call as its count says."""
    why = (
        "block 0 has two users and is named twice: it falls to zero at the second time, seen from the end, "
        "and is returned once"
    )
    for blocks in ([0, 0, 1], [0, 1, 0]):
        pool = exercise.BlockAllocator(2)
        tried = f"free({blocks}) where block 0 has two users"
        with trying(tried, only_for(ValueError, why)):
            pool.allocate(2)
            pool.share([0])
            unused = pool.free(blocks)
        check(tried, unused, [1, 0], why)
        check(f"the free blocks after free({blocks})", pool.free_order(), [0, 1], why)


def test_a_block_that_is_not_of_this_pool(exercise: ModuleType) -> None:
    """A block that the pool doesn't have is refused, and nothing changes."""
    pool = exercise.BlockAllocator(2)
    with trying("allocate(1) from a pool of 2 blocks"):
        pool.allocate(1)
    before = state(pool)
    why = "there are blocks 0 and 1 only, and Python reads -1 as the last one: `_checked` looks for that"
    for block in (2, -2):
        check_raises(f"free([0, {block}])", ValueError, lambda b=block: pool.free([0, b]), why)
        check_raises(f"share([0, {block}])", ValueError, lambda b=block: pool.share([0, b]), why)
        check(
            f"{STATE} after a refused free and share of [0, {block}]",
            state(pool),
            before,
            why,
        )


def test_ids_may_come_from_a_tensor(exercise: ModuleType) -> None:
    """The ids may be other integers than Python's own, such as the elements of a tensor."""
    why = (
        "ids may be elements of a tensor, and two elements that name one block hash apart: use "
        "the ids that `_checked` returns, which are plain integers"
    )
    no_key = only_for((LookupError, TypeError, ValueError), why)
    pool = exercise.BlockAllocator(3)
    with trying("share of a tensor's elements 0 and 0, after allocate(2)", no_key):
        pool.allocate(2)
        pool.share([TensorItem(0), TensorItem(0)])
    check("the count of block 0 after share of a tensor's elements 0 and 0", pool.reference_count(0), 3, why)
    before = state(pool)
    twice = [TensorItem(1), TensorItem(1)]
    tried = "free of a tensor's elements 1 and 1, where block 1 has one user"
    check_raises(tried, ValueError, lambda: pool.free(twice), why)
    check(f"{STATE} after the refused {tried}", state(pool), before, why)
    tried = "free of a tensor's elements 0 and 1, where block 0 has three users"
    with trying(tried, no_key):
        unused = pool.free([TensorItem(0), TensorItem(1)])
    check(tried, unused, [1], why)
    with trying("allocate(2) after it"):
        taken = pool.allocate(2)
    check(f"allocate(2) after {tried}", taken, [1, 2], why)
    views = (
        "an element of a tensor went on the stack, and changes when its tensor does: use the ids that "
        "`_checked` returns, which are plain integers"
    )
    kinds = [type(block).__name__ for block in (*unused, *taken)]
    check(f"the types of the ids that {tried}, and allocate(2) after it, returned", kinds, ["int"] * 3, views)


def test_a_long_life(exercise: ModuleType) -> None:
    """Whatever happens, free and used blocks add up, and no block is handed out twice."""
    pool = exercise.BlockAllocator(8)
    tables: list[list[int]] = []
    with trying("60 rounds of allocate, share and free in a pool of 8 blocks"):
        for turn in range(60):
            if turn % 3 == 2 and tables:
                pool.free(tables.pop(turn % len(tables)))
            elif turn % 3 == 1 and tables:
                pool.share(tables[0])
                tables.append(list(tables[0]))
            elif pool.num_free >= 1 + turn % 2:
                tables.append(pool.allocate(1 + turn % 2))
            in_use = len({block for table in tables for block in table})
            why = "_num_in_use changes only where a count leaves or reaches 0"
            check(f"num_in_use after round {turn}", pool.num_in_use, in_use, why)
            named = [sum(table.count(block) for table in tables) for block in range(8)]
            why = "a block's count is the number of table entries that name it"
            check(f"all counts after round {turn}", state(pool)[1], named, why)
            free = [block for block in range(8) if not named[block]]
            why = "a block is on the stack exactly when no table names it, and once"
            check(f"the free blocks after round {turn}", sorted(pool.free_order()), free, why)


def _not_in_use(got: Any) -> str:
    if got < 0:
        return "two uses were given up, but one block: _num_in_use falls by one when a count reaches 0"
    return "the count of block 0 has reached 0: free lowers _num_in_use too"


def _not_the_top(got: Any) -> str:
    if got and isinstance(got, list) and max(got) > 2:
        return "the top of the stack is the end of the list `_free`: that is what list.pop() takes"
    return "allocate returns a list of the ids it took, in the order in which the stack gave them"
