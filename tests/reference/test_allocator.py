"""The allocator: stack order, counts, and operations that either happen whole or not at all.

Every failed call is checked against a copy of the complete state. A small machine then runs random
operations beside a model that keeps a plain dictionary of counts.
"""

from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minipaged.course.checks import TensorItem
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError


def fails_unchanged(allocator: BlockAllocator, error: type[Exception], call: Any, *arguments: Any) -> str:
    """Assert that the call raises and leaves every part of the allocator as it was. Returns the message."""
    before = deepcopy(vars(allocator))
    with pytest.raises(error) as caught:
        call(*arguments)
    assert vars(allocator) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def states(allocator: BlockAllocator) -> tuple[int, int, int]:
    return allocator.num_free, allocator.num_in_use, allocator.num_cached


def test_blocks_are_handed_out_from_zero_and_one_at_a_time_or_many_is_the_same():
    allocator = BlockAllocator(5)
    assert allocator.free_order() == [0, 1, 2, 3, 4]
    assert allocator.allocate(2) == [0, 1]
    assert allocator.allocate() == [2]
    assert allocator.free_order() == [3, 4]
    assert [allocator.reference_count(block) for block in range(5)] == [1, 1, 1, 0, 0]
    assert states(allocator) == (2, 3, 0)


def test_the_last_block_freed_is_the_first_one_taken():
    allocator = BlockAllocator(5)
    allocator.allocate(5)
    assert allocator.free([1, 4, 2]) == [2, 4, 1]  # from the tail on
    assert allocator.free_order() == [1, 4, 2]
    assert allocator.free([0]) == [0]
    assert allocator.allocate(3) == [0, 1, 4]


def test_what_is_freed_as_a_whole_is_taken_again_in_the_same_order():
    allocator = BlockAllocator(5)
    table = allocator.allocate(4)
    order = allocator.free_order()
    allocator.free(table)
    assert allocator.free_order() == [*table, *order]
    assert allocator.allocate(4) == table


def test_free_order_is_a_copy():
    allocator = BlockAllocator(2)
    allocator.free_order().clear()
    assert allocator.num_free == 2


def test_allocating_nothing_is_allowed():
    allocator = BlockAllocator(1)
    assert allocator.allocate(0) == []
    assert allocator.free([]) == []
    allocator.share([])
    assert states(allocator) == (1, 0, 0)


def test_allocation_is_all_or_nothing():
    allocator = BlockAllocator(6)
    allocator.allocate(4)
    message = fails_unchanged(allocator, OutOfBlocksError, allocator.allocate, 5)
    assert message == "asked for 5 blocks, 2 available: 3 missing"
    assert allocator.allocate(2) == [4, 5]
    fails_unchanged(allocator, OutOfBlocksError, allocator.allocate, 1)


def test_the_error_says_how_many_blocks_were_missing():
    with pytest.raises(OutOfBlocksError) as caught:
        BlockAllocator(3).allocate(10)
    assert (caught.value.requested, caught.value.available, caught.value.missing) == (10, 3, 7)
    assert isinstance(caught.value, RuntimeError)


def test_a_block_is_freed_when_its_last_user_gives_it_up():
    allocator = BlockAllocator(3)
    blocks = allocator.allocate(2)
    allocator.share(blocks)
    allocator.share([0])
    assert [allocator.reference_count(block) for block in range(3)] == [3, 2, 0]
    assert states(allocator) == (1, 2, 0)
    assert allocator.free(blocks) == []
    assert allocator.free(blocks) == [1]
    assert states(allocator) == (2, 1, 0)
    assert allocator.free([0]) == [0]
    assert states(allocator) == (3, 0, 0)


def test_a_table_that_names_a_block_twice_frees_it_once():
    allocator = BlockAllocator(8)
    allocator.allocate(8)
    allocator.share([3])  # 3 has a count of two, 7 a count of one
    free_before = allocator.num_free
    assert allocator.free([3, 7, 3]) == [7, 3]
    assert allocator.num_free == free_before + 2
    assert allocator.free_order() == [3, 7]
    message = fails_unchanged(allocator, ValueError, allocator.free, [3, 7, 3])
    assert message.startswith("double free: block 3 ")


@pytest.mark.parametrize("blocks", [[0, 0], [1, 0, 0], [2], [1, 2], [1, 1, 1]])
def test_a_double_free_anywhere_in_the_list_changes_nothing(blocks: list[int]):
    allocator = BlockAllocator(3)
    allocator.allocate(2)
    allocator.share([1])  # counts 1, 2, 0
    assert "double free" in fails_unchanged(allocator, ValueError, allocator.free, blocks)


@pytest.mark.parametrize("blocks", [[2], [0, 2], [2, 0]])
def test_a_free_block_cannot_be_shared(blocks: list[int]):
    allocator = BlockAllocator(3)
    allocator.allocate(2)
    assert "block 2 is free" in fails_unchanged(allocator, ValueError, allocator.share, blocks)


def test_a_retained_block_is_cached_when_unused_and_can_come_back():
    allocator = BlockAllocator(3)
    allocator.allocate(2)
    allocator.retain(0)
    assert states(allocator) == (1, 2, 0)
    assert allocator.free([0, 1]) == [1, 0]
    assert states(allocator) == (2, 0, 1)
    assert allocator.free_order() == [1, 2]  # the cached block is not among them
    fails_unchanged(allocator, OutOfBlocksError, allocator.allocate, 3)
    fails_unchanged(allocator, ValueError, allocator.free, [0])

    allocator.share([0, 0])  # two tables at once
    assert allocator.reference_count(0) == 2
    assert states(allocator) == (2, 1, 0)
    allocator.free([0, 0])
    assert states(allocator) == (2, 0, 1)

    allocator.release(0)
    assert states(allocator) == (3, 0, 0)
    assert allocator.free_order() == [0, 1, 2]


def test_a_block_released_while_in_use_is_freed_as_any_other():
    allocator = BlockAllocator(1)
    allocator.allocate()
    allocator.retain(0)
    allocator.release(0)
    assert states(allocator) == (0, 1, 0)
    allocator.free([0])
    assert states(allocator) == (1, 0, 0)


def test_retain_and_release_refuse_what_makes_no_sense():
    allocator = BlockAllocator(2)
    allocator.allocate()
    assert "not in use" in fails_unchanged(allocator, ValueError, allocator.retain, 1)
    assert "not retained" in fails_unchanged(allocator, ValueError, allocator.release, 0)
    allocator.retain(0)
    assert "already" in fails_unchanged(allocator, ValueError, allocator.retain, 0)
    allocator.free([0])
    assert "not in use" in fails_unchanged(allocator, ValueError, allocator.retain, 0)
    allocator.release(0)
    assert "not retained" in fails_unchanged(allocator, ValueError, allocator.release, 0)


@pytest.mark.parametrize("block", [-1, 4, 99])
def test_a_block_outside_the_pool_is_refused(block: int):
    allocator = BlockAllocator(4)
    allocator.allocate(4)
    for call in (allocator.free, allocator.share):
        message = fails_unchanged(allocator, ValueError, call, [0, block])
        assert message == f"block {block} is not one of the 4 blocks of this pool"
    for call in (allocator.reference_count, allocator.retain, allocator.release):
        fails_unchanged(allocator, ValueError, call, block)


@pytest.mark.parametrize("num_blocks", [0, -1, True, False, 2.0, "3", None])
def test_the_number_of_blocks_is_a_positive_integer(num_blocks: Any):
    with pytest.raises(ValueError, match=f"num_blocks must be a positive integer, got {num_blocks!r}"):
        BlockAllocator(num_blocks)


def test_a_negative_request_is_refused():
    allocator = BlockAllocator(2)
    assert "-1" in fails_unchanged(allocator, ValueError, allocator.allocate, -1)


NUM_BLOCKS = 6
some_blocks = st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=3)
rank = st.integers(0, 1000)


class AllocatorMachine(RuleBasedStateMachine):
    """Random operations, valid and not, beside a dictionary of counts and a set of kept blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = BlockAllocator(NUM_BLOCKS)
        self.counts = dict.fromkeys(range(NUM_BLOCKS), 0)
        self.kept: set[int] = set()

    def free_blocks(self) -> set[int]:
        return {block for block, count in self.counts.items() if count == 0 and block not in self.kept}

    def entries(self) -> list[int]:
        """Every table entry there is: each block as often as it is counted."""
        return [block for block, count in self.counts.items() for _ in range(count)]

    @rule(num_blocks=st.integers(0, NUM_BLOCKS))
    def allocate(self, num_blocks: int) -> None:
        free = self.free_blocks()
        if num_blocks > len(free):
            fails_unchanged(self.allocator, OutOfBlocksError, self.allocator.allocate, num_blocks)
            return
        expected = self.allocator.free_order()[:num_blocks]
        taken = self.allocator.allocate(num_blocks)
        assert taken == expected
        assert len(set(taken)) == num_blocks and set(taken) <= free
        self.counts.update(dict.fromkeys(taken, 1))

    @precondition(lambda self: len(self.free_blocks()) < NUM_BLOCKS)
    @rule(ranks=st.lists(rank, min_size=1, max_size=3))
    def share(self, ranks: list[int]) -> None:
        shareable = sorted(set(self.counts) - self.free_blocks())
        blocks = [shareable[rank % len(shareable)] for rank in ranks]
        self.allocator.share(blocks)
        for block in blocks:
            self.counts[block] += 1

    @precondition(lambda self: self.entries())
    @rule(random=st.randoms(use_true_random=False), num_entries=st.integers(1, 4))
    def free(self, random: Random, num_entries: int) -> None:
        entries = self.entries()
        blocks = random.sample(entries, min(num_entries, len(entries)))
        stack = self.allocator.free_order()
        unused = self.allocator.free(blocks)
        for block in blocks:
            self.counts[block] -= 1
        assert sorted(unused) == sorted(block for block in set(blocks) if self.counts[block] == 0)
        pushed = [block for block in reversed(unused) if block not in self.kept]
        assert self.allocator.free_order() == pushed + stack

    @precondition(lambda self: set(self.entries()) - self.kept)
    @rule(rank=rank)
    def retain(self, rank: int) -> None:
        retainable = sorted(set(self.entries()) - self.kept)
        block = retainable[rank % len(retainable)]
        self.allocator.retain(block)
        self.kept.add(block)

    @precondition(lambda self: self.kept)
    @rule(rank=rank)
    def release(self, rank: int) -> None:
        block = sorted(self.kept)[rank % len(self.kept)]
        self.allocator.release(block)
        self.kept.remove(block)

    @rule(blocks=some_blocks)
    def misuse(self, blocks: list[int]) -> None:
        """Whatever of these calls is not allowed for these blocks has no effect."""
        if any(blocks.count(block) > self.counts[block] for block in blocks):
            fails_unchanged(self.allocator, ValueError, self.allocator.free, blocks)
        if set(blocks) & self.free_blocks():
            fails_unchanged(self.allocator, ValueError, self.allocator.share, blocks)
        if self.counts[blocks[0]] == 0 or blocks[0] in self.kept:
            fails_unchanged(self.allocator, ValueError, self.allocator.retain, blocks[0])
        if blocks[0] not in self.kept:
            fails_unchanged(self.allocator, ValueError, self.allocator.release, blocks[0])

    @invariant()
    def agrees_with_the_model(self) -> None:
        in_use = sum(count > 0 for count in self.counts.values())
        cached = sum(self.counts[block] == 0 for block in self.kept)
        assert states(self.allocator) == (NUM_BLOCKS - in_use - cached, in_use, cached)
        assert {block: self.allocator.reference_count(block) for block in self.counts} == self.counts
        order = self.allocator.free_order()
        assert len(order) == len(set(order)) and set(order) == self.free_blocks()


AllocatorMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
TestAllocatorMachine = AllocatorMachine.TestCase


@pytest.mark.parametrize("blocks", [[1.0], [0, 1.0], ["0"], [None]])
def test_an_id_that_is_no_integer_changes_nothing(blocks: list):
    allocator = BlockAllocator(3)
    allocator.allocate(2)
    for call in (allocator.free, allocator.share):
        fails_unchanged(allocator, TypeError, call, blocks)


def test_ids_of_another_integer_type_are_the_same_blocks():
    """They hash by identity, so a double free could hide in them."""

    allocator = BlockAllocator(3)
    allocator.allocate(2)
    fails_unchanged(allocator, ValueError, allocator.free, [TensorItem(1), TensorItem(1)])
    assert allocator.free([TensorItem(1)]) == [1]
