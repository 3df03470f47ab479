"""Block tables: when a new block is needed, where a token's slot is, and what is written there.

Slots and counts are worked out by hand. Addresses are compared with those of a real torch tensor of the
pool's shape.
"""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.block_table import (
    BlockTable,
    check_block_size,
    num_blocks_for,
    slot_mapping,
    write_kv,
)
from minipaged.reference.kv_cache_size import token_address


def test_a_sequence_grows_from_its_prompt_to_a_third_block():
    """안녕하세요 반갑습니다 is six tokens; blocks 0 to 10 belong to others, 11 to 16 are free."""
    allocator = BlockAllocator(17)
    allocator.allocate(11)
    table = BlockTable(block_size=4)
    table.append(6, allocator.allocate(table.num_blocks_needed(6)))
    assert table.blocks == [11, 12]
    assert [table.slot(position) for position in range(6)] == [44, 45, 46, 47, 48, 49]
    assert (table.last_block_length, table.num_empty_slots) == (2, 2)

    for _ in range(2):  # the seventh and the eighth token fit in the second block
        assert table.num_blocks_needed(1) == 0
        table.append(1)
    assert table.num_blocks_needed(1) == 1
    table.append(1, allocator.allocate(table.num_blocks_needed(1)))
    assert table.blocks == [11, 12, 13]
    assert table.slot(8) == 52
    assert allocator.free_order() == [14, 15, 16]


def test_one_token_at_a_time_takes_a_block_at_the_first_token_of_each():
    table = BlockTable(block_size=4)
    seen = []
    for _ in range(9):
        table.append(1, range(len(table), len(table) + table.num_blocks_needed(1)))
        seen.append((len(table), table.last_block_length, table.num_empty_slots))
    assert [blocks for blocks, _, _ in seen] == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert [last for _, last, _ in seen] == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    assert [empty for _, _, empty in seen] == [3, 2, 1, 0, 3, 2, 1, 0, 3]


def test_an_empty_table():
    table = BlockTable(block_size=4)
    assert (len(table), table.num_tokens, table.last_block_length, table.num_empty_slots) == (0, 0, 0, 0)
    with pytest.raises(IndexError, match="position 0"):
        table.slot(0)


@pytest.mark.parametrize(
    ("num_tokens", "block_size", "expected"),
    [(0, 4, 0), (1, 4, 1), (3, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (9, 4, 3), (5, 1, 5), (12, 12, 1),
     (13, 12, 2), (1, 1000, 1)],
)  # fmt: skip
def test_the_number_of_blocks_is_rounded_up(num_tokens: int, block_size: int, expected: int):
    assert num_blocks_for(num_tokens, block_size) == expected


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(block_size=st.integers(1, 20), lengths=st.lists(st.integers(0, 30), max_size=6))
def test_waste_is_under_one_block_whatever_the_block_size(block_size: int, lengths: list[int]):
    table = BlockTable(block_size)
    physical = list(range(200, 0, -1))  # scattered: counting down
    for length in lengths:
        table.append(length, [physical.pop(0) for _ in range(table.num_blocks_needed(length))])
        assert 0 <= table.num_empty_slots <= block_size - 1
        assert (table.last_block_length == 0) == (table.num_tokens == 0)
        assert table.last_block_length <= block_size
    assert table.num_tokens == sum(lengths)
    slots = [table.slot(position) for position in range(table.num_tokens)]
    assert len(set(slots)) == len(slots)
    in_pool_order = [block * block_size + offset for block in table.blocks for offset in range(block_size)]
    assert slots == in_pool_order[: table.num_tokens]


def test_slots_by_hand():
    assert slot_mapping([5, 2, 9], [0, 3, 4, 7, 8, 11], 4) == [20, 23, 8, 11, 36, 39]
    assert slot_mapping([5, 2], [5, 0, 5], 3) == [8, 15, 8]  # any order, and repeated
    assert slot_mapping([7, 0, 3], [0, 1, 2], 1) == [7, 0, 3]
    assert slot_mapping([1], [], 4) == []


@pytest.mark.parametrize("position", [-1, -4, 12, 100])
def test_a_position_outside_the_table_is_refused(position: int):
    with pytest.raises(IndexError, match=f"position {position} "):
        slot_mapping([5, 2, 9], [0, position], 4)


@pytest.mark.parametrize("position", [4, 7])
def test_padding_of_a_table_is_no_block(position: int):
    """Block -1, offset 3 would be slot -1, and the token would be skipped without a word."""
    with pytest.raises(ValueError, match="entry 1 of the block table is -1"):
        slot_mapping([5, -1], [0, position], 4)
    assert slot_mapping([5, -1], [3], 4) == [23]


@pytest.mark.parametrize("position", [-1, 6, 7, 8])
def test_a_reserved_slot_without_a_token_is_not_a_slot_of_the_sequence(position: int):
    with pytest.raises(IndexError, match=f"position {position} is outside the 6 tokens"):
        BlockTable(4, [5, 2], 6).slot(position)


@pytest.mark.parametrize("block_size", [0, -4, True, False, 4.0, "4", None])
def test_the_block_size_is_a_positive_integer(block_size: Any):
    for call in (check_block_size, BlockTable, lambda size: slot_mapping([3], [0], size)):
        with pytest.raises(ValueError, match=f"block_size must be a positive integer, got {block_size!r}"):
            call(block_size)


@pytest.mark.parametrize(("num_blocks", "num_tokens"), [(0, 1), (1, 0), (1, 5), (2, 4), (0, -1), (0, -4)])
def test_a_table_has_exactly_the_blocks_that_its_tokens_need(num_blocks: int, num_tokens: int):
    with pytest.raises(ValueError, match="num_tokens"):
        BlockTable(4, range(num_blocks), num_tokens)


@pytest.mark.parametrize(("num_new_tokens", "num_blocks"), [(2, 1), (3, 0), (3, 2), (-1, 0), (-6, 0)])
def test_an_append_that_does_not_fit_changes_nothing(num_new_tokens: int, num_blocks: int):
    table = BlockTable(4, [5, 2], 6)
    with pytest.raises(ValueError, match=str(num_new_tokens)):
        table.append(num_new_tokens, range(num_blocks))
    assert (table.blocks, table.num_tokens) == ([5, 2], 6)


def test_a_fork_names_the_same_blocks_and_grows_on_its_own():
    blocks = [5, 2]
    parent = BlockTable(4, blocks, 6)
    child = parent.fork()
    assert (child.blocks, child.num_tokens, child.block_size) == ([5, 2], 6, 4)
    child.append(3, [8])
    child.blocks[1] = 7
    assert (parent.blocks, parent.num_tokens, blocks) == ([5, 2], 6, [5, 2])


def empty_cache(num_blocks: int = 3, block_size: int = 2) -> list[list[Any]]:
    return [[None] * block_size for _ in range(num_blocks)]


def test_keys_and_values_go_to_their_slots_and_nowhere_else():
    key_cache, value_cache = empty_cache(), empty_cache()
    keys, values = [[[1.0]], [[2.0]], [[3.0]]], [[[-1.0]], [[-2.0]], [[-3.0]]]
    write_kv(keys, values, key_cache, value_cache, [4, 1, 5])
    assert key_cache == [[None, [[2.0]]], [None, None], [[[1.0]], [[3.0]]]]
    assert value_cache == [[None, [[-2.0]]], [None, None], [[[-1.0]], [[-3.0]]]]


def test_padding_is_skipped_and_the_last_slot_left_alone():
    key_cache, value_cache = empty_cache(), empty_cache()
    write_kv([[[1.0]], [[2.0]]], [[[3.0]], [[4.0]]], key_cache, value_cache, [0, -1])
    assert key_cache == [[[[1.0]], None], [None, None], [None, None]]
    assert value_cache == [[[[3.0]], None], [None, None], [None, None]]


@pytest.mark.parametrize("slot", [-2, -6, 6, 100])
def test_a_slot_outside_the_cache_is_refused_before_anything_is_written(slot: int):
    key_cache, value_cache = empty_cache(), empty_cache()
    with pytest.raises(ValueError, match=f"slot {slot} "):
        write_kv([[[1.0]], [[2.0]]], [[[1.0]], [[2.0]]], key_cache, value_cache, [0, slot])
    assert key_cache == value_cache == empty_cache()


@pytest.mark.parametrize("counts", [(2, 2, 1), (1, 2, 2), (2, 1, 2), (2, 2, 3)])
def test_unequal_lengths_are_refused_before_anything_is_written(counts: tuple[int, int, int]):
    num_keys, num_values, num_slots = counts
    key_cache, value_cache = empty_cache(), empty_cache()
    with pytest.raises(ValueError, match=r"keys.*values.*slots"):
        write_kv([[[1.0]]] * num_keys, [[[2.0]]] * num_values, key_cache, value_cache, range(num_slots))
    assert key_cache == value_cache == empty_cache()


def test_the_cache_holds_copies():
    """A caller may use one buffer for every token, as it may with the kernel."""
    key_cache, value_cache, buffer = empty_cache(), empty_cache(), [[1.0]]
    write_kv([buffer], [buffer], key_cache, value_cache, [0])
    buffer[0][0] = 9.0
    assert key_cache[0][0] == value_cache[0][0] == [[1.0]]
    key_cache[0][0][0][0] = 5.0
    assert value_cache[0][0] == [[1.0]]


def test_what_is_written_through_the_slots_is_read_back_through_the_table():
    table = BlockTable(2, [2, 0], 3)
    key_cache, value_cache = empty_cache(), empty_cache()
    rows = [[[float(position)]] for position in range(3)]
    write_kv(rows, deepcopy(rows), key_cache, value_cache, slot_mapping(table.blocks, range(3), 2))
    assert [key_cache[table.blocks[p // 2]][p % 2] for p in range(3)] == rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_address_is_that_of_a_block_major_tensor(dtype: torch.dtype):
    shape = {"num_layers": 3, "block_size": 5, "num_kv_heads": 2, "head_dim": 7}
    pool = torch.zeros(4, 3, 2, 5, 2, 7, dtype=dtype)
    size = pool.element_size()
    corners = [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0), (3, 2, 1, 4)]
    for block, layer, kv, offset in corners:
        address = token_address(block, layer, kv, offset, **shape, bytes_per_value=size)
        assert address == pool[block, layer, kv, offset].data_ptr() - pool.data_ptr()
        layer_cache = pool[:, layer, kv]
        base = layer_cache.storage_offset() + block * layer_cache.stride(0)
        assert address == base * size + offset * 2 * 7 * size  # the paper's form


def test_a_token_of_opt_13b_takes_800_kib():
    """40 layers, 40 heads of 128, 2 bytes: with one token a block, the next token is one block on."""
    shape = {"num_layers": 40, "block_size": 1, "num_kv_heads": 40, "head_dim": 128, "bytes_per_value": 2}
    assert token_address(1, 0, 0, 0, **shape) - token_address(0, 0, 0, 0, **shape) == 819_200
