"""What of the paper a small model on this machine can show: the claims of paging, and what its kernel costs.

Everything compared runs in turn, in one process, with the same requests and the same threads.
Page: docs/paper.md.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, median, stdev
from typing import Any

import torch

from minipaged.engine.block_manager import BlockManager
from minipaged.engine.schedule import Schedule
from minipaged.engine.scheduler import Scheduler
from minipaged.engine.usage import Usage
from minipaged.kernels import attention_cpu
from minipaged.llm import LLM
from minipaged.models import huge_pages
from minipaged.reference.block_table import num_blocks_for
from minipaged.sampling_params import SamplingParams
from minipaged.simulator.simulation import make_request
from minipaged.simulator.workload import Lengths

from ..shared.models import plain_token_ids
from ..shared.sizes import BLOCK_SIZE, BLOCK_SIZES, MAX_MODEL_LEN
from . import published
from .figure import Figure, FigureRow

NUM_PIECES = 3  # of MAX_MODEL_LEN slots each: the budget of the claims
PROMPTS, OUTPUTS = (30, 90), (200, 400)  # tokens of the requests that show them: (least, most)
# The kernel's work: a batch, a context, heads of OPT-13B. Rounds go through all block sizes in turn.
BATCH, CONTEXT, HEADS, HEAD_DIM, ROUNDS = 4, 512, 40, 128, 9


def claims(model: str, num_requests: int) -> Figure:
    """Reserving the maximum is paging with block_size = max_model_len: the same requests, both ways.

    The memory is that of NUM_PIECES longest sequences. Reservation gets one more, since an admission leaves
    one block to those that run already, and that would be a third of its memory.
    """
    ways = {
        "reserved": (MAX_MODEL_LEN, NUM_PIECES + 1),
        "paged": (BLOCK_SIZE, NUM_PIECES * MAX_MODEL_LEN // BLOCK_SIZE),
    }
    found = {way: _serve(model, num_requests, *sizes) for way, sizes in ways.items()}
    paged, reserved = found["paged"], found["reserved"]
    rows = [
        FigureRow(
            "slots in use that hold no token",
            "60 to 80 %, and under 4 %",
            f"{reserved['waste']:.1%}, and {paged['waste']:.1%}",
            [reserved["waste"], paged["waste"]],
        ),
        FigureRow(
            "requests at once",
            "",
            f"{reserved['running']:.1f}, and {paged['running']:.1f}: "
            f"{paged['running'] / reserved['running']:.1f} times",
            [reserved["running"], paged["running"]],
        ),
        FigureRow(
            "empty slots of a sequence",
            f"{(BLOCK_SIZE - 1) / 2} with blocks of {BLOCK_SIZE}",
            f"{reserved['empty']:,.0f}, and {paged['empty']:.1f}",
            [reserved["empty"], paged["empty"]],
        ),
        FigureRow(
            "tokens a second",
            "2 to 4 times",
            f"{reserved['throughput']:.1f}, and {paged['throughput']:.1f}: "
            f"{paged['throughput'] / reserved['throughput']:.1f} times",
            [reserved["throughput"], paged["throughput"]],
        ),
    ]
    remark = (
        f"{num_requests} requests on {model}, prompts of {PROMPTS[0]} to {PROMPTS[1]} tokens, answers of "
        f"{OUTPUTS[0]} to {OUTPUTS[1]}; {NUM_PIECES * MAX_MODEL_LEN:,} slots with paging, and "
        f"{MAX_MODEL_LEN:,} more with reservation."
    )
    if paged["tokens"] != reserved["tokens"]:
        remark += " The tokens of the two differ: an error."
    return Figure("The claims, on a real model: reserved, and paged", rows, remark)


def _serve(model: str, num_requests: int, block_size: int, num_blocks: int) -> dict[str, Any]:
    """All requests at once: waste, requests in a step, tokens a second, and the tokens."""
    llm = LLM(
        model,
        dtype="float32",
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=False,
    )
    rng = random.Random(0)
    ids = plain_token_ids(llm.engine.loaded)
    prompts = [rng.choices(ids, k=rng.randint(*PROMPTS)) for _ in range(num_requests)]
    params = [
        SamplingParams(temperature=0, max_tokens=rng.randint(*OUTPUTS), ignore_eos=True) for _ in prompts
    ]
    running: list[int] = []
    empty: list[float] = []

    def watch(step: Schedule) -> None:
        if llm.engine.scheduler.waiting:  # while more would run if they could
            running.append(len(llm.engine.scheduler.running))
            empty.append(mean(row.sequence.table.num_empty_slots for row in step.rows))

    llm.generate(prompts[:2], SamplingParams(max_tokens=4), use_tqdm=False)  # compiles
    llm.engine.usage = Usage()
    llm.engine.observers.append(watch)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    tokens = [output.outputs[0].token_ids for output in outputs]
    return {
        "waste": llm.stats().waste,
        "running": mean(running) if running else float(num_requests),
        "empty": mean(empty) if empty else 0.0,
        "throughput": sum(map(len, tokens)) / seconds,
        "tokens": tokens,
    }


def simple_example() -> Figure:
    """100 requests of 300 tokens, in blocks as long as the model allows and in blocks of 16."""
    rows = []
    for block_size, expected in ((MAX_MODEL_LEN, 204_800), (BLOCK_SIZE, 30_400)):
        blocks = BlockManager(100 * MAX_MODEL_LEN // block_size, block_size, enable_prefix_caching=False)
        for number in range(100):
            blocks.admit(make_request(blocks, number, 0.0, Lengths(300, 1)).sequences)
        slots = blocks.allocator.num_in_use * block_size
        rows.append(FigureRow(f"blocks of {block_size}", f"{expected:,} slots", f"{slots:,} slots", slots))
    return Figure("100 requests of 300 tokens", rows)


def expected_waste(num_requests: int, seed: int = 0) -> Figure:
    """N x (B - 1) / 2 empty slots for N sequences, if lengths are spread evenly modulo B.

    Lengths are drawn from 1 to 64 blocks' worth of tokens. Then two cases in which it must fail.
    """
    rows = []
    rng = random.Random(seed)
    cases = [(f"blocks of {size}", size, range(1, 64 * size + 1)) for size in (4, 16, 64)]
    cases.append(("blocks of 16, lengths 16 x n", 16, range(16, 1025, 16)))
    cases.append(("blocks of 16, lengths 16 x n + 1", 16, range(17, 1026, 16)))
    for what, size, lengths in cases:
        empty = _empty_slots(rng.choices(lengths, k=num_requests), size)
        expected = num_requests * (size - 1) / 2
        error = stdev(empty) * num_requests**0.5
        ours = f"{sum(empty):,} (sampling error {error:,.0f})"
        rows.append(FigureRow(what, f"{expected:,.0f}", ours, [sum(empty), expected, error]))
    remark = f"Empty slots of {num_requests:,} sequences; the paper's column is N x (B - 1) / 2."
    return Figure("What the last blocks waste", rows, remark)


def _empty_slots(lengths: Sequence[int], block_size: int) -> list[int]:
    """Of each sequence's last block, once the scheduler has admitted all of them."""
    num_blocks = sum(num_blocks_for(length, block_size) for length in lengths)
    blocks = BlockManager(num_blocks + num_blocks // 99 + 1, block_size, enable_prefix_caching=False)
    scheduler = Scheduler(blocks, max_num_seqs=len(lengths), max_num_batched_tokens=sum(lengths))
    scheduler.waiting.extend(make_request(blocks, n, 0.0, Lengths(k, 1)) for n, k in enumerate(lengths))
    scheduler.schedule()
    return [request.sequences[0].table.num_empty_slots for request in scheduler.running]


def kernel_times() -> dict[int, float]:
    """Median seconds of the CPU kernel's decode by block size; 0 stands for torch's own on one piece."""
    calls = decode_calls()
    taken: dict[int, list[float]] = {size: [] for size in calls}
    for _ in range(ROUNDS + 1):
        for size, call in calls.items():
            start = time.perf_counter()
            call()
            taken[size].append(time.perf_counter() - start)
    return {size: median(times[1:]) for size, times in taken.items()}  # the first round compiles


def decode_calls() -> dict[int, Callable[[], torch.Tensor]]:
    """One decode of the same queries over the same K and V, by block size; 0 is torch's own.

    Each returns [batch, heads, head_dim].
    """
    shape = (BATCH, HEADS, CONTEXT, HEAD_DIM)
    keys, values = (huge_pages.empty(shape, torch.float32).normal_() for _ in range(2))
    queries = torch.randn(BATCH, HEADS, HEAD_DIM)
    calls: dict[int, Callable[[], torch.Tensor]] = {
        size: partial(_paged_decode(size, keys, values), queries) for size in BLOCK_SIZES
    }
    attend = torch.nn.functional.scaled_dot_product_attention
    calls[0] = lambda: attend(queries.unsqueeze(2), keys, values).squeeze(2)
    return calls


def _paged_decode(block_size: int, keys: torch.Tensor, values: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The decode kernel over a pool that has the K and V in blocks, in random order."""
    per_row = CONTEXT // block_size
    pool = huge_pages.empty((BATCH * per_row, 1, 2, block_size, HEADS, HEAD_DIM), torch.float32)
    tables = torch.randperm(BATCH * per_row).view(BATCH, per_row)
    for cache, piece in ((pool[:, 0, 0], keys), (pool[:, 0, 1], values)):
        cache[tables] = piece.transpose(1, 2).unflatten(1, (per_row, block_size))
    lengths = torch.full((BATCH,), CONTEXT, dtype=torch.int32)
    return partial(
        attention_cpu.decode_attention,
        key_cache=pool[:, 0, 0],
        value_cache=pool[:, 0, 1],
        block_tables=tables.int(),
        context_lengths=lengths,
        scale=HEAD_DIM**-0.5,
    )


def kernel_overhead(times: dict[int, float]) -> Figure:
    """Figure 18a: reading K and V through block tables against reading them in one piece."""
    rows = []
    for size in BLOCK_SIZES:
        paper = published.KERNEL_OVERHEAD if size == BLOCK_SIZE else ""
        rows.append(
            FigureRow(
                f"blocks of {size}", paper, f"{times[size] / times[0]:.2f} times", times[size] / times[0]
            )
        )
    remark = (
        "The decode kernel for CPUs against torch's own on contiguous K and V: "
        f"{BATCH} sequences of {CONTEXT} tokens, {HEADS} heads of {HEAD_DIM}, float32. Theirs is a GPU's."
    )
    return Figure("Figure 18a: the attention kernel", rows, remark)


def slowdown(times: dict[int, float]) -> dict[int, float]:
    """How much longer the kernel takes than with the best block size."""
    best = min(times[size] for size in BLOCK_SIZES)
    return {size: times[size] / best for size in BLOCK_SIZES}
