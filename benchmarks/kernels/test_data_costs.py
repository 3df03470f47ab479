"""What moving keys and values costs as the work grows: slots, writes, copies and swaps, reference and twin.

The reference handles nested lists, the twin's CPU path indexes torch tensors, its kernel needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from minipaged.kernels import block_table, copy_on_write, swap
from minipaged.reference import block_table as reference_table
from minipaged.reference import copy_on_write as reference_copies
from minipaged.reference import swap as reference_swap

from .stopwatch import needs_gpu, synchronised

SIDES = ["reference", "cpu", pytest.param("cuda", marks=needs_gpu)]
BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 16, 3, 64


def on(side: str, tensor: Tensor) -> Any:
    """The tensor where its side keeps such things: nested lists, the CPU, or the GPU."""
    return tensor.tolist() if side == "reference" else tensor.to(side)


def waiting(side: str, call: Callable[[], Any]) -> Callable[[], Any]:
    return synchronised(call) if side == "cuda" else call


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("num_tokens", [16, 256, 4096])
def test_slots_of_a_batch(measure, side, num_tokens):
    """16 sequences of equally many tokens."""
    tables = torch.randperm(16 * 256, dtype=torch.int32).view(16, 256)
    positions = torch.arange(num_tokens // 16).repeat(16)
    rows = torch.arange(16).repeat_interleave(num_tokens // 16)
    if side == "reference":
        lists, each = tables.tolist(), range(num_tokens // 16)

        def call() -> list[int]:
            per_row = (reference_table.slot_mapping(table, each, BLOCK_SIZE) for table in lists)
            return [slot for slots in per_row for slot in slots]

    else:
        arguments = [on(side, tensor) for tensor in (tables, positions, rows)]

        def call() -> list[int]:
            return block_table.slot_mapping(*arguments, BLOCK_SIZE)

    slots = measure("block_table, slots", side, f"{num_tokens} tokens", waiting(side, call))
    entries = tables[rows, positions // BLOCK_SIZE]
    assert list(slots) == (entries * BLOCK_SIZE + positions % BLOCK_SIZE).tolist()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("num_tokens", [16, 128, 512])
def test_writing_keys_and_values(measure, side, num_tokens):
    keys, values = torch.randn(2, num_tokens, NUM_KV_HEADS, HEAD_DIM)
    caches = torch.zeros(2, 2 * num_tokens // BLOCK_SIZE, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    slots = torch.randperm(2 * num_tokens)[:num_tokens]
    write = reference_table.write_kv if side == "reference" else block_table.write_kv
    keys_here, values_here, (key_cache, value_cache), slots_here = (
        on(side, tensor) for tensor in (keys, values, caches, slots)
    )
    call = waiting(side, lambda: write(keys_here, values_here, key_cache, value_cache, slots_here))
    measure("block_table, write", side, f"{num_tokens} tokens", call)
    for tokens, cache in ((keys, key_cache), (values, value_cache)):
        assert torch.equal(torch.as_tensor(cache).cpu().flatten(0, 1)[slots], tokens)


def pools(side: str, num_blocks: int) -> tuple[Any, Any]:
    """Two pools of one layer, block b of the first full of b; the second is where a swap would find it."""
    pool = torch.zeros(num_blocks, 1, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    pool += torch.arange(num_blocks).view(-1, 1, 1, 1, 1, 1)
    host = torch.zeros_like(pool, pin_memory=side == "cuda")
    return on(side, pool), host.tolist() if side == "reference" else host


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("num_pairs", [1, 8, 32])
def test_copying_blocks(measure, side, num_pairs):
    pool, _ = pools(side, 2 * num_pairs)
    sources, destinations = list(range(num_pairs)), list(range(2 * num_pairs - 1, num_pairs - 1, -1))
    copy = reference_copies.copy_blocks if side == "reference" else copy_on_write.copy_blocks
    call = waiting(side, lambda: copy(pool, sources, destinations))
    measure("copy_on_write, copies", side, f"{num_pairs} blocks", call)
    assert [float(pool[block][0][1][15][2][63]) for block in destinations] == sources


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("num_blocks", [1, 8, 32])
def test_swapping_blocks_out_and_in(measure, side, num_blocks):
    pool, host = pools(side, 2 * num_blocks)
    first, second = list(range(num_blocks)), list(range(2 * num_blocks - 1, num_blocks - 1, -1))
    move = reference_swap.swap_blocks if side == "reference" else swap.swap_blocks

    def call() -> None:
        move(pool, host, first, second)
        move(host, pool, second, second)

    measure("swap, copies", side, f"{num_blocks} blocks", waiting(side, call))
    assert [float(pool[block][0][1][15][2][63]) for block in second] == first
