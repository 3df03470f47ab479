"""The allocator in two worlds: the same blocks in the same order, and the same refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import DEVICE, KernelWorld, ReferenceWorld, ids

from minipaged.kernels import allocator as device
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.block_table import BlockTable


def allocate(
    blocks: device.BlockAllocator, requests: list[int], lengths: list[int], max_blocks: int = 8
) -> tuple[int, list[list[int]], list[int]]:
    """One call for all requests: its verdict, the tables, their lengths."""
    tables = torch.full((len(requests), max_blocks), -1, dtype=torch.int32, device=DEVICE)
    table_lengths = ids(lengths)
    verdict = int(blocks.allocate(ids(requests), tables, table_lengths))
    return verdict, tables.tolist(), table_lengths.tolist()


def state(blocks: device.BlockAllocator) -> tuple[list[int], list[int]]:
    return blocks.free_order(), blocks.counts.tolist()


def test_one_call_serves_a_batch_in_its_order() -> None:
    blocks = device.BlockAllocator(10, DEVICE)
    verdict, tables, lengths = allocate(blocks, [2, 0, 3], [1, 4, 0], max_blocks=5)
    assert verdict == 0
    assert tables == [[-1, 0, 1, -1, -1], [-1] * 5, [2, 3, 4, -1, -1]]
    assert lengths == [3, 4, 3]
    assert state(blocks) == ([5, 6, 7, 8, 9], [1] * 5 + [0] * 5)
    assert (blocks.num_free, blocks.num_in_use, blocks.num_cached) == (5, 5, 0)


@pytest.mark.parametrize(
    ("requests", "lengths", "verdict"),
    [
        ([3, 4, 5], [0, 0, 0], 2),  # 12 of 10
        ([11], [0], 1),
        ([2**31 - 1, 2**31 - 1], [0, 0], -2),  # as 32-bit integers they would add up to -2
        ([1, -1, -7], [0, 0, 0], -2),
        ([1, 3, 1], [0, 10, 12], -2),  # these go beyond a table of 12
    ],
)
def test_a_batch_that_can_not_be_met_changes_nothing_and_says_why(
    requests: list[int], lengths: list[int], verdict: int
) -> None:
    blocks = device.BlockAllocator(10, DEVICE)
    before = state(blocks)
    assert allocate(blocks, requests, lengths, 12) == (verdict, [[-1] * 12] * len(requests), lengths)
    assert state(blocks) == before
    assert allocate(blocks, [10], [0], 12)[0] == 0  # and nothing is left behind


def test_more_rows_and_longer_requests_than_a_tile_takes() -> None:
    blocks, reference = device.BlockAllocator(800, DEVICE), BlockAllocator(800)
    verdict, tables, _ = allocate(blocks, [700, *[2] * 19], [0] * 20, max_blocks=700)
    assert verdict == 0
    assert tables[0] == reference.allocate(700)
    assert [row[:2] for row in tables[1:]] == [reference.allocate(2) for _ in range(19)]
    everything = torch.tensor(tables, dtype=torch.int32, device=DEVICE).flatten()
    unused, refused = blocks.free(everything)
    assert int(refused) == 0 and state(blocks) == ([*range(800)], [0] * 800)
    assert unused[:738].tolist() == [*range(737, -1, -1)]


def test_a_block_named_by_several_entries_of_a_call_falls_once() -> None:
    blocks, reference = device.BlockAllocator(6, DEVICE), BlockAllocator(6)
    allocate(blocks, [5], [0])
    reference.allocate(5)
    for pool in (blocks, reference):
        shared = [3, 1, 3]
        pool.share(ids(shared) if pool is blocks else shared)  # type: ignore[arg-type]
    entries = [3, 0, -1, 3, 1, 3, 4, 1]
    unused, refused = blocks.free(ids(entries))
    # From the tail on: 4 falls, then 1 with its second entry, 0, and 3 with its third.
    assert (unused.tolist(), int(refused)) == ([4, 1, 0, 3, -1, -1, -1, -1], 0)
    expected = reference.free([entry for entry in entries if entry >= 0])
    assert unused[unused >= 0].tolist() == expected
    assert blocks.free_order() == reference.free_order()


@pytest.mark.parametrize(
    ("entries", "refused"),
    [([2], 1), ([0, 0], 1), ([0, 0, 0, 1], 2), ([-2], 1), ([5, 0], 1), ([2**31 - 1], 1)],
)
def test_a_double_free_or_a_strange_id_is_counted_and_changes_nothing(
    entries: list[int], refused: int
) -> None:
    blocks = device.BlockAllocator(5, DEVICE)
    allocate(blocks, [2], [0])
    before = state(blocks)
    freed = blocks.free(ids(entries))
    assert int(freed.refused) == refused
    assert freed.unused.tolist() == [-1] * len(entries)
    assert state(blocks) == before
    assert blocks.last_entry.tolist() == [-1] * 5
    assert blocks.changes.tolist() == [0] * 5


@pytest.mark.parametrize(("entries", "refused"), [([0, 3], 1), ([3, 4, 1], 2), ([-2, 9], 2)])
def test_a_free_block_can_not_be_shared(entries: list[int], refused: int) -> None:
    blocks = device.BlockAllocator(5, DEVICE)
    allocate(blocks, [2], [0])
    before = state(blocks)
    assert int(blocks.share(ids(entries))) == refused
    assert state(blocks) == before


def test_strided_arguments_are_read_as_they_are() -> None:
    blocks = device.BlockAllocator(9, DEVICE)
    tables = torch.full((3, 2), -1, dtype=torch.int32, device=DEVICE).t()
    requests = ids([2, 99, 1, 99])[::2]
    lengths = ids([0, 7, 1, 7])[::2]
    assert int(blocks.allocate(requests, tables, lengths)) == 0
    assert tables.tolist() == [[0, 1, -1], [-1, 2, -1]]
    assert lengths.tolist() == [2, 2]
    assert int(blocks.free(ids([0, 1, 1, 0])[::3]).refused) == 1  # 0 twice
    assert int(blocks.free(ids([0, 1, 1, 0])[::2]).refused) == 0  # 0 and 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: a.allocate(ids([1]), ids([0]), ids([0])), ValueError, "block_tables: shape"),
        (lambda a: a.allocate(ids([1, 2]), ids([0, 0])[None], ids([0])), ValueError, "num_blocks: 2"),
        (
            lambda a: a.allocate(ids([1]), ids([0, 0])[None].float(), ids([0])),
            TypeError,
            "block_tables: dtype",
        ),
        (lambda a: a.allocate(ids([1]).long(), ids([0, 0])[None], ids([0])), TypeError, "num_blocks"),
        (lambda a: a.free(ids([1])[None]), ValueError, "blocks: shape"),
        (lambda a: a.share(ids([1]).long()), TypeError, "blocks: dtype"),
        (lambda a: a.retain(0), ValueError, "block 0 is not in use"),
        (lambda a: a.release(0), ValueError, "block 0 is not retained"),
        (lambda a: a.reference_count(4), ValueError, "block 4 is not one of the 4"),
    ],
)
def test_bad_arguments_are_named(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(device.BlockAllocator(4, DEVICE))


@pytest.mark.parametrize("num_blocks", [0, -1, 2.5, True])
def test_a_pool_has_at_least_one_block(num_blocks: int) -> None:
    with pytest.raises(ValueError, match="num_blocks must be a positive integer"):
        device.BlockAllocator(num_blocks, DEVICE)


batches = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(batches)
def test_whole_batches_leave_both_allocators_in_the_same_state(batches: list[list[int]]) -> None:
    blocks, reference = device.BlockAllocator(20, DEVICE), BlockAllocator(20)
    owned: list[list[int]] = []
    for requests in batches:
        verdict, tables, _ = allocate(blocks, requests, [0] * len(requests))
        if sum(requests) > reference.num_free:
            assert verdict == sum(requests) - reference.num_free
            with pytest.raises(OutOfBlocksError, match=f"{verdict} missing"):
                reference.allocate(sum(requests))
            continue
        expected = [reference.allocate(number) for number in requests]
        assert [row[: len(blocks)] for row, blocks in zip(tables, expected, strict=True)] == expected
        owned += expected
        table = owned.pop(0)
        unused = blocks.free(ids(table)).unused
        assert unused[unused >= 0].tolist() == reference.free(table)
        assert blocks.free_order() == reference.free_order()
        assert blocks.counts.tolist() == [reference.reference_count(block) for block in range(20)]


@pytest.mark.parametrize("world_class", [ReferenceWorld, KernelWorld])
def test_attention_over_blocks_that_came_back_in_another_order(world_class) -> None:
    """Sequences come and go until the table is scattered; attention has the bits of a table in order."""
    sizes = (12, 1, 4, 4)
    worlds = [world_class(*sizes), world_class(*sizes)]
    scattered = worlds[0].cache
    short, long = scattered.allocate(2), scattered.allocate(5)
    worlds[0].free(short)
    other = scattered.allocate(1)
    worlds[0].free(long)
    blocks = scattered.allocate(4)
    assert (other, blocks) == ([0], [2, 3, 4, 5])
    worlds[0].free(other)
    blocks = [*blocks[2:], *scattered.allocate(1), blocks[0]]
    assert blocks == [4, 5, 0, 2]
    rows = np.random.default_rng(0).standard_normal((2, 14, 4))
    query = np.random.default_rng(1).standard_normal((2, 4))
    outputs = []
    for world, table_blocks in zip(worlds, (blocks, range(4)), strict=True):
        table = BlockTable(4, table_blocks, 14)
        world.write(table, range(14), *rows.tolist())
        outputs.append(world.attend(query.tolist(), table))
    weights = np.exp(0.5 * query @ rows[0].T)
    expected = weights / weights.sum(axis=1, keepdims=True) @ rows[1]
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-13)
    assert outputs[0] == outputs[1]


def test_a_block_named_by_entries_far_apart_falls_once() -> None:
    """Each tile of entries sees only one of them."""
    blocks, reference = device.BlockAllocator(4, DEVICE), BlockAllocator(4)
    allocate(blocks, [2], [0])
    blocks.share(ids([0]))
    reference.allocate(2)
    reference.share([0])
    unused, refused = blocks.free(ids([0, *[-1] * 300, 0, 1]))
    assert (unused[unused >= 0].tolist(), int(refused)) == (reference.free([0, 0, 1]), 0)
    assert blocks.free_order() == reference.free_order()
    assert int(blocks.free(ids([0, *[-1] * 300, 0])).refused) == 2
