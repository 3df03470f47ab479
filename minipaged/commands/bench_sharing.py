"""`minipaged bench-sharing`: how many blocks parallel samples and beams save, on OPT-13B's pool.

The paper's section 6.3 reports blocks saved by sharing over blocks needed without it. Here the engine's own
scheduler and block manager run requests of ShareGPT's and Alpaca's lengths on the pool of one A100 with
OPT-13B, and no model computes anything: sharing depends on lengths and on which beams live, not on logits.
Which beams live, a small real model decides once, and its choices are replayed.
Page: docs/concepts/parallel_sampling.md.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence as SequenceOf
from datetime import UTC, datetime
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..beam_search import BeamSearch
from ..block_manager import BlockManager
from ..decoding import fan_out, follow
from ..detokenizer import IncrementalDetokenizer
from ..errors import InvalidConfigError
from ..llm import LLM
from ..request import Request, Sequence
from ..sampling_params import BeamSearchParams, SamplingParams
from ..scheduler import Schedule, Scheduler
from ..usage import Usage
from . import bench_report

BLOCK_SIZE = 16
NUM_BLOCKS = 15_700 // BLOCK_SIZE  # 12 GB of 819,200 bytes a token (Table 1: 15.7K slots)
MAX_MODEL_LEN = 2048
WIDTHS = (2, 4, 6)
# Mean tokens of input and output (section 6.1); the spread of the logarithm is ours, the paper gives none.
WORKLOADS = {"ShareGPT": (161.3, 338.0), "Alpaca": (19.3, 58.5)}
SPREAD = 1.0
PAPER = {
    ("Alpaca", "parallel sampling"): "6.1 to 9.8 %",
    ("Alpaca", "beam search"): "37.6 to 55.2 %",
    ("ShareGPT", "parallel sampling"): "16.2 to 30.5 %",
    ("ShareGPT", "beam search"): "44.3 to 66.3 %",
}
QUESTIONS = (
    "Explain how an operating system uses virtual memory.",
    "Write a short story about a lighthouse keeper and a storm.",
    "Give three reasons to learn a second language.",
    "Describe how bread is made, step by step.",
)
Parents = list[list[int]]


def bench_sharing(args: argparse.Namespace) -> dict[str, Any]:
    """Run every workload, way and width, print the shares saved, write them as JSON, and return them."""
    output = bench_report.output_file(args.output)
    if args.num_requests < 1 or args.beam_tokens < 2:
        raise InvalidConfigError("num_requests must be at least 1, beam_tokens at least 2")
    console = Console(highlight=False)
    llm = LLM(args.model, enable_prefix_caching=False, max_model_len=args.max_model_len)
    with console.status("recording which beams live ..."):
        recorded = {width: record_parents(llm, width, args.beam_tokens) for width in WIDTHS}
    rows = []
    for workload in WORKLOADS:
        lengths = draw_lengths(*WORKLOADS[workload], args.num_requests, seed=0)
        for way, searches in (("parallel sampling", None), ("beam search", recorded)):
            with console.status(f"{workload}, {way} ..."):
                saved = {
                    width: serve(lengths, width, searches[width] if searches else None) for width in WIDTHS
                }
            rows.append({"workload": workload, "way": way, "saved": saved, "paper": PAPER[workload, way]})
    results = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_blocks": NUM_BLOCKS,
        "block_size": BLOCK_SIZE,
        "num_requests": args.num_requests,
        "beams_of": args.model,
        "rows": rows,
    }
    _print(console, results)
    bench_report.write_results(console, output, results)
    return results


def draw_lengths(mean_input: float, mean_output: float, count: int, seed: int) -> list[tuple[int, int]]:
    """(input, output) tokens: log-normal with these means, at least 1 each and together within the limit."""
    rng = random.Random(seed)
    pairs: list[tuple[int, int]] = []
    while len(pairs) < count:
        pair = [
            max(1, round(rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)))
            for mean in (mean_input, mean_output)
        ]
        if sum(pair) <= MAX_MODEL_LEN:
            pairs.append((pair[0], pair[1]))
    return pairs


def record_parents(llm: LLM, width: int, num_tokens: int) -> list[Parents]:
    """For each of a few questions, the parents that real beams chose at each step."""
    searches: list[Parents] = []
    reorder = llm.engine.blocks.reorder

    def watch(sequences: SequenceOf[Sequence], parents: SequenceOf[int]) -> Any:
        searches[-1].append(list(parents))
        return reorder(sequences, parents)

    llm.engine.blocks.reorder = watch  # type: ignore[method-assign]
    try:
        for question in QUESTIONS:
            searches.append([])
            prompt = question
            if llm.tokenizer is not None and llm.tokenizer.chat_template:
                prompt = llm.chat_token_ids([{"role": "user", "content": question}])  # type: ignore[assignment]
            params = BeamSearchParams(beam_width=width, max_tokens=num_tokens, ignore_eos=True)
            llm.beam_search([prompt], params, use_tqdm=False)
    finally:
        del llm.engine.blocks.reorder
    return searches


def serve(lengths: SequenceOf[tuple[int, int]], width: int, searches: list[Parents] | None) -> float:
    """Serve all requests, `width` outputs each, as fast as the pool allows: the share of blocks saved."""
    blocks = BlockManager(NUM_BLOCKS, BLOCK_SIZE, enable_prefix_caching=False)
    scheduler = Scheduler(blocks, max_num_seqs=256, max_num_batched_tokens=MAX_MODEL_LEN + 256)
    usage = Usage()
    for number, (num_input, num_output) in enumerate(lengths):
        scheduler.waiting.append(_request(blocks, number, num_input, num_output, width, searches is not None))
    while scheduler.waiting or scheduler.running:
        step = scheduler.schedule()
        for request in step.outgrown:
            scheduler.finish(request)
        usage.record(step, scheduler.running, blocks, MAX_MODEL_LEN)
        _advance(step, scheduler, searches)
    return usage.stats(scheduler, blocks, bytes_per_token=819_200).blocks_saved_by_sharing


def _request(
    blocks: BlockManager, number: int, num_input: int, num_output: int, width: int, with_beams: bool
) -> Request:
    token_ids = [number] * num_input
    new_detokenizer = partial(IncrementalDetokenizer, None, token_ids, ())
    chain, table = blocks.new_chain(token_ids, None), blocks.new_table()
    first = Sequence(token_ids, chain, table, new_detokenizer(), num_prompt_tokens=num_input, seed=0)
    params = SamplingParams(n=width, max_tokens=num_output)
    search = BeamSearch(BeamSearchParams(beam_width=width), frozenset(), num_output) if with_beams else None
    return Request(str(number), None, token_ids, params, num_output, [first], new_detokenizer, search)


def _advance(step: Schedule, scheduler: Scheduler, searches: list[Parents] | None) -> None:
    """What the decoder does, without logits: every sequence gets a token of its own."""
    blocks = scheduler.blocks
    for row in step.rows:
        blocks.publish(row.sequence, row.stop)
    for request in dict.fromkeys(row.request for row in step.rows if row.is_last_chunk):
        at = request.sequences[0].num_output_tokens
        if searches is not None:
            search = searches[int(request.request_id) % len(searches)]
            parents = [0] * request.num_sequences if at == 0 else search[1 + (at - 1) % (len(search) - 1)]
            follow(request, parents, blocks)
        elif at == 0:
            fan_out(request, blocks)
        for i, sequence in enumerate(request.sequences):
            sequence.token_ids.append(-1 - i)
        if request.sequences[0].num_output_tokens == request.max_tokens:
            scheduler.finish(request)


def _print(console: Console, results: dict[str, Any]) -> None:
    table = Table(title="Blocks saved by sharing, over blocks needed without it", box=box.SIMPLE_HEAD)
    for name in ("workload", "way", *(f"{width}" for width in WIDTHS), "paper, 2 to 6"):
        table.add_column(name, justify="left" if name in ("workload", "way") else "right")
    for row in results["rows"]:
        shares = (f"{row['saved'][width]:.1%}" for width in WIDTHS)
        table.add_row(row["workload"], row["way"], *shares, row["paper"])
    console.print(table)
    notes = (
        f"{results['num_requests']} requests a cell, {results['num_blocks']} blocks of "
        f"{results['block_size']}. Lengths are log-normal with the paper's means, not the data sets "
        "themselves; all outputs of a request are of one length; which beams live is "
        f"{results['beams_of']}'s choice on {len(QUESTIONS)} questions, not OPT-13B's on the data."
    )
    console.print(f"[dim]{notes}[/]")
