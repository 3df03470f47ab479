"""Slot mapping and K/V writes: the torch path and the Triton kernel against the formula, token by token."""

import math

import pytest
import torch
from torch import Tensor

from minipaged.kernels.block_table import launch_slot_mapping, launch_write_kv, slot_mapping, write_kv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The public functions take the CPU's path for CPU tensors; the launches need a GPU, or Triton's interpreter.
MAPPINGS = [
    pytest.param(slot_mapping, "cpu", id="cpu"),
    pytest.param(launch_slot_mapping, DEVICE, id="triton"),
]
WRITES = [pytest.param(write_kv, "cpu", id="cpu"), pytest.param(launch_write_kv, DEVICE, id="triton")]


def int32(*rows: list[int], device: str = "cpu") -> Tensor:
    return torch.tensor(rows[0] if len(rows) == 1 else rows, dtype=torch.int32, device=device)


def caches(
    dtype: torch.dtype, device: str, num_kv_heads: int = 3, head_dim: int = 5
) -> tuple[Tensor, Tensor, Tensor]:
    """A pool of 4 blocks of 3 slots and 2 layers, full of NaN, and layer 1's K and V in it."""
    pool = torch.full((4, 2, 2, 3, num_kv_heads, head_dim), math.nan, device=device).to(dtype)
    return pool, pool[:, 1, 0], pool[:, 1, 1]


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_a_slot_is_block_times_block_size_plus_offset(mapping, device, block_size):
    tables = [[2, 0, 5], [7, 3, 1]]
    tokens = [(row, position) for row in (1, 0) for position in range(3 * block_size)] * 5
    expected = [
        tables[row][position // block_size] * block_size + position % block_size for row, position in tokens
    ]
    rows, positions = (int32(list(column), device=device) for column in zip(*tokens, strict=True))
    result = mapping(int32(*tables, device=device), positions.long(), rows, block_size)
    assert result.dtype == torch.int64
    assert result.tolist() == expected


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
def test_padding_gets_the_slot_that_is_skipped(mapping, device):
    tables = int32([2, -1], [3, 1], device=device)
    result = mapping(tables, int32([-1, 3, -1, 5], device=device), int32([0, 0, -1, 1], device=device), 4)
    assert result.tolist() == [-1, 11, -1, 5]


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
def test_no_tokens_map_to_no_slots(mapping, device):
    nothing = torch.empty(0, dtype=torch.int32, device=device)
    assert mapping(int32([[2, 0]], device=device), nothing, nothing, 4).shape == (0,)


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
def test_a_slot_needs_64_bits(mapping, device):
    result = mapping(
        int32([[2**30]], device=device), int32([5], device=device), int32([0], device=device), 16
    )
    assert result.tolist() == [2**34 + 5]


@pytest.mark.parametrize(("mapping", "device"), MAPPINGS)
def test_a_sliced_table_is_read_by_its_strides(mapping, device):
    wide = int32([9, 4, 9, 2], [9, 3, 9, 1], device=device)
    result = mapping(wide[:, 1::2], int32([0, 4, 5], device=device), int32([0, 0, 1], device=device), 4)
    assert result.tolist() == [16, 8, 5]


@pytest.mark.parametrize(
    ("positions", "rows", "message"),
    [
        ([8], [0], "positions"),
        ([0], [1], "sequence_ids"),
        ([0], [-1], "sequence_ids"),
        ([4], [0], "block_tables"),
    ],
)
def test_a_token_without_a_block_is_an_error_on_the_cpu_and_skipped_on_a_gpu(positions, rows, message):
    tables = int32([[2, -1]])
    with pytest.raises(ValueError, match=message):
        slot_mapping(tables, int32(positions), int32(rows), 4)
    tensors = (tensor.to(DEVICE) for tensor in (tables, int32(positions), int32(rows)))
    assert launch_slot_mapping(*tensors, 4).tolist() == [-1]


@pytest.mark.parametrize(("write", "device"), WRITES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_write_changes_its_slots_and_no_other(write, device, dtype):
    pool, key_cache, value_cache = caches(dtype, device)
    slots = [7, 0, -1, 11]
    keys, values = (torch.randn(4, 3, 5, device=device).to(dtype) for _ in range(2))
    expected = pool.clone()
    for token, slot in enumerate(slots):
        if slot >= 0:
            expected[slot // 3, 1, 0, slot % 3] = keys[token]
            expected[slot // 3, 1, 1, slot % 3] = values[token]
    write(keys, values, key_cache, value_cache, torch.tensor(slots, device=device))
    assert torch.equal(pool.nan_to_num(99.0), expected.nan_to_num(99.0))


@pytest.mark.parametrize(("write", "device"), WRITES)
def test_a_skipped_token_does_not_wrap_to_the_last_slot(write, device):
    pool, key_cache, value_cache = caches(torch.float32, device)
    ones = torch.ones(2, 3, 5, device=device)
    write(ones, ones, key_cache, value_cache, torch.tensor([0, -1], device=device))
    assert key_cache[0, 0].eq(1).all() and value_cache[0, 0].eq(1).all()
    assert key_cache[3, 2].isnan().all() and value_cache[3, 2].isnan().all()
    assert pool[:, 0].isnan().all()


@pytest.mark.parametrize(("write", "device"), WRITES)
def test_strided_keys_and_more_elements_than_one_tile(write, device):
    _, key_cache, value_cache = caches(torch.float32, device, num_kv_heads=9, head_dim=128)
    # As a fused projection gives them: K and V side by side, heads before tokens.
    both = torch.randn(2, 9, 3, 256, device=device)[1].transpose(0, 1)
    keys, values = both[..., :128], both[..., 128:]
    write(keys, values, key_cache, value_cache, torch.tensor([4, 3, 8], device=device))
    assert torch.equal(key_cache[[1, 1, 2], [1, 0, 2]], keys)
    assert torch.equal(value_cache[[1, 1, 2], [1, 0, 2]], values)


def test_a_write_may_be_empty_or_all_skipped():
    pool, key_cache, value_cache = caches(torch.float32, DEVICE)
    for slots in ([], [-1, -1]):
        tokens = torch.ones(len(slots), 3, 5, device=DEVICE)
        write_kv(
            tokens, tokens, key_cache, value_cache, torch.tensor(slots, dtype=torch.int64, device=DEVICE)
        )
    assert pool.isnan().all()


@pytest.mark.parametrize("slot", [12, -2, 2**40])
def test_a_slot_out_of_range_writes_nothing(slot):
    pool, key_cache, value_cache = caches(torch.float32, "cpu")
    ones = torch.ones(2, 3, 5)
    with pytest.raises(ValueError, match=f"slots: {slot} is out of range, the cache has slots 0 to 11"):
        write_kv(ones, ones, key_cache, value_cache, torch.tensor([0, slot]))
    assert pool.isnan().all()
    pool, key_cache, value_cache = caches(torch.float32, DEVICE)
    ones = ones.to(DEVICE)
    launch_write_kv(ones, ones, key_cache, value_cache, torch.tensor([0, slot], device=DEVICE))
    assert (
        ~pool.isnan()
    ).sum() == 2 * 3 * 5  # slot 0 alone: a GPU can't raise, but it never writes elsewhere


BAD_WRITES = {
    "keys of another dtype": (TypeError, "keys: dtype", lambda k, v, s: (k.double(), v, s)),
    "values of another dtype": (TypeError, "values: dtype", lambda k, v, s: (k, v.double(), s)),
    "32-bit slots": (TypeError, "slots: dtype", lambda k, v, s: (k, v, s.int())),
    "too few values": (ValueError, "values: shape", lambda k, v, s: (k, v[:1], s)),
    "another number of heads": (ValueError, "keys: shape", lambda k, v, s: (k[:, :2], v, s)),
    "slots of two dimensions": (ValueError, "slots: shape", lambda k, v, s: (k, v, s[None])),
}


@pytest.mark.parametrize("kind", BAD_WRITES)
def test_a_bad_write_is_named_and_writes_nothing(kind):
    error, message, change = BAD_WRITES[kind]
    pool, key_cache, value_cache = caches(torch.float32, DEVICE)
    ones = torch.ones(2, 3, 5, device=DEVICE)
    keys, values, slots = change(ones, ones, torch.tensor([0, 1], device=DEVICE))
    with pytest.raises(error, match=message):
        write_kv(keys, values, key_cache, value_cache, slots)
    assert pool.isnan().all()


def test_a_bad_mapping_is_named():
    tables, numbers = int32([[2, 0]]), int32([0])
    with pytest.raises(ValueError, match="block_size: 0"):
        slot_mapping(tables, numbers, numbers, 0)
    with pytest.raises(TypeError, match="block_tables: dtype"):
        slot_mapping(tables.long(), numbers, numbers, 4)
    with pytest.raises(ValueError, match="block_tables: shape"):
        slot_mapping(tables[0], numbers, numbers, 4)
    with pytest.raises(TypeError, match="positions: dtype"):
        slot_mapping(tables, numbers.float(), numbers, 4)
    with pytest.raises(ValueError, match="sequence_ids: shape"):
        slot_mapping(tables, numbers, int32([0, 0]), 4)
