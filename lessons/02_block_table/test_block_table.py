"""Grades lesson 2: the walk-through of the README to the number, then other lengths and block sizes."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from minipaged.course.checks import check, check_raises, only_for, trying

# Counted by hand, for 0 to 9 tokens in blocks of 4.
BLOCKS = [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]
EMPTY = [0, 3, 2, 1, 0, 3, 2, 1, 0, 3]
IN_LAST = [0, 1, 2, 3, 4, 1, 2, 3, 4, 1]

NOTHING = "without tokens there is no block, so there is nothing in it: 0"
ANY_SIZE = "a block size need not be a power of two: divide by it, a shift and a mask won't do"
NEW_BLOCKS = "new blocks go to the end, in the order they came"


def test_blocks_for_a_number_of_tokens(exercise: ModuleType) -> None:
    """A block is counted as soon as one token lies in it, and no sooner."""
    for size, wanted in ((4, BLOCKS), (1, list(range(10))), (3, [0, 1, 1, 1, 2, 2, 2, 3, 3, 3])):
        for tokens, blocks in enumerate(wanted):
            tried = f"num_blocks_for({tokens}, {size})"
            with trying(tried):
                check(
                    tried, exercise.num_blocks_for(tokens, size), blocks, _early_or_late(tokens, size, blocks)
                )


def test_blocks_for_a_large_number_of_tokens(exercise: ModuleType) -> None:
    """The quotient is exact, however large the number."""
    tried = "num_blocks_for(2**60 + 1, 16)"
    why = "a quotient by / is a float, which rounds large numbers: // keeps all digits"
    with trying(tried):
        check(tried, exercise.num_blocks_for(2**60 + 1, 16), 2**56 + 1, why)


def test_slots_by_hand(exercise: ModuleType) -> None:
    """A slot is block * block_size + offset, with the block that the table names."""
    why = "block 0 is a block like any other: only an entry below 0 is none"
    with trying("slot_mapping([0], [0], 4)", only_for(ValueError, why)):
        got = exercise.slot_mapping([0], [0], 4)
    kind = "slots come as a list: what is walked later would also be refused later"
    check("the type of slot_mapping([0], [0], 4)", type(got).__name__, "list", kind)
    check("slot_mapping([0], [0], 4)", got, [0], why)
    for table, position, size, slot in (
        ([11, 12], 0, 4, 44),
        ([11, 12], 3, 4, 47),
        ([11, 12], 4, 4, 48),
        ([11, 12], 5, 4, 49),
        ([7, 0, 3], 5, 2, 7),
        ([7, 0, 3], 2, 2, 0),
        ([2, 9], 4, 3, 28),
    ):
        tried = f"slot_mapping({table}, [{position}], {size})"
        where = f"position {position} is in entry {position // size} of this table: {position} // {size}"
        with trying(tried, only_for(IndexError, ANY_SIZE if size == 3 else where)):
            check(
                tried,
                exercise.slot_mapping(table, [position], size),
                [slot],
                _wrong_slot(table, position, size),
            )
    with trying("slot_mapping([5, 2], iter([3, 0, 3]), 2)", _of_an_iterator):
        got = exercise.slot_mapping([5, 2], iter([3, 0, 3]), 2)
    check(
        "slot_mapping([5, 2], iter([3, 0, 3]), 2)",
        got,
        [5, 10, 5],
        "one slot for each position, in their order",
    )
    why = "slot of each position, from the table as it is: a tuple of ids, in which block 5 stands twice"
    with trying("slot_mapping((5, 5), [0, 3], 2)", only_for((AttributeError, TypeError), why)):
        got = exercise.slot_mapping((5, 5), [0, 3], 2)
    check("slot_mapping((5, 5), [0, 3], 2)", got, [10, 11], why)
    why = "no position, no slot: an empty table is no error"
    with trying("slot_mapping([], [], 4)", only_for((LookupError, ValueError), why)):
        check("slot_mapping([], [], 4)", exercise.slot_mapping([], [], 4), [], why)


def test_slots_that_are_not_there(exercise: ModuleType) -> None:
    """A position outside of the table, or an entry that is padding, is refused."""
    beyond = "a table of 2 blocks of 4 has positions 0 to 7: a slot outside is another sequence's"
    wraps = "Python reads table[-1] as the last entry: a position below 0 must be refused, not wrapped"
    for position, why in ((8, beyond), (100, beyond), (-1, wraps), (-8, wraps)):
        tried = f"slot_mapping([11, 12], [{position}], 4)"
        check_raises(tried, IndexError, lambda p=position: exercise.slot_mapping([11, 12], [p], 4), why)
    why = "look at each position, not only at the first: -1 is below 0 and would wrap"
    check_raises(
        "slot_mapping([11, 12], [0, -1], 4)",
        IndexError,
        lambda: exercise.slot_mapping([11, 12], [0, -1], 4),
        why,
    )
    padding = "an entry below 0 is padding and no block: its slot would lie outside of the pool"
    any_below = "every entry below 0 is no block, not only -1"
    later = "look at the entry of each position, not only of the first: position 7 uses entry 1, which is -1"
    for entry, positions, why in ((-1, [7], padding), (-2, [7], any_below), (-1, [3, 7], later)):
        tried = f"slot_mapping([11, {entry}], {positions}, 4)"
        check_raises(
            tried, ValueError, lambda e=entry, p=positions: exercise.slot_mapping([11, e], p, 4), why
        )
    why = "only the entries that are used need to be blocks"
    with trying("slot_mapping([11, -1], [3], 4)", only_for(ValueError, why)):
        got = exercise.slot_mapping([11, -1], [3], 4)
    check("slot_mapping([11, -1], [3], 4)", got, [47], why)
    why = "a block size is a positive integer: check_block_size says so for you"
    for size in (0, -2, 2.5, 4.0, True):
        kind = "" if type(size) is int else f"{size!r} is a {type(size).__name__}: "
        tried = f"slot_mapping([1], [0], {size})"
        check_raises(tried, ValueError, lambda s=size: exercise.slot_mapping([1], [0], s), kind + why)
    tried = "slot_mapping([], [], 0)"
    check_raises(tried, ValueError, lambda: exercise.slot_mapping([], [], 0), f"no position either: {why}")


def test_a_slot_holds_a_token(exercise: ModuleType) -> None:
    """A sequence has slots for its tokens only: the empty ones of its last block are not theirs yet."""
    for size, blocks, slots in (
        (4, [], []),
        (3, [2], [6]),
        (4, [11, 12], [44, 45, 46, 47, 48, 49]),
        (4, [11, 12], [44, 45, 46, 47, 48, 49, 50, 51]),
    ):
        tokens = len(slots)
        table = exercise.BlockTable(size, blocks, tokens)
        for position, slot in enumerate(slots):
            tried = f"slot({position}) of {tokens} tokens in blocks {blocks} of {size}"
            with trying(tried, only_for(IndexError, "every position below num_tokens has a slot")):
                got = table.slot(position)
            check(tried, got, slot, "block * block_size + offset, one number: what slot_mapping says of it")
        empty = "no token is there: what lies in an empty slot is stale, compare with num_tokens"
        wraps = "a position below 0 is no token's: it must be refused, not wrapped"
        for position, why in ((tokens, empty), (tokens + 1, empty), (-1, wraps)):
            tried = f"slot({position}) of {tokens} tokens in blocks {blocks} of {size}"
            check_raises(tried, IndexError, lambda t=table, p=position: t.slot(p), why)


def test_the_greeting(exercise: ModuleType) -> None:
    """The walk-through: six tokens in blocks 11 and 12, and block 13 when the ninth arrives."""
    free = [11, 12, 13, 14, 15, 16]
    table = exercise.BlockTable(4)
    with trying("num_blocks_needed(6) of an empty table, block size 4"):
        needed = table.num_blocks_needed(6)
    check(
        "num_blocks_needed(6) of an empty table, block size 4",
        needed,
        2,
        "6 tokens: 4 in a full block, 2 in another",
    )
    with trying("append(6, [11, 12]) to an empty table"):
        table.append(6, [free.pop(0) for _ in range(needed)])
    check("the table after the prompt of 6 tokens", table.blocks, [11, 12], NEW_BLOCKS)
    with trying("slot(0) to slot(5)"):
        slots = [table.slot(position) for position in range(6)]
    why = "block 11 has slots 44 to 47, block 12 slots 48 to 51"
    check("slot(0) to slot(5) of table [11, 12]", slots, [44, 45, 46, 47, 48, 49], why)
    for tokens, blocks in ((7, [11, 12]), (8, [11, 12]), (9, [11, 12, 13])):
        with trying(f"the token that makes it {tokens}"):
            needed = table.num_blocks_needed(1)
            check(
                f"num_blocks_needed(1) with {tokens - 1} tokens in blocks of 4", needed,
                len(blocks) - len(table.blocks), _early_or_late(tokens, 4, len(blocks) - len(table.blocks)),
            )  # fmt: skip
            table.append(1, [free.pop(0) for _ in range(needed)])
        why = (
            "block 13 comes with the ninth token: at the eighth, block 12 is full, and that is no reason yet"
        )
        check(f"the table with {tokens} tokens", table.blocks, blocks, _out_of_order(blocks, why))
        check(
            f"num_tokens with {tokens} tokens", table.num_tokens, tokens, "append counts the tokens it adds"
        )


def test_block_0_is_appended(exercise: ModuleType) -> None:
    """Block 0 is a block like any other."""
    table = exercise.BlockTable(4)
    why = "block 0 is a block like any other: 0 is falsy in Python, but it is an id here, and not `none`"
    with trying("append(1, [0]) to an empty table", only_for(ValueError, why)):
        table.append(1, [0])
    check("the table after append(1, [0])", table.blocks, [0], why)


def test_every_length_by_hand(exercise: ModuleType) -> None:
    """With 1 to 9 tokens in blocks of 4: how many blocks, empty slots, and tokens in the last block."""
    table = exercise.BlockTable(4)
    for tokens in range(10):
        if tokens:
            with trying(f"append(1) to {tokens - 1} tokens in blocks of 4"):
                table.append(1, range(100 + len(table.blocks), 100 + BLOCKS[tokens]))
        check(
            f"the number of blocks of {tokens} tokens in blocks of 4", len(table.blocks), BLOCKS[tokens], ""
        )
        with trying(f"num_empty_slots of {tokens} tokens in blocks of 4"):
            got = table.num_empty_slots
        why = (
            "slots in all blocks, less the tokens: at most block_size - 1, and 0 where the last block is full"
            if tokens
            else NOTHING
        )
        check(f"num_empty_slots of {tokens} tokens in blocks of 4", got, EMPTY[tokens], why)
        with trying(f"last_block_length of {tokens} tokens in blocks of 4"):
            got = table.last_block_length
        why_length = _last_length if tokens else NOTHING
        check(f"last_block_length of {tokens} tokens in blocks of 4", got, IN_LAST[tokens], why_length)


def test_other_block_sizes(exercise: ModuleType) -> None:
    """Any block size will do: 1, 3 and 16 too, and many tokens at once."""
    for size, first, more, blocks, empty, last in (
        (1, 2, 3, 5, 0, 1),
        (3, 3, 1, 2, 2, 1),
        (3, 4, 5, 3, 0, 3),
        (16, 1, 31, 2, 0, 16),
        (16, 0, 33, 3, 15, 1),
        (5, 7, 0, 2, 3, 2),
    ):
        table = exercise.BlockTable(size)
        tried = f"{first} tokens, then {more} more, in blocks of {size}"
        with trying(tried):
            table.append(first, range(table.num_blocks_needed(first)))
            table.append(more, range(50, 50 + table.num_blocks_needed(more)))
            check(
                f"blocks of {tried}",
                len(table.blocks),
                blocks,
                "what the new total needs, less what is there",
            )
            check(
                f"num_empty_slots of {tried}",
                table.num_empty_slots,
                empty,
                "slots in all blocks, less the tokens",
            )
            check(f"last_block_length of {tried}", table.last_block_length, last, _last_length)


def test_exactly_the_blocks_that_are_needed(exercise: ModuleType) -> None:
    """`append` takes exactly the blocks that are needed; otherwise it changes nothing."""
    table = exercise.BlockTable(4, [11, 12], 6)
    for number, blocks in ((1, [13]), (2, [13]), (3, []), (3, [13, 14]), (0, [13]), (7, [13])):
        tried = f"append({number}, {blocks}) to 6 tokens in 2 blocks of 4"
        why = "a block too many would be lost, with one too few a token has no slot: refuse both"
        check_raises(tried, ValueError, lambda n=number, b=blocks: table.append(n, b), why)
        state = (table.blocks, table.num_tokens)
        why = "a refused append must change nothing: look at the number of blocks first"
        check(f"blocks and num_tokens after the refused {tried}", state, ([11, 12], 6), why)
    for number, why in (
        (-1, "tokens can't be taken back: _check_not_negative says so"),
        (1.0, "1.0 is a float, and num_tokens would be one from now on: _check_not_negative refuses it"),
        (True, "True is no number of tokens: _check_not_negative refuses it"),
    ):
        tried = f"append({number}) to 6 tokens in 2 blocks of 4"
        check_raises(tried, ValueError, lambda n=number: table.append(n), why)
        why = "a refused append must change nothing: look at the number of tokens first"
        check(f"blocks and num_tokens after {tried}", (table.blocks, table.num_tokens), ([11, 12], 6), why)
    why = "`new_blocks` may be left out if none is needed"
    with trying("append(2) to 6 tokens in 2 blocks of 4", only_for((TypeError, ValueError), why)):
        table.append(2)
    check(
        "num_tokens after append(2) to 6 tokens",
        table.num_tokens,
        8,
        "the last two slots of block 12 are filled",
    )


def test_blocks_may_come_from_any_iterable(exercise: ModuleType) -> None:
    """`append` takes new blocks from any iterable, once, and keeps a list of its own."""
    table = exercise.BlockTable(2)
    with trying("append(5, iter([4, 9, 1]))", _of_an_iterator):
        table.append(5, iter([4, 9, 1]))
    why = _out_of_order([4, 9, 1], "an iterator can be walked once: make a list of it first")
    check("blocks after append(5, iter([4, 9, 1]))", table.blocks, [4, 9, 1], why)
    why = "the caller's list must not become the table's own: whoever changes one would change both"
    for table in (exercise.BlockTable(2), exercise.BlockTable(2, [4, 9, 1], 5)):
        mine, before = [7], list(table.blocks)
        tried = f"append(2, [7]) to a table of blocks {before}"
        with trying(tried):
            table.append(2, mine)
        check(
            f"the caller's list after {tried}", mine, [7], "the caller's list stays as it was: only read it"
        )
        mine.append(99)
        check(
            f"the table after {tried}, and the caller's change of its list", table.blocks, [*before, 7], why
        )


def test_a_table_that_is_made_whole(exercise: ModuleType) -> None:
    """Blocks and tokens must fit from the start; the slots of a longer sequence follow its table."""
    with trying("BlockTable(4, [11, 12, 13], 9)"):
        table = exercise.BlockTable(4, [11, 12, 13], 9)
        got = [table.slot(position) for position in (0, 3, 4, 7, 8)]
    check("slots 0, 3, 4, 7, 8 of table [11, 12, 13]", got, [44, 47, 48, 51, 52], "block * 4 + offset")
    why = "9 tokens need 3 blocks of 4: the constructor asks num_blocks_for"
    check_raises("BlockTable(4, [11, 12], 9)", ValueError, lambda: exercise.BlockTable(4, [11, 12], 9), why)
    check_raises(
        "BlockTable(4, [11, 12, 13], 8)", ValueError, lambda: exercise.BlockTable(4, [1, 2, 3], 8), why
    )


def _of_an_iterator(error: BaseException) -> str:
    """The reason for an exception where an iterator was passed."""
    if isinstance(error, TypeError):
        return "any iterable may come, so it has no len() and no entries: walk it, or make a list of it first"
    if isinstance(error, ValueError | IndexError):
        return "an iterator can be walked once, and is empty then: make a list of it first"
    return ""


def _early_or_late(tokens: int, size: int, wanted: int) -> Any:
    def why(got: Any) -> str:
        exact = tokens % size == 0 and tokens > 0
        if isinstance(got, int) and got > wanted:
            return (
                f"one block too early: {tokens} tokens fill their blocks of {size}, the next one needs it"
                if exact
                else "one block too early: its empty slots come first"
            )
        if isinstance(got, int) and got < wanted:
            return (
                "one block too late: a token would be without a slot, round the quotient up, "
                "not down or to the nearest"
            )
        return "a number of blocks, an int"

    return why


def _out_of_order(blocks: list[int], otherwise: str) -> Any:
    def why(got: Any) -> str:
        return NEW_BLOCKS if isinstance(got, list) and all(b in got for b in blocks) else otherwise

    return why


def _wrong_slot(table: list[int], position: int, size: int) -> Any:
    def why(got: Any) -> str:
        entry, offset = position // size, position % size
        if got == [position]:
            return "that is the position itself: the block table was not asked"
        if got == [entry * size + offset] or got == [entry * size]:
            return "that uses the entry's index for a block: the table says which block the entry names"
        if got == [table[entry] * size]:
            return "the offset within the block is missing: position % block_size"
        if got == [table[entry] + offset]:
            return "a block begins at slot block * block_size, not at slot block"
        return "slot = block * block_size + offset, with block = table[position // block_size]"

    return why


def _last_length(got: Any) -> str:
    if got == 0:
        return (
            "a full last block has block_size tokens: num_tokens % block_size gives 0 at every exact multiple"
        )
    return "num_tokens less block_size for each block before the last: it is not always full"
