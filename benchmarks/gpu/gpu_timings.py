"""What the GPU check times, each beside torch's own way and the floor that the device's rates set.

A case builds its data, sees that both ways give the same, and times them in turns. A meter says where the
data is kept and how a call is timed, so that all cases can also be played through, small, on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
from gpu_report import Timing, causal_flops, floor_us, kv_bytes
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minipaged.kernels import allocator, attention, beam_search, block_table, copy_on_write, swap

Call = Callable[[], Any]
Case = tuple[str, str, Callable[[], Timing]]  # group, case, what measures it

BLOCK_SIZE = 16
HEADS = (32, 8, 128)  # query heads, KV heads, head_dim
ROUNDS = 20
HEAD_START = 10_000_000  # cycles that the device idles while the host queues a call: some 5 milliseconds
SCRATCH_BYTES = 512 << 20  # more than any L2 cache
LARGEST_ERROR = 3e-2  # of the largest value: bfloat16 rounds weights and outputs to 8 bits


class Meter(Protocol):
    """Where the data of a case is, and how calls are timed there."""

    device: str

    def device_us(self, calls: Sequence[Call]) -> list[float]:
        """Microseconds that the device is busy with each call, from its first launch to its last end."""

    def host_us(self, call: Call) -> float:
        """Microseconds until a call returns."""


class CudaMeter:
    """CUDA events around each call, in rounds that take turns."""

    device = "cuda"

    def __init__(self) -> None:
        self._scratch = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device="cuda")

    def device_us(self, calls: Sequence[Call]) -> list[float]:
        """The median of some rounds, with none of the data left in the L2 cache and the launches queued."""
        for call in calls:
            for _ in range(3):  # compile, and fill torch's caches of memory
                call()
        milliseconds: list[list[float]] = [[] for _ in calls]
        for _ in range(ROUNDS):
            for index, call in enumerate(calls):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self._scratch.zero_()
                torch.cuda._sleep(HEAD_START)
                start.record()
                call()
                end.record()
                torch.cuda.synchronize()
                milliseconds[index].append(start.elapsed_time(end))
        return [1e3 * median(each) for each in milliseconds]

    def host_us(self, call: Call) -> float:
        """The mean of as many calls as are waited for once."""
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ROUNDS):
            call()
        seconds = time.perf_counter() - start
        torch.cuda.synchronize()
        return 1e6 * seconds / ROUNDS


class Rates(NamedTuple):
    """What this device does at best, as torch's large copies and products show it."""

    bytes_per_second: float  # read and written
    float16_flops: float
    bfloat16_flops: float

    def flops(self, dtype: torch.dtype) -> float:
        """Operations a second of a large matrix product."""
        return self.float16_flops if dtype == torch.float16 else self.bfloat16_flops


def measure_rates(meter: Meter, num_bytes: int = 2 << 30, size: int = 8192) -> Rates:
    """Copy `num_bytes` and multiply square matrices of `size`."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=meter.device)
    target = torch.empty_like(source)
    (copy_us,) = meter.device_us([lambda: target.copy_(source)])
    flops = []
    for dtype in (torch.float16, torch.bfloat16):
        matrix = torch.randn(size, size, device=meter.device).to(dtype)
        product = torch.empty_like(matrix)
        (product_us,) = meter.device_us([partial(torch.mm, matrix, matrix, out=product)])
        flops.append(1e6 * 2 * size**3 / product_us)
    return Rates(1e6 * 2 * num_bytes / copy_us, *flops)


# ---- attention -----------------------------------------------------------------------------------------


def scatter(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """K and V, [batch, num_kv_heads, context, head_dim], in shuffled blocks: both caches and the tables."""
    batch, num_kv_heads, context, head_dim = keys.shape
    num_blocks = batch * context // BLOCK_SIZE
    pool = keys.new_empty((num_blocks, 1, 2, BLOCK_SIZE, num_kv_heads, head_dim))
    tables = torch.randperm(num_blocks, device=keys.device).view(batch, -1)
    for kv, tensor in enumerate((keys, values)):
        pool[:, 0, kv][tables] = tensor.transpose(1, 2).unflatten(1, (-1, BLOCK_SIZE))
    return pool[:, 0, 0], pool[:, 0, 1], tables.int()


def decode(meter: Meter, rates: Rates, dtype: torch.dtype, batch: int, context: int) -> Timing:
    """One token of each sequence over its context. torch reads K and V in one piece."""
    num_heads, num_kv_heads, head_dim = HEADS
    queries = _normal(meter, dtype, batch, num_heads, head_dim)
    keys, values = (_normal(meter, dtype, batch, num_kv_heads, context, head_dim) for _ in range(2))
    lengths = torch.full((batch,), context, dtype=torch.int32, device=meter.device)
    cache = (*scatter(keys, values), lengths)
    ours = partial(attention.decode_attention, queries, *cache, scale=head_dim**-0.5)
    ways = _torch_ways(queries.unsqueeze(2), keys, values, is_causal=False)
    check(ours(), ways[0]().squeeze(2))
    mine, *theirs = meter.device_us([ours, *ways])
    read = kv_bytes(batch, context, num_kv_heads, head_dim, dtype.itemsize)
    floor = floor_us(read, rates.bytes_per_second)
    return _row(mine, min(theirs), floor, meter.host_us(ours))


def prefill(meter: Meter, rates: Rates, dtype: torch.dtype, batch: int, length: int) -> Timing:
    """Whole prompts of one length."""
    num_heads, num_kv_heads, head_dim = HEADS
    queries = _normal(meter, dtype, batch, length, num_heads, head_dim)
    keys, values = (_normal(meter, dtype, batch, num_kv_heads, length, head_dim) for _ in range(2))
    lengths = torch.full((batch,), length, dtype=torch.int32, device=meter.device)
    starts = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=meter.device)
    ours = partial(
        attention.prefill_attention,
        queries.flatten(0, 1),
        *scatter(keys, values),
        lengths,
        starts,
        scale=head_dim**-0.5,
        max_query_length=length,
    )
    heads_first = queries.transpose(1, 2).contiguous()
    ways = _torch_ways(heads_first, keys, values, is_causal=True)
    check(ours(), ways[0]().transpose(1, 2).flatten(0, 1))
    mine, *theirs = meter.device_us([ours, *ways])
    floor = floor_us(causal_flops(batch, length, num_heads, head_dim), rates.flops(dtype))
    return _row(mine, min(theirs), floor, meter.host_us(ours))


def _torch_ways(queries: Tensor, keys: Tensor, values: Tensor, is_causal: bool) -> list[Call]:
    """torch's attention with enable_gqa, and with a K and V for every query head where memory allows it."""
    options = {"is_causal": is_causal}
    ways = [partial(scaled_dot_product_attention, queries, keys, values, enable_gqa=True, **options)]
    group = queries.shape[1] // keys.shape[1]
    try:
        copies = [tensor.repeat_interleave(group, dim=1) for tensor in (keys, values)]
    except torch.cuda.OutOfMemoryError:
        return ways
    return [*ways, partial(scaled_dot_product_attention, queries, *copies, **options)]


# ---- moving data ---------------------------------------------------------------------------------------


def write_tokens(meter: Meter, rates: Rates, num_tokens: int) -> Timing:
    """K and V of new tokens to their slots; torch assigns by index, to two caches in one piece."""
    _, num_kv_heads, head_dim = HEADS
    keys, values = (_normal(meter, torch.float16, num_tokens, num_kv_heads, head_dim) for _ in range(2))
    num_blocks = max(1, 2 * num_tokens // BLOCK_SIZE)
    pool = keys.new_zeros((num_blocks, 1, 2, BLOCK_SIZE, num_kv_heads, head_dim))
    slots = torch.randperm(num_blocks * BLOCK_SIZE, device=meter.device)[:num_tokens]
    key_cache, value_cache = pool[:, 0, 0], pool[:, 0, 1]
    flat = [cache.flatten(0, 1).clone() for cache in (key_cache, value_cache)]
    ours = partial(block_table.write_kv, keys, values, key_cache, value_cache, slots)

    def theirs() -> None:
        flat[0][slots] = keys
        flat[1][slots] = values

    ours()
    check(value_cache.flatten(0, 1)[slots], values)
    mine, other = meter.device_us([ours, theirs])
    return _row(mine, other, floor_us(2 * 2 * keys.nbytes, rates.bytes_per_second), meter.host_us(ours))


def copy(meter: Meter, rates: Rates, num_pairs: int, block_bytes: int) -> Timing:
    """Whole blocks within a pool; torch assigns by index. A floor reads and writes each byte once."""
    pool = torch.zeros(2 * num_pairs, block_bytes // 8, dtype=torch.int64, device=meter.device)
    pool += torch.arange(2 * num_pairs, device=meter.device).unsqueeze(1)
    order = torch.randperm(2 * num_pairs)
    sources, destinations = order[:num_pairs].tolist(), order[num_pairs:].tolist()
    here, there = (ids.to(meter.device) for ids in (order[:num_pairs], order[num_pairs:]))
    ours = partial(copy_on_write.copy_blocks, pool, sources, destinations)

    def theirs() -> None:
        pool[there] = pool[here]

    ours()
    check(pool[there], here.unsqueeze(1).expand(-1, pool.shape[1]))
    mine, other = meter.device_us([ours, theirs])
    moved = 2 * num_pairs * block_bytes
    return _row(mine, other, floor_us(moved, rates.bytes_per_second), meter.host_us(ours))


def move(meter: Meter, rates: Rates, num_blocks: int, block_bytes: int, out: bool) -> Timing:
    """Scattered blocks to pinned host memory, or back; torch copies as many bytes that lie in one piece."""
    pool = torch.zeros(2 * num_blocks, block_bytes // 8, dtype=torch.int64, device=meter.device)
    pool += torch.arange(2 * num_blocks, device=meter.device).unsqueeze(1)
    host = swap.host_pool(pool, num_blocks)
    host.copy_(torch.arange(num_blocks).unsqueeze(1))
    blocks, places = torch.randperm(2 * num_blocks)[:num_blocks].tolist(), list(range(num_blocks))
    chosen = torch.tensor(blocks, device=meter.device)
    if out:
        ours = partial(swap.swap_blocks, pool, host, blocks, places)
        piece = torch.empty_like(host, pin_memory=pool.is_cuda)  # torch's copy must not undo ours
        theirs = partial(piece.copy_, pool[:num_blocks], non_blocking=True)
    else:
        ours = partial(swap.swap_blocks, host, pool, places, blocks)
        theirs = partial(torch.empty_like(pool[:num_blocks]).copy_, host, non_blocking=True)
    ours()
    if pool.is_cuda:
        torch.cuda.synchronize()
    expected = (chosen.cpu() if out else torch.arange(num_blocks)).unsqueeze(1).expand(-1, pool.shape[1])
    check(host if out else pool[chosen].cpu(), expected)
    mine, other = meter.device_us([ours, theirs])
    return _row(mine, other, None, meter.host_us(ours))


# ---- bookkeeping on the device -------------------------------------------------------------------------


def allocate(meter: Meter, rates: Rates, batch: int, num_blocks: int) -> Timing:
    """A block for each sequence, and all of them back: two launches, and the little that comes with them."""
    blocks = allocator.BlockAllocator(num_blocks, meter.device)
    ones = torch.ones(batch, dtype=torch.int32, device=meter.device)
    lengths = torch.zeros_like(ones)
    tables = torch.full((batch, 1), -1, dtype=torch.int32, device=meter.device)

    def ours() -> None:
        blocks.allocate(ones, tables, lengths)
        blocks.free(tables[:, 0])
        lengths.zero_()

    ours()
    check(tables[:, 0], torch.arange(batch, device=meter.device))  # the same ones each time, the top first
    (mine,) = meter.device_us([ours])
    host_us = meter.host_us(ours)
    if blocks.num_free != num_blocks:
        raise RuntimeError(f"{num_blocks - blocks.num_free} blocks were lost")
    return _row(mine, None, None, host_us)


def reorder(meter: Meter, rates: Rates, num_beams: int, context: int) -> Timing:
    """Half of the beams are forked and the others dropped, over and over."""
    per_beam = -(-context // BLOCK_SIZE)
    blocks = allocator.BlockAllocator(num_beams * per_beam, meter.device)
    rows = torch.full((num_beams, per_beam), -1, dtype=torch.int32, device=meter.device)
    numbers = torch.full((num_beams,), per_beam, dtype=torch.int32, device=meter.device)
    blocks.allocate(numbers, rows, torch.zeros_like(numbers))
    parents = torch.arange(num_beams, dtype=torch.int32, device=meter.device) // 2
    lengths = torch.full_like(numbers, context)
    done: list[Any] = []

    def ours() -> None:
        nonlocal rows
        done[:] = [beam_search.reorder_beams(rows, parents, blocks, lengths, BLOCK_SIZE)]
        rows = done[0].block_tables

    (mine,) = meter.device_us([ours])
    host_us = meter.host_us(ours)
    copies = int((done[0].sources >= 0).sum())
    if int(done[0].refused) or copies != num_beams // 2:
        raise RuntimeError(f"refused: {int(done[0].refused)}, copies: {copies}, must be {num_beams // 2}")
    return _row(mine, None, None, host_us)


# ---- all of it -----------------------------------------------------------------------------------------


def cases(meter: Meter, rates: Rates) -> Iterator[Case]:
    """What is timed, the most telling first: where time runs out, the rest is left."""
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        for batch in (1, 8, 64):
            for context in (1024, 8192):
                label = f"batch {batch}, context {context:,}"
                yield f"decode attention, {name}", label, partial(decode, meter, rates, dtype, batch, context)
        for batch, length in ((1, 2048), (4, 1024)):
            label = f"{batch} of {length:,} tokens"
            yield f"prefill attention, {name}", label, partial(prefill, meter, rates, dtype, batch, length)
    for num_pairs, size in ((1, 2 << 20), (256, 2 << 20), (1024, 64 << 10)):
        label = f"{num_pairs} blocks of {size >> 10:,} KiB"
        yield "block copies", label, partial(copy, meter, rates, num_pairs, size)
    for out in (True, False):
        for num_blocks, size in ((256, 2 << 20), (1024, 64 << 10)):
            label = f"{'out' if out else 'in'}, {num_blocks} blocks of {size >> 10:,} KiB"
            yield "swap", label, partial(move, meter, rates, num_blocks, size, out)
    for num_tokens in (64, 8192):
        yield "K and V writes", f"{num_tokens:,} tokens", partial(write_tokens, meter, rates, num_tokens)
    for batch in (8, 256):
        label = f"{batch} sequences"
        yield "allocate and free", label, partial(allocate, meter, rates, batch, 100_000)
    for num_beams in (4, 64):
        yield (
            "beam reorder, 1,000 tokens each",
            f"{num_beams} beams",
            partial(reorder, meter, rates, num_beams, 1000),
        )


def run_cases(
    cases: Iterator[Case], deadline: float, clock: Callable[[], float] = time.monotonic
) -> list[Timing]:
    """A row for each case; one that fails, or comes too late, says so in its row and stops no other."""
    rows = []
    for group, case, measure in cases:
        if clock() > deadline:
            rows.append(Timing(group, case, failure="not run, the time was over"))
            continue
        try:
            row = measure()
        except Exception as error:  # whatever it is, it belongs in the table
            message = str(error).strip().splitlines() or ["no message"]
            row = Timing(failure=f"{type(error).__name__}: {message[0]}")
        rows.append(replace(row, group=group, case=case))
    return rows


def check(result: Tensor, expected: Tensor) -> None:
    """Refuse to time what is wrong: RuntimeError beyond LARGEST_ERROR; integers must be equal."""
    if result.shape != expected.shape:
        raise RuntimeError(f"wrong result: shape {list(result.shape)}, must be {list(expected.shape)}")
    if not result.is_floating_point():
        if not bool((result == expected).all()):
            raise RuntimeError("wrong result: other integers than expected")
        return
    error = (result.double() - expected.double()).abs().max() / expected.double().abs().max()
    if not error <= LARGEST_ERROR:
        raise RuntimeError(f"wrong result: off by {float(error):.3g} of the largest value")


def _normal(meter: Meter, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=meter.device)


def _row(ours: float, theirs: float | None, floor: float | None, host: float) -> Timing:
    return Timing(ours_us=ours, torch_us=theirs, floor_us=floor, host_us=host)
