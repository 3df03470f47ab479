"""The checks of `minipaged doctor`: attention over scattered blocks, writing K and V, copying blocks.

Attention is compared with dense attention in float64. Moved data must be right to the bit. A check returns a
line of figures, or raises an error that says what is wrong.
"""

from __future__ import annotations

import time

import torch

from ..engine.backends import AttentionBackend, get_backend

TOLERANCE = 1e-5  # of float32 attention over values of about 1

BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 16, 4, 2, 32
CONTEXT_LENGTHS = (1, 16, 37)  # a part of a block, one block, and two blocks with a part of a third
QUERY_LENGTHS = (1, 5, 37)  # for prefill: one token, the end of a prompt, a whole one
BLOCK_TABLES = ((5, 0, 0), (2, 0, 0), (7, 1, 4))


def check_attention(name: str, device: torch.device) -> str:
    """Run the decode and the prefill of a backend twice, and return the largest error and the times."""
    backend = get_backend(name, device)
    start = time.perf_counter()
    attention_error(backend, device)
    first = time.perf_counter() - start
    error = attention_error(backend, device)
    seconds = time.perf_counter() - start - first
    if not error < TOLERANCE:  # NaN is no small number either
        raise AssertionError(f"WRONG: off by {error:.1e} from dense attention in float64")
    return f"largest error {error:.1e}, {seconds:.3f} s (the first time {first:.1f} s)"


def attention_error(backend: AttentionBackend, device: torch.device) -> float:
    """Return the largest difference from dense float64 attention, over a decode and a prefill batch."""
    case = Case()
    cache = case.key_cache.to(device), case.value_cache.to(device)
    tables = torch.tensor(BLOCK_TABLES, dtype=torch.int32, device=device)
    lengths = torch.tensor(CONTEXT_LENGTHS, dtype=torch.int32, device=device)
    starts = torch.tensor(case.query_starts, dtype=torch.int32, device=device)
    queries, last = case.queries.to(device), starts[1:].long() - 1
    scale, longest = HEAD_DIM**-0.5, max(QUERY_LENGTHS)
    prefilled = backend.prefill(
        queries, *cache, tables, lengths, starts, scale=scale, max_query_length=longest
    )
    decoded = backend.decode(queries[last], *cache, tables, lengths, scale=scale)
    expected = case.dense()
    errors = (prefilled.cpu() - expected, decoded.cpu() - expected[last.cpu()])
    return torch.cat([error.abs().flatten() for error in errors]).max().item()


class Case:
    """Three sequences whose blocks lie scattered in a pool. Slots without a token hold NaN."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        size = (2, len(CONTEXT_LENGTHS), max(CONTEXT_LENGTHS), NUM_KV_HEADS, HEAD_DIM)
        self.keys, self.values = torch.randn(size, generator=generator)
        self.queries = torch.randn(sum(QUERY_LENGTHS), NUM_HEADS, HEAD_DIM, generator=generator)
        self.query_starts = [sum(QUERY_LENGTHS[:i]) for i in range(len(QUERY_LENGTHS) + 1)]
        pool = torch.full((8, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM), torch.nan)
        for i, length in enumerate(CONTEXT_LENGTHS):
            for position in range(length):
                block = BLOCK_TABLES[i][position // BLOCK_SIZE]
                pool[block, 0, position % BLOCK_SIZE] = self.keys[i, position]
                pool[block, 1, position % BLOCK_SIZE] = self.values[i, position]
        self.key_cache, self.value_cache = pool[:, 0], pool[:, 1]

    def dense(self) -> torch.Tensor:
        """Return softmax(Q K^T / sqrt(head_dim)) V in float64. A query attends to positions up to its own."""
        rows = []
        group = NUM_HEADS // NUM_KV_HEADS
        for i, (length, count) in enumerate(zip(CONTEXT_LENGTHS, QUERY_LENGTHS, strict=True)):
            queries = self.queries[self.query_starts[i] : self.query_starts[i + 1]].double()
            keys = self.keys[i, :length].double().repeat_interleave(group, dim=1)
            values = self.values[i, :length].double().repeat_interleave(group, dim=1)
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * HEAD_DIM**-0.5
            positions = torch.arange(length)
            hidden = positions > positions[length - count :, None]
            weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
            rows.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(rows)


def check_write_kv(device: torch.device) -> str:
    """Write three tokens, and skip one of them, whose slot is -1."""
    from ..kernels.block_table import write_kv

    pool = torch.zeros(3, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, device=device)
    keys, values = torch.randn(2, 3, NUM_KV_HEADS, HEAD_DIM, device=device)
    slots = torch.tensor([2 * BLOCK_SIZE + 1, -1, 0], device=device)
    expected = pool.clone()
    for token, block, offset in ((0, 2, 1), (2, 0, 0)):
        expected[block, 0, offset], expected[block, 1, offset] = keys[token], values[token]
    start = time.perf_counter()
    write_kv(keys, values, pool[:, 0], pool[:, 1], slots)
    return _exact(pool, expected, start)


def check_copy_blocks(device: torch.device) -> str:
    """Copy two of four blocks onto the others."""
    from ..kernels.copy_on_write import copy_blocks

    pool = torch.randn(4, 2, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, device=device)
    expected = torch.stack([pool[0], pool[0], pool[2], pool[2]])
    start = time.perf_counter()
    copy_blocks(pool, [0, 2], [1, 3])
    return _exact(pool, expected, start)


def _exact(pool: torch.Tensor, expected: torch.Tensor, start: float) -> str:
    is_exact = torch.equal(pool, expected)  # on a GPU this waits for the kernel
    seconds = time.perf_counter() - start
    if not is_exact:
        raise AssertionError("WRONG: the pool does not hold what was written")
    where = "by a kernel on the GPU" if pool.is_cuda else "by torch on the CPU"
    return f"exact, {seconds:.3f} s, {where}"
