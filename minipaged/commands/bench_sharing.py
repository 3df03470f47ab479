"""`minipaged bench-sharing`: how many blocks parallel samples and beams save, on OPT-13B's pool.

The paper's section 6.3 reports blocks saved by sharing over blocks needed without it. Here the engine's own
scheduler and block manager run requests of ShareGPT's and Alpaca's lengths on the pool of one A100 with
OPT-13B, and no model computes anything: sharing depends on lengths and on which beams live, not on logits.
Which beams live, a small real model decides once, and its choices are replayed.
Page: docs/concepts/parallel_sampling.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence as SequenceOf
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from rich import box
from rich.table import Table

from ..engine.request import Sequence
from ..errors import InvalidConfigError
from ..llm import LLM
from ..paper.published import SAVED
from ..paper.runs import MAX_MODEL_LEN, WIDTHS, paper_setting
from ..sampling_params import BeamSearchParams
from ..simulator.simulation import Parents, Way
from ..simulator.systems import PAGED, saturated
from ..simulator.workload import WORKLOADS, Lengths, draw_lengths
from . import bench_report
from .console import DataConsole

QUESTIONS = (
    "Explain how an operating system uses virtual memory.",
    "Write a short story about a lighthouse keeper and a storm.",
    "Give three reasons to learn a second language.",
    "Describe how bread is made, step by step.",
)


def bench_sharing(args: argparse.Namespace) -> dict[str, Any]:
    """Run every workload, way and width, print the shares saved, write them as JSON, and return them."""
    output = bench_report.output_file(args.output)
    if args.num_requests < 1 or args.beam_tokens < 2:
        raise InvalidConfigError("num_requests must be at least 1, beam_tokens at least 2")
    console = DataConsole()
    llm = LLM(args.model, enable_prefix_caching=False, max_model_len=args.max_model_len)
    with console.status("recording which beams live ..."):
        recorded = {width: record_parents(llm, width, args.beam_tokens) for width in WIDTHS}
    rows, setting = [], paper_setting("opt-13b")
    for workload in WORKLOADS:
        lengths = list(islice(draw_lengths(WORKLOADS[workload], MAX_MODEL_LEN), args.num_requests))
        for way, searches in (("parallel sampling", None), ("beam search", recorded)):
            with console.status(f"{workload}, {way} ..."):
                ways = {width: Way(width, tuple(searches[width]) if searches else ()) for width in WIDTHS}
                saved = {width: serve(lengths, each) for width, each in ways.items()}
            paper = f"{SAVED[workload, way]} %"
            rows.append({"workload": workload, "way": way, "saved": saved, "paper": paper})
    results = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_blocks": setting.num_blocks,
        "block_size": setting.block_size,
        "num_requests": args.num_requests,
        "beams_of": args.model,
        "rows": rows,
    }
    _print(console, results)
    bench_report.write_results(console, output, results)
    return results


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


def serve(lengths: SequenceOf[Lengths], way: Way) -> float:
    """Serve all requests, as fast as the pool allows: the share of blocks saved."""
    return saturated(PAGED, lengths, paper_setting("opt-13b"), way).saved_by_sharing


def _print(console: DataConsole, results: dict[str, Any]) -> None:
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
    console.print(notes, style="dim")
