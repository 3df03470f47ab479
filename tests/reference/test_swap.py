"""Swapping: a group's blocks move to the host and back, as shared as they were, and nobody else notices.

The pools hold real contents, and whatever is freed is overwritten at once: a copy that is missing, late or
of the wrong block is seen in what a sequence reads. A refused swap must leave all as it was.
"""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from minipaged.course.checks import TensorItem
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.block_table import BlockTable
from minipaged.reference.prefix_cache import PrefixCache
from minipaged.reference.prefix_chain import PrefixChain
from minipaged.reference.swap import swap_blocks, swap_in, swap_out

Swap = Callable[..., list[tuple[int, int]]]


def counts(allocator: BlockAllocator) -> list[int]:
    return [allocator.reference_count(block) for block in range(allocator.num_blocks)]


def three_beams(allocator: BlockAllocator) -> list[list[int]]:
    """Three tables that share blocks 0 and 1 and have a tail of their own each: 2, 3 and 4."""
    prefix = allocator.allocate(2)
    allocator.share(prefix * 2)
    return [prefix + allocator.allocate(1) for _ in range(3)]


def swapped_beams(num_device: int = 8, num_host: int = 6) -> tuple[Any, Any, list[list[int]]]:
    """The pools, and the three beams after they went to host blocks 0 to 4."""
    device, host = BlockAllocator(num_device), BlockAllocator(num_host)
    tables = three_beams(device)
    swap_out(tables, device, host)
    assert tables == [[0, 1, 2], [0, 1, 3], [0, 1, 4]]
    return device, host, tables


# ---- out -----------------------------------------------------------------------------------------------


def test_a_shared_block_moves_once_and_is_as_shared_on_the_host():
    device, host = BlockAllocator(8), BlockAllocator(9)
    host.allocate(3)  # another group is there already
    tables = three_beams(device)
    assert counts(device) == [3, 3, 1, 1, 1, 0, 0, 0]
    pairs = swap_out(tables, device, host)
    assert pairs == [(0, 3), (1, 4), (2, 5), (3, 6), (4, 7)]  # in order of first appearance
    assert tables == [[3, 4, 5], [3, 4, 6], [3, 4, 7]]
    assert counts(host) == [1, 1, 1, 3, 3, 1, 1, 1, 0]
    assert counts(device) == [0] * 8
    assert (device.num_free, host.num_free) == (8, 1)


def test_a_block_that_another_group_names_is_copied_and_stays():
    device, host = BlockAllocator(8), BlockAllocator(8)
    tables = three_beams(device)
    outside = [0]
    device.share(outside)
    pairs = swap_out(tables, device, host)
    assert pairs == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert counts(device) == [1, 0, 0, 0, 0, 0, 0, 0]
    assert counts(host)[:5] == [3, 3, 1, 1, 1]
    assert outside == [0]


def test_two_groups_with_one_prefix_have_a_copy_each_on_the_host():
    device, host = BlockAllocator(4), BlockAllocator(4)
    first = device.allocate(1)
    second = list(first)
    device.share(second)
    assert swap_out([first], device, host) == [(0, 0)]
    assert swap_out([second], device, host) == [(0, 1)]
    assert counts(host) == [1, 1, 0, 0]
    assert device.num_free == 4


def test_one_sequence_alone():
    device, host = BlockAllocator(4), BlockAllocator(2)
    device.allocate(1)
    table = BlockTable(4, device.allocate(2), num_tokens=7)
    assert swap_out([table.blocks], device, host) == [(1, 0), (2, 1)]
    assert (table.blocks, table.num_tokens) == ([0, 1], 7)
    assert swap_in([table.blocks], device, host) == [(0, 1), (1, 2)]
    assert (table.blocks, counts(device), counts(host)) == ([1, 2], [1, 1, 1, 0], [0, 0])


def test_a_table_that_names_a_block_twice_still_does():
    device, host = BlockAllocator(4), BlockAllocator(4)
    (block,) = device.allocate(1)
    device.share([block])
    table = [block, block]
    assert swap_out([table], device, host) == [(0, 0)]
    assert (table, counts(host)) == ([0, 0], [2, 0, 0, 0])


@pytest.mark.parametrize("swap", [swap_out, swap_in])
@pytest.mark.parametrize("tables", [[], [[]], [[], []]])
def test_nothing_to_move(swap: Swap, tables: list[list[int]]):
    device, host = BlockAllocator(2), BlockAllocator(1)
    host.allocate(1)
    device.allocate(2)
    before = deepcopy((vars(device), vars(host), tables))
    assert swap(tables, device, host) == []
    assert (vars(device), vars(host), tables) == before


# ---- in ------------------------------------------------------------------------------------------------


def test_a_round_trip_restores_the_sharing_in_other_blocks():
    device, host, tables = swapped_beams()
    assert device.free_order() == [0, 1, 4, 3, 2, 5, 6, 7]  # table after table, the head of each on top
    assert device.allocate(2) == [0, 1]  # somebody else's now
    assert swap_in(tables, device, host) == [(0, 4), (1, 3), (2, 2), (3, 5), (4, 6)]
    assert tables == [[4, 3, 2], [4, 3, 5], [4, 3, 6]]
    assert counts(device) == [1, 1, 1, 3, 3, 1, 1, 0]
    assert counts(host) == [0] * 6


def test_a_group_goes_out_and_in_again_and_again():
    device, host, tables = swapped_beams(num_device=5, num_host=5)
    for _ in range(3):
        swap_in(tables, device, host)
        assert (device.num_in_use, host.num_in_use) == (5, 0)
        assert sorted(counts(device)) == [1, 1, 1, 3, 3]
        swap_out(tables, device, host)
        assert (device.num_in_use, host.num_in_use) == (0, 5)
        assert sorted(counts(host)) == [1, 1, 1, 3, 3]
    assert len({tuple(table[:2]) for table in tables}) == 1
    assert len({table[2] for table in tables}) == 3


def test_a_block_that_another_table_names_stays_on_the_host_too():
    device, host, tables = swapped_beams()
    device.allocate(1)
    assert swap_in(tables[:1], device, host) == [(0, 1), (1, 4), (2, 3)]
    assert tables == [[1, 4, 3], [0, 1, 3], [0, 1, 4]]
    assert counts(host) == [2, 2, 0, 1, 1, 0]


def test_a_resident_block_is_shared_and_needs_no_new_one():
    device, host, tables = swapped_beams(num_device=5)
    assert device.allocate(1) == [0]  # four are left, and five are needed
    with pytest.raises(OutOfBlocksError):
        swap_in(tables, device, host)
    resident = {1: 0, 5: 99}  # host block 5 is another group's
    assert swap_in(tables, device, host, resident) == [(0, 1), (2, 4), (3, 3), (4, 2)]
    assert tables == [[1, 0, 4], [1, 0, 3], [1, 0, 2]]
    assert counts(device) == [4, 3, 1, 1, 1]  # block 0: three tables of the group and the one it was from
    assert counts(host) == [0] * 6
    assert resident == {1: 0, 5: 99}


def test_two_host_blocks_may_find_one_resident_block():
    device, host = BlockAllocator(4), BlockAllocator(4)
    tables = [device.allocate(1), device.allocate(1)]  # the same prompt, computed twice
    swap_out(tables, device, host)
    assert device.allocate(1) == [1]
    assert swap_in(tables, device, host, {0: 1, 1: 1}) == []
    assert tables == [[1], [1]]
    assert (counts(device), host.num_in_use) == ([0, 3, 0, 0], 0)


def cached_prompt(num_blocks: int, num_full: int) -> tuple[PrefixCache, BlockAllocator, list[int]]:
    """A prompt of full blocks that went to the host and is still cached on the device, the tail first."""
    cache, host = PrefixCache(BlockAllocator(num_blocks)), BlockAllocator(num_blocks)
    table = cache.allocate(num_full)
    cache.publish(PrefixChain(range(4 * num_full), 4), table, 0, num_full)
    swap_out([table], cache, host)
    assert cache.allocator.num_cached == num_full
    return cache, host, table


def test_resident_cached_blocks_come_back_into_use():
    cache, host, table = cached_prompt(num_blocks=3, num_full=2)
    table.append(2)
    host.allocate(1)  # a third block that was never full
    assert swap_in([table], cache, host, {0: 0, 1: 1}) == [(2, 2)]
    assert table == [0, 1, 2]
    assert (counts(cache.allocator), counts(host)) == ([1, 1, 1], [0, 0, 0])
    assert cache.num_available == 0


def test_a_resident_block_is_not_evicted_to_make_room_for_the_others():
    cache, host, table = cached_prompt(num_blocks=3, num_full=2)
    assert cache.allocate(1) == [2]  # no block is free now, and block 1 would be evicted first
    assert swap_in([table], cache, host, {1: 1}) == [(0, 0)]
    assert table == [0, 1]
    assert (cache.is_findable(0), cache.is_findable(1)) == (False, True)
    assert counts(cache.allocator) == [1, 1, 1]


def test_a_refused_swap_leaves_resident_blocks_cached():
    cache, host, table = cached_prompt(num_blocks=3, num_full=3)
    assert cache.allocate(1) == [2]
    before = deepcopy((vars(cache.allocator), vars(host), table))
    with pytest.raises(OutOfBlocksError, match="2 blocks, 1 available"):
        swap_in([table], cache, host, {1: 1})
    assert (vars(cache.allocator), vars(host), table) == before
    assert cache.lookup(PrefixChain(range(9), 4)) == [0, 1]
    assert cache.allocate(1) == [1]  # and block 1 is still the next one to be evicted


# ---- what is refused -----------------------------------------------------------------------------------


def test_a_full_host_pool_changes_nothing():
    device, host = BlockAllocator(8), BlockAllocator(5)
    tables = three_beams(device)
    host.allocate(1)
    before = deepcopy((vars(device), vars(host), tables))
    with pytest.raises(OutOfBlocksError, match="1 missing"):
        swap_out(tables, device, host)
    assert (vars(device), vars(host), tables) == before


@pytest.mark.parametrize("resident", [{}, {1: 4}])
def test_a_full_device_pool_changes_nothing(resident: dict[int, int]):
    device, host, tables = swapped_beams(num_device=6)
    assert device.allocate(3) == [0, 1, 4]
    before = deepcopy((vars(device), vars(host), tables))
    with pytest.raises(OutOfBlocksError, match=f"{2 - len(resident)} missing"):
        swap_in(tables, device, host, resident)
    assert (vars(device), vars(host), tables) == before


@pytest.mark.parametrize(
    ("resident", "message"),
    [({0: 3}, "block 3 is free"), ({2: 0, 3: 1}, "block 1 is free"), ({0: 8}, "block 8 is not one")],
)
def test_a_resident_block_that_is_free_changes_nothing(resident: dict[int, int], message: str):
    device, host, tables = swapped_beams()
    assert device.allocate(1) == [0]
    before = deepcopy((vars(device), vars(host), tables))
    with pytest.raises(ValueError, match=message):
        swap_in(tables, device, host, resident)
    assert (vars(device), vars(host), tables) == before


@pytest.mark.parametrize("swap", [swap_out, swap_in])
@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([[0, 3]], "block 3 is named 1 times in block_tables, its count is 0"),
        ([[0, 1], [0]], "block 0 is named 2 times in block_tables, its count is 1"),
        ([[1, 1]], "block 1 is named 2 times in block_tables, its count is 1"),
        ([[0, 4]], "block 4 is not one of the 4 blocks"),
        ([[-1]], "block -1 is not one of the 4 blocks"),
    ],
)
def test_a_table_that_cannot_be_right_changes_nothing(swap: Swap, tables: list[list[int]], message: str):
    device, host = BlockAllocator(4), BlockAllocator(4)
    device.allocate(2)
    host.allocate(2)
    before = deepcopy((vars(device), vars(host), tables))
    with pytest.raises(ValueError, match=message):
        swap(tables, device, host)
    assert (vars(device), vars(host), tables) == before


def test_one_table_given_twice_is_refused_though_its_counts_would_allow_it():
    device, host = BlockAllocator(4), BlockAllocator(4)
    table = device.allocate(2)
    device.share(table)
    with pytest.raises(ValueError, match="the same table twice"):
        swap_out([table, table], device, host)
    assert (table, counts(device), host.num_free) == ([0, 1], [2, 2, 0, 0], 4)


@pytest.mark.parametrize("swap", [swap_out, swap_in])
def test_blocks_are_taken_on_one_side_before_they_are_given_up_on_the_other(swap: Swap):
    log: list[str] = []

    class Logged(BlockAllocator):
        def allocate(self, num_blocks=1):
            log.append("take")
            return super().allocate(num_blocks)

        def share(self, blocks):
            log.append("take")
            super().share(blocks)

        def free(self, blocks):
            log.append("give up")
            return super().free(blocks)

    device, host = Logged(8), Logged(8)
    tables = three_beams(device if swap is swap_out else host)
    log.clear()
    swap(tables, device, host)
    assert log == ["take"] * log.count("take") + ["give up"] * 3


# ---- the copies ----------------------------------------------------------------------------------------


def test_whole_blocks_are_copied_between_pools_and_are_no_alias():
    device = [[[[block * 10 + slot] for slot in range(2)] for _ in "kv"] for block in range(4)]
    host: list[Any] = [None] * 5
    before = deepcopy(device)
    swap_blocks(device, host, [3, 0, 3], [0, 4, 3])  # 0 and 3 are ids of both pools, and other blocks
    assert host == [before[3], None, None, before[3], before[0]]
    host[0][0][1][0] = -1
    assert device == before
    assert host[3] == before[3]
    swap_blocks(device, host, [], [])


@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        ([0, 1], [2], "2 sources but 1 destinations"),
        ([0, 2], [1, 2], "sources: block 2 is not one of the 2 blocks"),
        ([0, 1], [2, 3], "destinations: block 3 is not one of the 3 blocks"),
        ([0, -1], [1, 2], "sources: block -1 "),
        ([0, 1], [1, -1], "destinations: block -1 "),
        ([0, 1], [2, 2], "destinations must be distinct"),
    ],
)
def test_a_senseless_copy_changes_nothing(sources: list[int], destinations: list[int], message: str):
    source_pool, destination_pool = [[10], [11]], [[20], [21], [22]]
    with pytest.raises(ValueError, match=message):
        swap_blocks(source_pool, destination_pool, sources, destinations)
    assert destination_pool == [[20], [21], [22]]


def test_ids_may_be_the_items_of_a_tensor():
    items: Any = [TensorItem(0), TensorItem(1), TensorItem(2), TensorItem(2)]
    destination = [["x"], ["y"], ["z"]]
    with pytest.raises(ValueError, match="destinations must be distinct"):
        swap_blocks([["a"], ["b"]], destination, items[:2], items[2:])
    assert destination == [["x"], ["y"], ["z"]]
    swap_blocks([["a"], ["b"]], destination, items[:2], items[1:3])
    assert destination == [["x"], ["a"], ["b"]]
    device, host = BlockAllocator(2), BlockAllocator(2)
    tables = [host.allocate(2)]
    device.allocate(1)
    assert swap_in(tables, device, host, {0: items[0]}) == [(1, 1)]
    assert tables == [[0, 1]] and all(type(block) is int for block in tables[0])


def test_an_id_that_is_no_integer_is_refused_before_the_first_copy():
    destination = [["x"], ["y"]]
    sources: Any = [0, 1.0]
    with pytest.raises(TypeError):
        swap_blocks([["a"], ["b"]], destination, sources, [0, 1])
    assert destination == [["x"], ["y"]]


def test_a_copy_within_one_pool_is_refused():
    pool = [[10], [11]]
    with pytest.raises(ValueError, match="are the same"):
        swap_blocks(pool, pool, [0], [1])
    assert pool == [[10], [11]]


# ---- whatever happens ----------------------------------------------------------------------------------


class Group:
    """One request: its tables, what each of its blocks must hold, and which pool they are in."""

    def __init__(self, tables: list[list[int]], contents: list[list[int]]) -> None:
        self.tables = tables
        self.contents = contents
        self.is_out = False


class SwapMachine(RuleBasedStateMachine):
    """Groups come, share, write, go out, come back and end, in pools that are too small for all of them."""

    @initialize(num_device=st.integers(1, 9), num_host=st.integers(1, 7))
    def make_pools(self, num_device: int, num_host: int) -> None:
        self.allocator, self.host_allocator = BlockAllocator(num_device), BlockAllocator(num_host)
        self.pool: list[Any] = [None] * num_device
        self.host_pool: list[Any] = [None] * num_host
        self.groups: list[Group] = []
        self.written = 0

    def write(self, block: int) -> int:
        """Fill a block with what no other one has ever held."""
        self.written += 1
        self.pool[block] = self.written
        return self.written

    def overwrite_free_blocks(self) -> None:
        for allocator, pool in ((self.allocator, self.pool), (self.host_allocator, self.host_pool)):
            for block in allocator.free_order():
                pool[block] = None

    def choose(self, data: st.DataObject, is_out: bool) -> Group | None:
        groups = [group for group in self.groups if group.is_out == is_out]
        return data.draw(st.sampled_from(groups)) if groups else None

    @rule(num_tables=st.integers(0, 3), num_shared=st.integers(0, 2), num_own=st.integers(0, 2))
    def start(self, num_tables: int, num_shared: int, num_own: int) -> None:
        if self.allocator.num_free < num_shared + num_tables * num_own or not num_tables:
            return
        prefix = self.allocator.allocate(num_shared)
        self.allocator.share(prefix * (num_tables - 1))
        prefix_contents = [self.write(block) for block in prefix]
        tails = [self.allocator.allocate(num_own) for _ in range(num_tables)]
        contents = [prefix_contents + [self.write(block) for block in tail] for tail in tails]
        self.groups.append(Group([prefix + tail for tail in tails], contents))

    @rule(data=st.data())
    def share_with_another_group(self, data: st.DataObject) -> None:
        """What a prefix hit does: a table of another request names the same blocks."""
        if group := self.choose(data, is_out=False):
            self.allocator.share(group.tables[0])
            self.groups.append(Group([list(group.tables[0])], [list(group.contents[0])]))

    @rule(data=st.data())
    def write_to_a_block_of_ones_own(self, data: st.DataObject) -> None:
        group = self.choose(data, is_out=False)
        for table, contents in zip(group.tables, group.contents, strict=True) if group else ():
            if table and self.allocator.reference_count(table[-1]) == 1:
                contents[-1] = self.write(table[-1])

    @rule(data=st.data())
    def go_out(self, data: st.DataObject) -> None:
        group = self.choose(data, is_out=False)
        if group is None:
            return
        needed = len({block for table in group.tables for block in table})
        if needed > self.host_allocator.num_free:
            with pytest.raises(OutOfBlocksError):
                swap_out(group.tables, self.allocator, self.host_allocator)
            return
        pairs = swap_out(group.tables, self.allocator, self.host_allocator)
        assert len(pairs) == needed
        swap_blocks(self.pool, self.host_pool, *columns(pairs))
        group.is_out = True

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        group = self.choose(data, is_out=True)
        if group is None:
            return
        host_blocks = {block for table in group.tables for block in table}
        in_use = [block for block in range(len(self.pool)) if self.allocator.reference_count(block)]
        where = {self.pool[block]: block for block in in_use}
        known = {
            block: where[self.host_pool[block]] for block in host_blocks if self.host_pool[block] in where
        }
        resident = {block: known[block] for block in known if data.draw(st.booleans())}
        needed = len(host_blocks) - len(resident)
        if needed > self.allocator.num_free:
            with pytest.raises(OutOfBlocksError):
                swap_in(group.tables, self.allocator, self.host_allocator, resident)
            return
        pairs = swap_in(group.tables, self.allocator, self.host_allocator, resident)
        assert len(pairs) == needed
        swap_blocks(self.host_pool, self.pool, *columns(pairs))
        group.is_out = False

    @rule(data=st.data(), is_out=st.booleans())
    def end(self, data: st.DataObject, is_out: bool) -> None:
        if group := self.choose(data, is_out):
            for table in group.tables:
                (self.host_allocator if is_out else self.allocator).free(table)
            self.groups.remove(group)

    @invariant()
    def everybody_reads_what_was_written(self) -> None:
        self.overwrite_free_blocks()
        for group in self.groups:
            pool = self.host_pool if group.is_out else self.pool
            assert [[pool[block] for block in table] for table in group.tables] == group.contents

    @invariant()
    def counts_are_the_table_entries(self) -> None:
        for is_out, allocator in ((False, self.allocator), (True, self.host_allocator)):
            tables = [table for group in self.groups if group.is_out == is_out for table in group.tables]
            named = Counter(block for table in tables for block in table)
            assert counts(allocator) == [named[block] for block in range(allocator.num_blocks)]
            assert allocator.num_free + allocator.num_in_use == allocator.num_blocks


def columns(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [source for source, _ in pairs], [destination for _, destination in pairs]


TestSwapMachine = SwapMachine.TestCase
TestSwapMachine.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, derandomize=True, database=None
)


@pytest.mark.parametrize("tables", [[(0, 1)], [[0, 1.0]], [[0], [None]]])
def test_tables_that_can_not_be_repointed_or_read_change_nothing(tables):
    device, host = BlockAllocator(4), BlockAllocator(4)
    device.allocate(2)
    with pytest.raises(TypeError):
        swap_out(tables, device, host)
    assert (device.num_free, host.num_free) == (2, 4)


def test_a_retained_block_that_is_resident_takes_no_room_from_the_others():
    device, host = BlockAllocator(2), BlockAllocator(2)
    table = device.allocate(1)
    device.retain(0)
    device.free(table)  # cached, and not among the available ones
    on_host = host.allocate(2)
    assert swap_in([on_host], device, host, {0: 0}) == [(1, 1)]
    assert on_host == [0, 1]
