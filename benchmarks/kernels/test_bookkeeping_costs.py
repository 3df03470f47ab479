"""What the bookkeeping costs, as the pool and the work grow: allocator, beams, swap, prefix cache, pieces.

The bounds are ratios within one run, with minima of rounds that take turns: where a cost was linear in the
size of the pool, it would grow a hundred or a thousand times, and threefold is allowed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch

from minipaged.kernels import allocator as device
from minipaged.kernels import beam_search as device_beams
from minipaged.reference import contiguous
from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.beam_search import reorder_beams
from minipaged.reference.block_table import BlockTable
from minipaged.reference.prefix_cache import PrefixCache
from minipaged.reference.prefix_chain import PrefixChain
from minipaged.reference.slot_allocator import BuddyAllocator, FirstFitAllocator, SlotAllocator
from minipaged.reference.swap import swap_in, swap_out

from .stopwatch import best_of, needs_gpu, synchronised

SMALL, LARGE = 1_000, 1_000_000
SIDES = ["reference", pytest.param("triton", marks=needs_gpu)]


@pytest.fixture(autouse=True, scope="module")
def no_garbage_collection() -> Iterator[None]:
    """A collection walks over all that is alive, whoever's turn it is."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def repeated(call: Callable[[], Any], times: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(times):
            call()

    return run


# ---- allocator -----------------------------------------------------------------------------------------


def take_and_give(side: str, num_blocks: int, batch: int) -> Callable[[], Any]:
    """A call that takes a block for each of `batch` sequences, and gives them back."""
    if side == "reference":
        blocks = BlockAllocator(num_blocks)
        return lambda: blocks.free(blocks.allocate(batch))
    pool = device.BlockAllocator(num_blocks)
    ones = torch.ones(batch, dtype=torch.int32, device="cuda")
    table = torch.full((batch, 1), -1, dtype=torch.int32, device="cuda")

    def run() -> torch.Tensor:
        pool.allocate(ones, table, torch.zeros_like(ones))
        return pool.free(table[:, 0]).unused

    return synchronised(run)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("num_blocks", [SMALL, LARGE])
def test_allocate_and_free(measure, side, num_blocks):
    call = take_and_give(side, num_blocks, 16)
    freed = measure("allocator, pool", side, f"{num_blocks:,} blocks", call)
    assert list(freed) == list(range(15, -1, -1))  # the tail first


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("batch", [1, 64, 1024])
def test_allocate_and_free_for_a_batch(measure, side, batch):
    freed = measure("allocator, batch", side, f"{batch} sequences", take_and_give(side, 10_000, batch))
    assert sorted(freed) == list(range(batch))


def test_allocating_costs_the_same_in_any_pool(note_ratio):
    calls = [repeated(take_and_give("reference", size, 16), 20) for size in (SMALL, LARGE)]
    small, large = best_of(calls, 30)
    note_ratio(
        f"allocate and free, pool of {LARGE:,} blocks over one of {SMALL:,} (1 is flat)", large / small
    )
    assert large < 3 * small


def test_sharing_and_freeing_are_linear_in_the_blocks_named(note_ratio):
    def share_and_free(number: int) -> Callable[[], Any]:
        pool = BlockAllocator(number)
        blocks = pool.allocate(number)
        return lambda: (pool.share(blocks), pool.free(blocks))

    few, many = best_of([share_and_free(2_000), share_and_free(64_000)], 15)
    note_ratio("share and free, cost a block, 64,000 blocks named over 2,000 (1 is linear)", many / few / 32)
    assert many < 3 * 32 * few  # were it quadratic, 32 * 32 times


# ---- beam search ---------------------------------------------------------------------------------------


def reorder(side: str, num_beams: int) -> Callable[[], int]:
    """A call that forks half of the beams and drops the others, 1,000 tokens each, and counts the copies."""
    parents = [beam // 2 for beam in range(num_beams)]
    num_blocks = 64 * num_beams
    if side == "reference":
        pool = BlockAllocator(num_blocks)
        tables = [BlockTable(16, pool.allocate(63), 1000) for _ in range(num_beams)]

        def run() -> int:
            nonlocal tables
            tables, pairs = reorder_beams(tables, parents, pool)
            return len(pairs)

        return run
    blocks = device.BlockAllocator(num_blocks)
    rows = torch.full((num_beams, 64), -1, dtype=torch.int32, device="cuda")
    numbers = torch.full((num_beams,), 63, dtype=torch.int32, device="cuda")
    blocks.allocate(numbers, rows, torch.zeros_like(numbers))
    lengths = torch.full_like(numbers, 1000)
    choice = torch.tensor(parents, dtype=torch.int32, device="cuda")

    def launch() -> int:
        nonlocal rows
        done = device_beams.reorder_beams(rows, choice, blocks, lengths, 16)
        rows = done.block_tables
        return int((done.sources >= 0).sum())

    return synchronised(launch)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("num_beams", [4, 16, 64])
def test_reordering_beams(measure, side, num_beams):
    copies = measure("beam_search", side, f"{num_beams} beams", reorder(side, num_beams))
    assert copies == num_beams // 2  # each parent has two children, and one of them keeps its last block


# ---- swap ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [64, 512, 4096])
def test_repointing_a_group_to_the_host_and_back(measure, num_blocks):
    pool, host = BlockAllocator(2 * num_blocks), BlockAllocator(num_blocks)
    shared = pool.allocate(num_blocks // 2)
    pool.share(shared)
    tables = [shared + pool.allocate(num_blocks // 4) for _ in range(2)]

    def there_and_back() -> int:
        pairs = swap_out(tables, pool, host)
        return len(pairs) + len(swap_in(tables, pool, host))

    moved = measure("swap, bookkeeping", "reference", f"{num_blocks} blocks", there_and_back)
    assert moved == 2 * num_blocks


# ---- prefix cache --------------------------------------------------------------------------------------


def full_cache(num_blocks: int) -> Callable[[], list[int]]:
    """A call that takes 4 blocks of a pool that is all cached, so evicts 4, and leaves 4 others cached."""
    cache = PrefixCache(BlockAllocator(num_blocks))
    fresh = count()

    def run() -> list[int]:
        chain = PrefixChain([next(fresh) for _ in range(16)], 4)
        blocks = cache.allocate(4)
        cache.publish(chain, blocks, 0, 4)
        return cache.free(blocks)

    for _ in range(num_blocks // 4):
        run()
    assert (cache.allocator.num_free, cache.num_available) == (0, num_blocks)
    return run


@pytest.mark.parametrize("num_blocks", [1_000, 32_000])
def test_evicting_and_publishing(measure, num_blocks):
    freed = measure("prefix_cache, evict", "reference", f"{num_blocks:,} blocks", full_cache(num_blocks))
    assert len(set(freed)) == 4


def test_evicting_costs_the_same_in_any_pool(note_ratio):
    calls = [repeated(full_cache(size), 20) for size in (1_000, 100_000)]
    small, large = best_of(calls, 30)
    note_ratio("allocate with eviction, pool of 100,000 blocks over one of 1,000 (1 is flat)", large / small)
    assert large < 3 * small


@pytest.mark.parametrize("num_tokens", [256, 2048, 16384])
def test_looking_a_prompt_up(measure, num_tokens):
    """All of it is known, and its hashes are yet to be computed."""
    cache = PrefixCache(BlockAllocator(2048))
    tokens = list(range(num_tokens))
    blocks = cache.allocate(num_tokens // 16)
    cache.publish(PrefixChain(tokens, 16), blocks, 0, len(blocks))
    found = measure(
        "prefix_cache, lookup", "reference", f"{num_tokens:,} tokens",
        lambda: cache.lookup(PrefixChain(tokens, 16)),
    )  # fmt: skip
    assert found == blocks[:-1]  # the last block is computed again: its logits are wanted


# ---- pieces of contiguous slots ------------------------------------------------------------------------

PIECES: dict[str, tuple[type[SlotAllocator], contiguous.Policy]] = {
    "buddies": (BuddyAllocator, contiguous.power_of_two),
    "first fit": (FirstFitAllocator, contiguous.oracle),
}


@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize("num_requests", [16, 256, 2048])
def test_admitting_a_request_beside_others(measure, kind, num_requests):
    allocator, policy = PIECES[kind]
    cache = contiguous.ContiguousCache(allocator(64 * (num_requests + 1)), policy)
    for request in range(num_requests):
        cache.admit(request, 32, 64, 2048)

    def admit_and_end() -> int:
        piece = cache.admit("new", 32, 64, 2048)
        cache.free("new")
        return piece.num_slots

    assert measure("contiguous", kind, f"{num_requests} requests", admit_and_end) == 64


def test_buddies_are_split_and_merged_in_logarithmic_time(note_ratio):
    def take_and_give_back(num_slots: int) -> Callable[[], None]:
        pieces = BuddyAllocator(num_slots)
        return repeated(lambda: pieces.free(pieces.allocate(1)), 50)

    small, large = best_of([take_and_give_back(2**10), take_and_give_back(2**20)], 30)
    note_ratio("buddies, a pool of 2^20 slots over one of 2^10 (2 is logarithmic)", large / small)
    assert large < 6 * small
