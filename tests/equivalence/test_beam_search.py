"""Beams in two worlds: the same tables, counts, free blocks and copies, and the same attention in the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import DEVICE, KernelWorld, ReferenceWorld, ids

from minipaged.kernels import beam_search
from minipaged.kernels.allocator import BlockAllocator
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.block_table import BlockTable, num_blocks_for


def start(num_blocks: int, num_tokens: list[int], block_size: int = 4) -> tuple[BlockAllocator, torch.Tensor]:
    """An allocator and the tables of sequences of so many tokens."""
    allocator = BlockAllocator(num_blocks, DEVICE)
    needed = ids([num_blocks_for(tokens, block_size) for tokens in num_tokens])
    tables = torch.full((len(num_tokens), 4), -1, dtype=torch.int32, device=DEVICE)
    assert int(allocator.allocate(needed, tables, torch.zeros_like(needed))) == 0
    return allocator, tables


def reorder(
    allocator: BlockAllocator, tables: torch.Tensor, num_tokens: list[int], parents: list[int]
) -> beam_search.Reordered:
    lengths = ids(num_tokens)
    return beam_search.reorder_beams(tables, ids(parents), allocator, lengths, 4)


def test_two_requests_in_one_call() -> None:
    # Request A: one prompt of 6 tokens forks in two. Request B: beams of 5 and 7 tokens, the second one wins.
    allocator, tables = start(9, [6, 5, 7])
    done = reorder(allocator, tables, [6, 5, 7], [0, 0, 2, 2])
    # B's first beam gave up 3 and 2; 2 is on top. Copies of block 1 and of block 5.
    assert done.block_tables.tolist() == [[0, 2, -1, -1], [0, 1, -1, -1], [4, 3, -1, -1], [4, 5, -1, -1]]
    assert done.num_tokens.tolist() == [6, 6, 7, 7]
    assert done.sources.tolist() == [1, 5, -1, -1]
    assert done.destinations.tolist() == [2, 3, -1, -1]
    assert done.unused.tolist() == [3, 2, *[-1] * 10]
    assert int(done.refused) == 0
    assert allocator.counts.tolist() == [2, 1, 1, 1, 2, 1, 0, 0, 0]
    assert allocator.free_order() == [6, 7, 8]


def test_missing_blocks_are_told_and_nothing_is_changed() -> None:
    allocator, tables = start(3, [6])
    done = reorder(allocator, tables, [6], [0, 0, 0, 0])
    assert int(done.refused) == 2  # three copies, one block is free
    assert allocator.counts.tolist() == [1, 1, 0]
    assert allocator.free_order() == [2]
    assert allocator.last_entry.tolist() == [-1, -1, -1]
    assert allocator.changes.tolist() == [0, 0, 0]
    assert int(reorder(allocator, tables, [6], [0, 0]).refused) == 0


@pytest.mark.parametrize(("parents", "refused"), [([1], -1), ([0, -1, 5], -2)])
def test_strange_parents_are_counted_and_nothing_is_changed(parents: list[int], refused: int) -> None:
    allocator, tables = start(4, [6])
    assert int(reorder(allocator, tables, [6], parents).refused) == refused
    assert allocator.counts.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"block_tables": ids([0, 0, 0, 0])}, ValueError, "block_tables: shape"),
        ({"block_tables": ids([0, 0, 0, 0])[None].float()}, TypeError, "block_tables: dtype"),
        ({"parents": ids([0]).float()}, TypeError, "parents: dtype"),
        ({"num_tokens": ids([4, 4])}, ValueError, "num_tokens: 2 entries, must be 1"),
        ({"block_size": 0}, ValueError, "block_size: 0"),
    ],
)
def test_bad_arguments_are_named(changed: dict, error: type[Exception], message: str) -> None:
    arguments = {
        "block_tables": ids([0, 0, 0, 0])[None],
        "parents": ids([0]),
        "allocator": BlockAllocator(4, DEVICE),
        "num_tokens": ids([4]),
        "block_size": 4,
    }
    with pytest.raises(error, match=message):
        beam_search.reorder_beams(**arguments | changed)


def test_more_entries_than_a_tile_takes() -> None:
    worlds = [ReferenceWorld(700, 1, 1, 1), KernelWorld(700, 1, 1, 1)]
    outcomes = []
    for world in worlds:
        tables = [BlockTable(1, world.cache.allocate(200), 200) for _ in range(3)]
        children = world.reorder(tables, [2, 0, 0, 2])
        outcomes.append(([table.blocks for table in children], world.state()))
    assert outcomes[0] == outcomes[1]
    assert worlds[0].allocator.num_in_use == 400


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=3),
    st.integers(8, 12),
)
def test_any_generations_of_beams_agree(
    prompts: list[int], generations: list[list[int]], num_blocks: int
) -> None:
    worlds = [ReferenceWorld(num_blocks, 1, 4, 1), KernelWorld(num_blocks, 1, 4, 1)]
    if sum(num_blocks_for(length, 4) for length in prompts) > num_blocks:
        return
    families = [
        [BlockTable(4, world.cache.allocate(num_blocks_for(length, 4)), length) for length in prompts]
        for world in worlds
    ]
    for choices in generations:
        parents = [choice % len(families[0]) for choice in choices] if families[0] else []
        refused = []
        for index, world in enumerate(worlds):
            before = world.state()
            try:
                families[index] = world.reorder(families[index], parents)
                refused.append(False)
            except OutOfBlocksError:
                assert world.state() == before
                refused.append(True)
        assert refused[0] == refused[1]
        assert worlds[0].state() == worlds[1].state()
        assert [table.blocks for table in families[0]] == [table.blocks for table in families[1]]


def test_attention_of_every_beam_is_that_of_its_own_tokens() -> None:
    """Three generations of beams write different tokens into what they share."""
    generator = np.random.default_rng(0)
    prompt = generator.standard_normal((6, 2, 4))
    steps = generator.standard_normal((3, 3, 2, 4))  # [step][beam][K and V][head_dim]
    family = [[0, 0, 0], [2, 2, 1], [0, 1, 1]]
    query = generator.standard_normal((2, 4))
    results = []
    for world in (ReferenceWorld(16, 1, 4, 4), KernelWorld(16, 1, 4, 4)):
        table = BlockTable(4, world.cache.allocate(2), 6)
        world.write(table, range(6), prompt[:, 0].tolist(), prompt[:, 1].tolist())
        tables, histories = [table], [list(prompt)]
        for parents, step in zip(family, steps, strict=True):
            tables = world.reorder(tables, parents)
            histories = [[*histories[parent], step[beam]] for beam, parent in enumerate(parents)]
            for beam, table in enumerate(tables):
                world.append_slot(table)
                world.write(table, [table.num_tokens - 1], [step[beam, 0].tolist()], [step[beam, 1].tolist()])
        for table, history in zip(tables, histories, strict=True):
            keys, values = np.array(history).transpose(1, 0, 2)
            weights = np.exp(0.5 * query @ keys.T)
            expected = weights / weights.sum(axis=1, keepdims=True) @ values
            output = world.attend(query.tolist(), table)
            np.testing.assert_allclose(output, expected, rtol=1e-13)
            in_order = type(world)(3, 1, 4, 4)
            plain = BlockTable(4, range(3), 9)
            in_order.write(plain, range(9), keys.tolist(), values.tolist())
            assert in_order.attend(query.tolist(), plain) == output
        results.append((world.state(), [table.blocks for table in tables]))
    assert results[0] == results[1]
    # The first step forks a half-full block three ways (2 copies), the second one forks one beam's (1), and
    # the third starts a block of its own for each: the ninth token's, so nothing is copied.
    assert len(results[0][0][3]) == 3


@pytest.mark.parametrize(
    ("table", "num_tokens"),
    [
        ([0, -1, -1, -1], 6),  # padding inside a table
        ([0, 12, -1, -1], 6),
        ([0, 1, -1, -1], 17),  # more tokens than the table has slots
        ([0, 1, -1, -1], -3),
        ([0, 3, -1, -1], 6),  # block 3 is free
        ([0, 0, -1, -1], 6),  # named twice, counted once
    ],
)
@pytest.mark.parametrize("parents", [[0], [0, 0], []])
def test_a_table_that_can_not_be_is_refused_and_nothing_is_changed(
    table: list[int], num_tokens: int, parents: list[int]
) -> None:
    allocator, _ = start(6, [6])
    before = (allocator.counts.tolist(), allocator.free_order())
    assert int(reorder(allocator, ids(table)[None], [num_tokens], parents).refused) < 0
    assert (allocator.counts.tolist(), allocator.free_order()) == before
    assert allocator.last_entry.tolist() == [-1] * 6
    assert allocator.changes.tolist() == [0] * 6


@pytest.mark.parametrize("parents", [[0], [0, 0, 1], [7]])
def test_an_entry_that_is_no_block_is_counted_once_however_many_beams_go_on_with_it(
    parents: list[int],
) -> None:
    allocator, _ = start(6, [6, 3])
    tables = ids([0, 12, -1, -1, 2, -1, -1, -1]).reshape(2, 4)
    assert int(reorder(allocator, tables, [6, 3], parents).refused) == (-2 if parents == [7] else -1)


def test_strided_arguments_are_read_as_they_are() -> None:
    (plain, tables), (strided, _) = start(9, [6, 5, 7]), start(9, [6, 5, 7])
    columns_first = tables.t().contiguous().t()
    parents, num_tokens = ids([0, 9, 0, 9, 2])[::2], ids([6, 99, 5, 99, 7])[::2]
    assert not (columns_first.is_contiguous() or parents.is_contiguous() or num_tokens.is_contiguous())
    expected = reorder(plain, tables, [6, 5, 7], [0, 0, 2])
    done = beam_search.reorder_beams(columns_first, parents, strided, num_tokens, 4)
    assert [result.tolist() for result in done] == [result.tolist() for result in expected]
    assert (strided.free_order(), strided.counts.tolist()) == (plain.free_order(), plain.counts.tolist())


def test_more_writers_than_a_tile_takes() -> None:
    allocator, tables = start(300, [1, 1])
    done = reorder(allocator, tables, [1, 1], [*[0] * 260, *[1] * 5])
    assert int(done.refused) == 0
    assert done.destinations[:263].tolist() == [*range(2, 265)]
    assert done.sources[:263].tolist() == [0] * 259 + [1] * 4
    assert done.block_tables[[259, 264], 0].tolist() == [0, 1]


def test_a_dropped_block_that_is_retained_is_no_room_for_a_copy() -> None:
    allocator, tables = start(2, [1, 1])
    allocator.retain(1)
    assert int(reorder(allocator, tables, [1, 1], [0, 0]).refused) == 1
    assert allocator.counts.tolist() == [1, 1]


def test_more_beams_than_a_square_of_them_would_allow() -> None:
    allocator, tables = start(1100, [1])
    done = reorder(allocator, tables, [1], [0] * 70)
    assert int(done.refused) == 0
    assert done.destinations[:69].tolist() == [*range(1, 70)]
    assert done.block_tables[:, 0].tolist() == [*range(1, 70), 0]
