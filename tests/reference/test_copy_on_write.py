"""Copy-on-write: a block is copied only when somebody else still reads it, and then exactly once.

The tests keep real contents in the pool, so a fork that overwrites its sibling is seen in what the sibling
reads. A failed copy must leave the table, the counts and the free list as they were.
"""

from copy import deepcopy
from typing import Any

import pytest

from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.block_table import BlockTable
from minipaged.reference.copy_on_write import copy_blocks, copy_on_write, independent_copies
from minipaged.reference.prefix_cache import PrefixCache
from minipaged.reference.prefix_chain import PrefixChain

BLOCK_SIZE = 4


class Pool:
    """A pool whose slots hold characters, and the sequences that write to it."""

    def __init__(self, num_blocks: int = 10) -> None:
        self.allocator = BlockAllocator(num_blocks)
        self.slots: list[Any] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self.copies: list[tuple[int, int]] = []

    def prompt(self, text: str) -> BlockTable:
        table = BlockTable(BLOCK_SIZE)
        for token in text:
            self.append(table, token)
        return table

    def fork(self, table: BlockTable) -> BlockTable:
        self.allocator.share(table.blocks)
        return table.fork()

    def append(self, table: BlockTable, token: str) -> None:
        table.append(1, self.allocator.allocate(table.num_blocks_needed(1)))
        index, offset = divmod(table.num_tokens - 1, BLOCK_SIZE)
        pair = copy_on_write(table.blocks, index, self.allocator)
        if pair is not None:
            copy_blocks(self.slots, [pair[0]], [pair[1]])
            self.copies.append(pair)
        self.slots[table.blocks[index]][offset] = token

    def read(self, table: BlockTable) -> str:
        """The text of a sequence; fails on a slot that was never written, which holds None."""
        places = [divmod(position, BLOCK_SIZE) for position in range(table.num_tokens)]
        return "".join(self.slots[table.blocks[index]][offset] for index, offset in places)

    def counts(self, table: BlockTable) -> list[int]:
        return [self.allocator.reference_count(block) for block in table.blocks]


def test_two_forks_of_six_tokens_need_one_copy():
    pool = Pool()
    parent = pool.prompt("abcdef")
    child = pool.fork(parent)
    assert pool.counts(parent) == [2, 2]
    assert pool.allocator.num_in_use == 2

    pool.append(child, "X")  # shared: the child gets a copy of the tail
    pool.append(parent, "Y")  # the parent is the tail's only user by now
    assert pool.copies == [(1, 2)]
    assert (parent.blocks, child.blocks) == ([0, 1], [0, 2])
    assert pool.allocator.num_in_use == 3
    assert (pool.counts(parent), pool.counts(child)) == ([2, 1], [2, 1])
    assert (pool.read(parent), pool.read(child)) == ("abcdefY", "abcdefX")

    pool.append(child, "Z")
    assert len(pool.copies) == 1
    assert (pool.read(parent), pool.read(child)) == ("abcdefY", "abcdefXZ")


def test_three_forks_of_six_tokens_need_two_copies():
    pool = Pool()
    parent = pool.prompt("abcdef")
    tables = [parent, pool.fork(parent), pool.fork(parent)]
    for table, token in zip(tables, "XYZ", strict=True):
        pool.append(table, token)
    assert len(pool.copies) == 2
    assert pool.allocator.num_in_use == 4
    assert [pool.read(table) for table in tables] == ["abcdefX", "abcdefY", "abcdefZ"]
    assert pool.counts(parent) == [3, 1]


def test_a_fork_at_a_full_block_copies_nothing():
    pool = Pool()
    parent = pool.prompt("abcdefgh")
    child = pool.fork(parent)
    pool.append(child, "X")
    pool.append(parent, "Y")
    assert pool.copies == []
    assert pool.allocator.num_in_use == 4
    assert (pool.read(parent), pool.read(child)) == ("abcdefghY", "abcdefghX")


def test_a_block_of_ones_own_is_left_alone():
    allocator = BlockAllocator(2)
    table = allocator.allocate(2)
    before = deepcopy(vars(allocator))
    assert copy_on_write(table, 1, allocator) is None
    assert table == [0, 1]
    assert vars(allocator) == before


def test_only_the_written_entry_is_repointed():
    allocator = BlockAllocator(4)
    table = allocator.allocate(3)
    allocator.share(table)
    assert copy_on_write(table, 1, allocator) == (1, 3)
    assert table == [0, 3, 2]
    assert [allocator.reference_count(block) for block in range(4)] == [2, 1, 2, 1]


def test_without_a_free_block_nothing_changes():
    allocator = BlockAllocator(2)
    table = allocator.allocate(2)
    allocator.share(table)
    before = deepcopy(vars(allocator))
    with pytest.raises(OutOfBlocksError) as caught:
        copy_on_write(table, 1, allocator)
    assert caught.value.missing == 1
    assert table == [0, 1]
    assert allocator.reference_count(1) == 2
    assert vars(allocator) == before


def test_a_table_that_names_a_free_block_is_an_error_and_changes_nothing():
    allocator = BlockAllocator(3)
    table = allocator.allocate(1)
    allocator.free(table)
    before = deepcopy(vars(allocator))
    with pytest.raises(ValueError, match="block 0 "):
        copy_on_write(table, 0, allocator)
    assert table == [0]
    assert vars(allocator) == before


def test_when_both_beams_come_from_one_parent_the_other_dies_and_the_parent_lives():
    """The forks are counted before the old beams are given up, else A's blocks would be lost on the way."""
    pool = Pool()
    beam_a, beam_b = pool.prompt("abcdef"), pool.prompt("uvwxyz")
    tail_of_b = beam_b.blocks[1]
    children = [pool.fork(beam_a), pool.fork(beam_a)]
    assert pool.counts(beam_a) == [3, 3]
    pool.allocator.free(beam_a.blocks)
    pool.allocator.free(beam_b.blocks)
    assert pool.counts(beam_a) == [2, 2]
    assert pool.allocator.reference_count(tail_of_b) == 0
    assert pool.allocator.free_order()[:2] == beam_b.blocks

    for child, token in zip(children, "XY", strict=True):
        pool.append(child, token)
    assert pool.copies == [(1, beam_b.blocks[0])]
    assert pool.allocator.num_in_use == 3
    assert [pool.read(child) for child in children] == ["abcdefX", "abcdefY"]


def test_freed_before_it_is_forked_a_parent_is_refused():
    pool = Pool()
    parent = pool.prompt("abcdef")
    pool.allocator.free(parent.blocks)
    with pytest.raises(ValueError, match="is free"):
        pool.fork(parent)


def test_a_copy_may_take_the_place_of_a_cached_block():
    cache = PrefixCache(BlockAllocator(2))
    (old,) = cache.allocate(1)
    cache.publish(PrefixChain([1, 2, 3, 4], BLOCK_SIZE), [old], 0, 1)
    cache.free([old])
    table = cache.allocate(1)
    cache.share(table)  # a second table
    assert cache.allocator.num_free == 0
    assert copy_on_write(table, 0, cache) == (1, old)
    assert not cache.is_findable(old)
    assert cache.reference_count(1) == cache.reference_count(old) == 1


def test_whole_blocks_are_copied_for_all_layers_and_are_no_alias():
    pool = [[[[block * 10 + slot] for slot in range(2)] for _ in "kv"] for block in range(5)]
    expected = deepcopy(pool)
    expected[3], expected[4] = deepcopy(expected[0]), deepcopy(expected[0])
    copy_blocks(pool, [0, 0], [3, 4])  # one source may go to many
    assert pool == expected
    pool[3][0][1][0] = -1
    assert pool[0] == pool[4] == expected[0]


def test_copying_nothing_is_allowed():
    pool = [[1], [2]]
    copy_blocks(pool, [], [])
    assert pool == [[1], [2]]


@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        ([0, 1], [2], "2 sources but 1 destinations"),
        ([0, 3], [1, 2], "block 3 "),
        ([0, 1], [2, -1], "block -1 "),
        ([0, 1], [2, 2], "destinations must be distinct"),
        ([0, 1], [1, 2], r"blocks \[1\] are both"),
        ([1], [1], r"blocks \[1\] are both"),
    ],
)
def test_a_senseless_copy_changes_nothing(sources: list[int], destinations: list[int], message: str):
    pool = [[10], [11], [12]]
    with pytest.raises(ValueError, match=message):
        copy_blocks(pool, sources, destinations)
    assert pool == [[10], [11], [12]]


@pytest.mark.parametrize(
    ("pairs", "launches"),
    [
        ([], []),
        ([(1, 2), (1, 3), (4, 5)], [[(1, 2), (1, 3), (4, 5)]]),
        ([(5, 9), (7, 5)], [[(5, 9)], [(7, 5)]]),  # 5 was given up by its last reader, and taken again
        ([(5, 9), (7, 9)], [[(5, 9)], [(7, 9)]]),  # 9 was given up before it was ever written
        ([(5, 9), (9, 3), (1, 2), (2, 4)], [[(5, 9)], [(9, 3), (1, 2)], [(2, 4)]]),
    ],
)
def test_copies_of_one_step_keep_their_order(pairs, launches):
    assert independent_copies(pairs) == launches
    pool, expected = [[block] for block in range(10)], [[block] for block in range(10)]
    for launch in independent_copies(pairs):
        copy_blocks(pool, [pair[0] for pair in launch], [pair[1] for pair in launch])
    for source, destination in pairs:
        expected[destination] = list(expected[source])
    assert pool == expected
