"""Beams share what they have in common. Tables, counts and copies here were worked out by hand."""

from __future__ import annotations

import pytest

from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.beam_search import fork_beams, reorder_beams
from minipaged.reference.block_table import BlockTable, num_blocks_for
from minipaged.reference.prefix_cache import PrefixCache

BLOCK_SIZE = 4


def prompt(allocator: BlockAllocator, num_tokens: int, block_size: int = BLOCK_SIZE) -> BlockTable:
    return BlockTable(block_size, allocator.allocate(num_blocks_for(num_tokens, block_size)), num_tokens)


def counts(allocator: BlockAllocator) -> list[int]:
    return [allocator.reference_count(block) for block in range(allocator.num_blocks)]


def blocks(tables: list[BlockTable]) -> list[list[int]]:
    return [table.blocks for table in tables]


def test_a_prompt_forks_into_beams_that_share_all_but_their_last_block() -> None:
    allocator = BlockAllocator(8)
    tables, copies = reorder_beams([prompt(allocator, 6)], [0, 0, 0], allocator)
    # Blocks 0 (full) and 1 (two of four). Two of the three writers get a copy, the last one keeps block 1.
    assert blocks(tables) == [[0, 2], [0, 3], [0, 1]]
    assert copies == [(1, 2), (1, 3)]
    assert counts(allocator) == [3, 1, 1, 1, 0, 0, 0, 0]
    assert allocator.free_order() == [4, 5, 6, 7]
    assert [table.num_tokens for table in tables] == [6, 6, 6]


@pytest.mark.parametrize("num_beams", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_tokens", range(1, 9))
def test_a_fork_copies_once_less_than_there_are_beams_and_nothing_at_a_blocks_edge(
    num_beams: int, num_tokens: int
) -> None:
    allocator = BlockAllocator(16)
    _, copies = reorder_beams([prompt(allocator, num_tokens)], [0] * num_beams, allocator)
    is_partial = num_tokens not in (4, 8)
    assert len(copies) == (num_beams - 1 if is_partial else 0)
    num_full = {1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1, 8: 2}[num_tokens]
    assert allocator.num_in_use == num_full + (num_beams if is_partial else 0)


def test_beams_from_one_parent_outlive_the_other() -> None:
    allocator = BlockAllocator(6)
    first, second = prompt(allocator, 6), prompt(allocator, 7)  # blocks 0, 1 and 2, 3
    tables, copies = reorder_beams([first, second], [0, 0], allocator)
    # Given up from the tail on, so block 2 is on top of the stack, and becomes the copy.
    assert copies == [(1, 2)]
    assert blocks(tables) == [[0, 2], [0, 1]]
    assert counts(allocator) == [2, 1, 1, 0, 0, 0]
    assert allocator.free_order() == [3, 4, 5]


def test_beams_that_only_change_places_copy_nothing() -> None:
    allocator = BlockAllocator(4)
    first, second = prompt(allocator, 6), prompt(allocator, 5)
    tables, copies = reorder_beams([first, second], [1, 0], allocator)
    assert (blocks(tables), copies) == ([[2, 3], [0, 1]], [])
    assert [table.num_tokens for table in tables] == [5, 6]
    assert counts(allocator) == [1, 1, 1, 1]


def test_a_block_that_others_read_is_copied_for_every_writer() -> None:
    allocator = BlockAllocator(6)
    table = prompt(allocator, 2)
    allocator.share(table.blocks)  # a sequence outside this request
    tables, copies = reorder_beams([table], [0, 0], allocator)
    assert (blocks(tables), copies) == ([[1], [2]], [(0, 1), (0, 2)])
    assert counts(allocator) == [1, 1, 1, 0, 0, 0]


def test_all_beams_can_be_pruned() -> None:
    allocator = BlockAllocator(3)
    assert reorder_beams([prompt(allocator, 6)], [], allocator) == ([], [])
    assert allocator.free_order() == [0, 1, 2]


def test_a_full_pool_suffices_where_the_pruned_beam_gives_up_its_block() -> None:
    allocator = BlockAllocator(4)
    first, second = prompt(allocator, 6), prompt(allocator, 6)
    tables, copies = reorder_beams([first, second], [0, 0], allocator)
    assert (blocks(tables), copies) == ([[0, 2], [0, 1]], [(1, 2)])


def test_too_few_blocks_change_nothing_and_the_error_says_how_many() -> None:
    allocator = BlockAllocator(3)
    table = prompt(allocator, 6)  # 0 and 1, one is free
    with pytest.raises(OutOfBlocksError) as caught:
        reorder_beams([table], [0, 0, 0, 0], allocator)
    assert (caught.value.requested, caught.value.available, caught.value.missing) == (3, 1, 2)
    assert table.blocks == [0, 1]
    assert (counts(allocator), allocator.free_order()) == ([1, 1, 0], [2])


@pytest.mark.parametrize("parents", [[1], [0, 5], [-1]])
def test_a_parent_that_is_not_there_is_named(parents: list[int]) -> None:
    allocator = BlockAllocator(3)
    with pytest.raises(ValueError, match=f"parents: {parents[-1]} is not one of the 1 beams"):
        reorder_beams([prompt(allocator, 6)], parents, allocator)
    assert counts(allocator) == [1, 1, 0]


def test_four_beams_of_a_long_prompt_hold_what_they_share_once() -> None:
    # 400 tokens are 25 full blocks of 16. Each beam then adds 20 tokens, 2 blocks of its own: 25 + 4 x 2.
    # Without sharing it would be 4 x 27 = 108.
    allocator = BlockAllocator(200)
    tables, copies = reorder_beams([prompt(allocator, 400, 16)], [0] * 4, allocator)
    for _ in range(20):
        for table in tables:
            table.append(1, allocator.allocate(table.num_blocks_needed(1)))
    assert copies == []
    assert allocator.num_in_use == 33


def test_through_a_prefix_cache_dropped_blocks_are_evicted_for_the_copies() -> None:
    cache = PrefixCache(BlockAllocator(2))
    first = BlockTable(BLOCK_SIZE, cache.allocate(1), 2)
    second = BlockTable(BLOCK_SIZE, cache.allocate(1), 2)
    cache.allocator.retain(1)  # as if block 1 had been published
    cache._digests[1] = "digest"
    cache._blocks["digest"] = (None, 1)  # type: ignore[assignment]
    tables, copies = reorder_beams([first, second], [0, 0], cache)
    assert (blocks(tables), copies) == ([[1], [0]], [(0, 1)])
    assert cache.num_available == 0


@pytest.mark.parametrize("parents", [[0, 0], [1], []])
def test_blocks_that_are_named_more_often_than_counted_are_refused_and_nothing_changes(
    parents: list[int],
) -> None:
    allocator = BlockAllocator(4)
    table = prompt(allocator, 3)
    before = (counts(allocator), allocator.free_order())
    for tables in ([table, table], [table, BlockTable(BLOCK_SIZE, [3], 1)]):
        for reorder in (reorder_beams, fork_beams):
            with pytest.raises(ValueError, match="block_tables name block"):
                reorder(tables, parents, allocator)
            assert (counts(allocator), allocator.free_order()) == before


def test_a_dropped_block_that_is_retained_is_no_room_for_a_copy() -> None:
    allocator = BlockAllocator(2)
    first, second = prompt(allocator, 1), prompt(allocator, 1)
    allocator.retain(1)
    with pytest.raises(OutOfBlocksError, match="asked for 1 blocks, 0 available"):
        reorder_beams([first, second], [0, 0], allocator)
    assert counts(allocator) == [1, 1]


def test_parents_may_be_any_iterable() -> None:
    allocator = BlockAllocator(4)
    tables, copies = reorder_beams([prompt(allocator, 6)], (parent for parent in [0, 0]), allocator)
    assert (blocks(tables), copies) == ([[0, 2], [0, 1]], [(1, 2)])
