"""Record the traces that the pages replay, each by a run of the real engine on the real model.

Every run is greedy or seeded, so the same trace comes out each time. Twenty steps or so, small pools: a
reader is to see every block. Other requests have used each pool before, so free blocks are scattered.
"""

from __future__ import annotations

import io
import json
import random
import sys
from collections.abc import Callable

import outputs

if __name__ == "__main__" and not sys.argv[1:]:
    outputs.leave_if_fresh("recordings", outputs.TRACES, __file__)

from minipaged.cli.machine import interpret_kernels_without_gpu

interpret_kernels_without_gpu()

from tour import cards  # noqa: E402

from minipaged import LLM, BeamSearchParams, SamplingParams  # noqa: E402
from minipaged.view.trace import Trace  # noqa: E402

GREETING = "안녕하세요 반갑습니다"
QUESTIONS = [
    "What is a page table?",
    "Why is the sky blue?",
    "Name three uses of paper.",
    "How do bees find home?",
]
SHARED = "You are a patient teacher. Answer in one short sentence. "


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def tour() -> str:
    """What paging does, one thing after another: tour.py explains eight of its steps."""
    llm = LLM(dtype="float32", block_size=4, num_blocks=16)
    two = SamplingParams(n=2, temperature=0.9, seed=5, max_tokens=7, ignore_eos=True)
    return record(
        llm,
        [
            ("A", "Once upon a time there was", greedy(20), 0),
            ("B", "A good cup of tea needs", greedy(13), 4),
            ("C", "The best way to learn is", two, 9),
            ("D", "Once upon a time the moon fell", greedy(10), 12),
        ],
    )


def walkthrough() -> str:
    """One request, from its prompt to its release."""
    llm = LLM(dtype="float32", block_size=4, num_blocks=16)
    return record(llm, [("greeting", GREETING, greedy(10), 0)])


def batching() -> str:
    """Requests that come and go: continuous batching under a token budget, with a prompt in chunks."""
    llm = LLM(dtype="float32", block_size=8, num_blocks=32, max_num_batched_tokens=16)
    long = SHARED + "Explain, with an example, what an operating system does when a page is not in memory."
    requests = [(chr(65 + i), q, greedy(6 + 4 * i), 2 * i) for i, q in enumerate(QUESTIONS)]
    return record(llm, [*requests, ("L", long, greedy(8), 3)])


def samples() -> str:
    """Three samples of one prompt share its blocks, and copy the last one when they part."""
    llm = LLM(dtype="float32", block_size=4, num_blocks=32)
    params = SamplingParams(n=3, temperature=0.9, seed=7, max_tokens=12, ignore_eos=True)
    return record(llm, [("A", "The best thing about a shared library is that", params, 0)])


def beams() -> str:
    """Four beams: forked, pruned and reordered."""
    llm = LLM(dtype="float32", block_size=4, num_blocks=32)
    params = BeamSearchParams(beam_width=4, max_tokens=14, ignore_eos=True)
    return record(llm, [("A", "The best thing about paging is", params, 0)])


def prefix() -> str:
    """A system prompt is computed once, and found by those who come later; then the pool gets full."""
    llm = LLM(dtype="float32", block_size=8, num_blocks=20)
    requests = [(chr(65 + i), SHARED + q, greedy(6), 3 * i) for i, q in enumerate(QUESTIONS)]
    return record(
        llm, [*requests, ("E", "Once upon a time, in a land far away, there lived " * 3, greedy(40), 20)]
    )


def recompute() -> str:
    """A pool too small for all: the youngest gives its blocks up, and computes again."""
    llm = LLM(dtype="float32", block_size=4, num_blocks=14, enable_prefix_caching=False)
    return record(llm, [(chr(65 + i), q, greedy(14), 0) for i, q in enumerate(QUESTIONS[:3])])


def swap() -> str:
    """The same pool, with host memory to move to."""
    llm = LLM(
        dtype="float32",
        block_size=4,
        num_blocks=14,
        enable_prefix_caching=False,
        preemption_mode="swap",
        swap_space="2MiB",
    )
    return record(llm, [(chr(65 + i), q, greedy(14), 0) for i, q in enumerate(QUESTIONS[:3])])


def record(llm: LLM, requests: list[tuple[str, str, SamplingParams | BeamSearchParams, int]]) -> str:
    """Serve requests on a used pool, each from a step on, and return the trace."""
    use_pool(llm)
    lines, num_steps = io.StringIO(), 0
    with Trace(llm.engine, lines):
        while requests or llm.engine.has_unfinished_requests():
            for request in [each for each in requests if each[3] <= num_steps]:
                llm.engine.add_request(*request[:3])
                requests.remove(request)
            llm.engine.step()
            num_steps += 1
    return lines.getvalue()


def use_pool(llm: LLM) -> None:
    """Let short requests take the blocks and leave in a random order, so that block 11 is the first free one.

    None of them fills a block, so none of its blocks stays in the prefix cache.
    """
    engine, allocator = llm.engine, llm.engine.blocks.allocator
    names = [f"{block}" for block in range(allocator.num_blocks - 1)]  # the scheduler keeps one block free
    last = [name for name in ("13", "12", "11") if name in names]  # freed last, so taken first
    for name in names:
        engine.add_request(name, "Hi", greedy(3))
    engine.step()
    random.Random(4).shuffle(names)
    for name in [*(name for name in names if name not in last), *last]:
        engine.abort_request(name)
    engine.step()
    assert [f"{block}" for block in allocator.free_order()[: len(last)]] == last[::-1]


RUNS: list[Callable[[], str]] = [tour, walkthrough, batching, samples, beams, prefix, recompute, swap]


def main(names: list[str]) -> None:
    """Record the runs named, or all."""
    outputs.TRACES.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        if not names or run.__name__ in names:
            print(f"  recording {run.__name__} ...", flush=True)
            (outputs.TRACES / f"{run.__name__}.jsonl").write_text(run(), encoding="utf-8")
    trace = (outputs.TRACES / "tour.jsonl").read_text(encoding="utf-8")
    written = json.dumps(cards(trace), ensure_ascii=False)
    (outputs.TRACES / "tour.json").write_text(written, encoding="utf-8")
    if not names:
        outputs.made(outputs.TRACES, __file__)


if __name__ == "__main__":
    main(sys.argv[1:])
