"""A step on the CPU's own path gives the bits of the plain one, in the pool and in the result."""

from dataclasses import replace

import pytest
import torch

from minipaged.engine.backends import get_backend
from minipaged.engine.batch import Batch
from minipaged.engine.cpu_step import CPUStep
from minipaged.engine.kv_cache import KVCache, KVShape
from minipaged.engine.model_hook import PagedStep

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM, BLOCK_SIZE, NUM_BLOCKS = 6, 2, 16, 4, 32


def batch_of(lengths: list[int], queries: list[int]) -> Batch:
    """Sequences of `lengths` tokens, the last `queries` of which are new; their blocks lie scattered."""
    generator = torch.Generator().manual_seed(0)
    tables = torch.randperm(NUM_BLOCKS, generator=generator, dtype=torch.int32).view(len(lengths), -1)
    positions = [torch.arange(length - new, length) for length, new in zip(lengths, queries, strict=True)]
    slots = [
        table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE
        for table, p in zip(tables, positions, strict=True)
    ]
    num_decodes = queries.count(1)
    starts = torch.tensor([0, *queries[num_decodes:]]).cumsum(0)
    return Batch(
        input_ids=torch.cat(positions),
        positions=torch.cat(positions),
        slots=torch.cat(slots).long(),
        block_tables=tables,
        context_lengths=torch.tensor(lengths, dtype=torch.int32),
        prefill_starts=starts.int(),
        num_decodes=num_decodes,
        max_query_length=max(queries),
        logit_indices=torch.tensor([0]),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("lengths", "queries"),
    [([1, 9, 13, 32], [1, 1, 1, 1]), ([9, 30, 8, 21], [1, 1, 8, 5]), ([5, 32, 7, 9], [5, 31, 2, 3])],
    ids=["decodes", "both", "prefills"],
)
def test_the_same_bits_as_the_plain_step(dtype, lengths, queries):
    batch = batch_of(lengths, queries)
    results = []
    for kind in (PagedStep, CPUStep):
        torch.manual_seed(0)
        cache = KVCache(NUM_BLOCKS, BLOCK_SIZE, KVShape(2, KV_HEADS, DIM, dtype), CPU)
        cache.pool.normal_()
        args = (batch, cache, get_backend("numba", CPU)) if kind is PagedStep else (batch, cache)
        step = kind(*args)
        tokens = sum(queries)
        # A model hands over views of one product for query, key and value.
        merged = torch.randn(tokens, HEADS + 2 * KV_HEADS, DIM).to(dtype)
        query, key, value = merged.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        results.append((step.attend(1, query, key, value, (0.25, 7, 30.0)), cache.pool))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_slot_of_minus_one_is_skipped():
    batch = batch_of([3, 5], [1, 1])
    cache = KVCache(NUM_BLOCKS, BLOCK_SIZE, KVShape(1, KV_HEADS, DIM, torch.float32), CPU)
    before = cache.pool.zero_().clone()
    step = CPUStep(replace(batch, slots=torch.tensor([-1, -1])), cache)
    ones = torch.ones(2, KV_HEADS, DIM)
    step.attend(0, torch.ones(2, HEADS, DIM), ones, ones, (1.0, None, None))
    assert torch.equal(cache.pool, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": torch.tensor([0, NUM_BLOCKS * BLOCK_SIZE])}, "slots: 128 is out of range"),
        ({"context_lengths": torch.tensor([3, 1000], dtype=torch.int32)}, "context_lengths: 1000"),
    ],
)
def test_what_leads_out_of_the_pool_is_refused(change, message):
    cache = KVCache(NUM_BLOCKS, BLOCK_SIZE, KVShape(1, KV_HEADS, DIM, torch.float32), CPU)
    with pytest.raises(ValueError, match=message):
        CPUStep(replace(batch_of([3, 5], [1, 1]), **change), cache)


@pytest.mark.parametrize(
    "tokens",
    [torch.ones(2, KV_HEADS, DIM).half(), torch.ones(3, KV_HEADS, DIM), torch.ones(2, 3, DIM)],
    ids=["dtype", "tokens", "heads"],
)
def test_keys_of_another_kind_are_refused(tokens):
    cache = KVCache(NUM_BLOCKS, BLOCK_SIZE, KVShape(1, KV_HEADS, DIM, torch.float32), CPU)
    step = CPUStep(batch_of([3, 5], [1, 1]), cache)
    with pytest.raises(ValueError, match="must be 2 tokens of 2 heads in the dtype of the cache"):
        step.attend(0, torch.ones(2, HEADS, DIM), tokens, tokens, (1.0, None, None))
