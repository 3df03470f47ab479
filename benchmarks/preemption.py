"""`minipaged bench preemption`: is it cheaper to fetch a preempted sequence's blocks or to recompute them?

The paper's Figure 19 on this machine: one sequence in pools of many block sizes is copied to the host pool
and back, and computed once more. Then an engine with too small a pool serves the same requests with either
way of preempting. No engine here looks for prefixes: recomputation would find a part of its blocks still
cached. Page: docs/concepts/preemption.md.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from minipaged.config import EngineConfig
from minipaged.engine.schedule import Move
from minipaged.errors import InvalidConfigError
from minipaged.reference.block_table import num_blocks_for
from minipaged.sampling_params import SamplingParams
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from .shared.models import add_model_arguments, load, plain_token_ids
from .shared.report import add_output_argument, head, print_machine, print_table
from .shared.sizes import BLOCK_SIZE, BLOCK_SIZES

if TYPE_CHECKING:
    from minipaged.engine.engine import LLMEngine
    from minipaged.models.loading import LoadedModel

SERVED_BLOCK_SIZES = (4, 16, 64)
PROMPT, OUTPUT = (24, 40), 48  # tokens of the requests that don't fit together: (least, most), and asked for
POOL = 256  # slots for them: their prompts fit, and what they grow to does not
WAYS = ("swap", "recompute")
PLACES = {
    "cpu": "On a CPU both pools lie in the same memory: a swap is a copy, and no bus is crossed.",
    "cuda": "A swap crosses the bus between the GPU and pinned host memory.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the sequence, and the requests."""
    add_model_arguments(parser)
    parser.add_argument("--num-tokens", type=int, default=256, metavar="N", help="of the sequence to move")
    parser.add_argument("--num-requests", type=int, default=8, metavar="N", help="in too small a pool")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of which medians are shown")
    add_output_argument(parser, "preemption")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both parts, print them, write them to `args.output` as JSON, and return them."""
    output = output_file(args.output)
    console = DataConsole()
    loaded = load(args)
    names = ("model", "dtype", "num_tokens", "num_requests", "rounds")
    settings = {name: getattr(args, name) for name in names} | {"device": loaded.model.device.type}
    results = head(settings)
    with console.status("one sequence ..."):
        results["sequence"] = move_or_recompute(loaded, BLOCK_SIZES, args.num_tokens, args.rounds)
    with console.status("too small a pool ..."):
        results["served"] = serve_both_ways(loaded, SERVED_BLOCK_SIZES, args.num_requests, args.rounds)
    print_results(console, results)
    write_results(console, output, results)
    return results


# ---------------------------------------------------------------------- what is measured


class Preempted:
    """One sequence that is computed, in an engine of its own with room for it in both pools."""

    def __init__(self, loaded: LoadedModel, block_size: int, prompt: Sequence[int]) -> None:
        num_blocks = num_blocks_for(len(prompt), block_size)
        self.engine = _engine(loaded, block_size, num_blocks, num_blocks, "swap")
        self.num_copies = 0  # of the last move
        for allocator in (self.engine.blocks.allocator, self.engine.blocks.host_allocator):
            assert allocator is not None
            blocks = allocator.allocate(num_blocks)
            random.Random(0).shuffle(blocks)  # as in a pool that has served for a while
            allocator.free(blocks)
        self.engine.add_request("r", prompt, SamplingParams(max_tokens=1))
        self.engine.empty_inbox()
        self.step = self.engine.scheduler.schedule()
        (self.row,) = self.step.rows

    def recompute(self) -> None:
        """The forward of all tokens, which writes their K and V."""
        self.engine.runner.execute(self.step)

    def swap_out(self) -> None:
        """Copy all blocks to the host pool, after which they are free."""
        self._move("out", self.engine.blocks.swap_out([self.row.sequence]))

    def swap_in(self) -> None:
        """Copy all blocks back."""
        self._move("in", self.engine.blocks.swap_in([self.row.sequence]))

    def _move(self, kind: str, pairs: list[tuple[int, int]]) -> None:
        self.engine.runner.move([Move(kind, *pair, self.row.request) for pair in pairs])
        self.num_copies = len(pairs)


def move_or_recompute(
    loaded: LoadedModel, block_sizes: Sequence[int], num_tokens: int, rounds: int
) -> list[dict[str, Any]]:
    """Seconds to swap a sequence out, in, and to recompute it, by block size: medians of rounds in turn.

    Raises InvalidConfigError where the model can't hold the sequence, or no round is asked for.
    """
    if not 1 <= num_tokens < loaded.max_model_len or rounds < 1:
        raise InvalidConfigError(
            f"num_tokens must be from 1 to {loaded.max_model_len - 1} and rounds at least 1, "
            f"got {num_tokens} and {rounds}"
        )
    prompt = random.Random(0).choices(plain_token_ids(loaded), k=num_tokens)
    cases = [Preempted(loaded, block_size, prompt) for block_size in block_sizes]
    times: list[list[tuple[float, float, float]]] = [[] for _ in cases]  # recompute, out, in
    for _ in range(rounds + 1):
        for case, taken in zip(cases, times, strict=True):
            operations = (case.recompute, case.swap_out, case.swap_in)
            recompute, out, back = (_seconds(operation, loaded) for operation in operations)
            taken.append((recompute, out, back))
    rows = []
    for block_size, case, taken in zip(block_sizes, cases, times, strict=True):
        warm = taken[1:]  # the first round compiles, and touches the memory
        case.engine.forget(["r"])
        row: dict[str, Any] = {"block_size": block_size, "num_copies": case.num_copies}
        row |= {"bytes_per_copy": block_size * case.engine.runner.shape.bytes_per_token}
        row |= {"out": median(out for _, out, _ in warm), "in": median(back for *_, back in warm)}
        row |= {"both": median(out + back for _, out, back in warm)}
        rows.append(row | {"recompute": median(recompute for recompute, *_ in warm)})
    return rows


def serve_both_ways(
    loaded: LoadedModel, block_sizes: Sequence[int], num_requests: int, rounds: int
) -> list[dict[str, Any]]:
    """Serve the same requests in too small a pool, preempting either way: medians of rounds in turn.

    `same_tokens` counts the requests whose tokens are those of a run with room for all. Raises
    InvalidConfigError where the model can't hold the longest request, or there are too few to fill the pool.
    """
    longest = PROMPT[1] + OUTPUT
    if longest > loaded.max_model_len or num_requests * sum((PROMPT[0], OUTPUT)) <= POOL:
        raise InvalidConfigError(
            f"num_requests={num_requests} must be more than {POOL // (PROMPT[0] + OUTPUT)}, which may fit, "
            f"and the model's own limit of {loaded.max_model_len} tokens at least {longest}"
        )
    rng, tokens = random.Random(1), plain_token_ids(loaded)
    prompts = [rng.choices(tokens, k=rng.randint(*PROMPT)) for _ in range(num_requests)]
    room = num_requests * num_blocks_for(longest, BLOCK_SIZE)
    with_room = _serve(_engine(loaded, BLOCK_SIZE, room, 0, "recompute"), prompts)
    rows = []
    for block_size in block_sizes:
        num_host_blocks = num_requests * num_blocks_for(longest, block_size)
        engines = [_engine(loaded, block_size, POOL // block_size, num_host_blocks, way) for way in WAYS]
        seconds: list[list[float]] = [[] for _ in WAYS]
        outputs: list[list[list[int]]] = [[] for _ in WAYS]
        for _ in range(rounds + 1):  # the first is not counted
            for i, engine in enumerate(engines):
                start = time.perf_counter()
                outputs[i] = _serve(engine, prompts)
                seconds[i].append(time.perf_counter() - start)
        for i, engine in enumerate(engines):
            stats = engine.stats()
            row = {"block_size": block_size, "way": WAYS[i], "seconds": median(seconds[i][1:])}
            row |= {"num_preemptions": stats.num_preemptions // (rounds + 1)}
            row |= {"num_swapped_out_blocks": stats.num_swapped_out_blocks // (rounds + 1)}
            rows.append(row | {"same_tokens": sum(map(list.__eq__, outputs[i], with_room))})
    return rows


def _serve(engine: LLMEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy, all at once: the tokens of each."""
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, params)
    done: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    return [done[str(number)] for number in range(len(prompts))]


def _engine(
    loaded: LoadedModel, block_size: int, num_blocks: int, num_host_blocks: int, way: str
) -> LLMEngine:
    """Return an engine with pools of these sizes. One step computes all that fits its pool."""
    from minipaged.engine.engine import LLMEngine  # not before a bench runs: its help must not wait for torch
    from minipaged.engine.kv_cache import KVShape

    shape = KVShape(loaded.num_layers, loaded.num_kv_heads, loaded.head_dim, loaded.model.dtype)
    config = EngineConfig(
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=max(2048, num_blocks * block_size),
        enable_prefix_caching=False,
        preemption_mode=way,
        swap_space=num_host_blocks * block_size * shape.bytes_per_token if way == "swap" else 0,
    )
    return LLMEngine(loaded, config)


def _seconds(operation: Callable[[], None], loaded: LoadedModel) -> float:
    """Return how long an operation takes, until a GPU has done it too."""
    import torch

    start = time.perf_counter()
    operation()
    if loaded.model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


# ---------------------------------------------------------------------- what is printed


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """Both parts, for people."""
    settings = results["settings"]
    print_machine(console, results)
    _print_sequence(console, results)
    console.print(verdict(results["sequence"]))
    console.print(PLACES[settings["device"]], style="dim")
    _print_served(console, results)
    console.print(
        f"same counts the requests, of {settings['num_requests']}, whose tokens are those of a run with "
        "room for all. Prefix caching is off, or recomputation would find a part of its blocks.",
        style="dim",
    )


def verdict(rows: list[dict[str, Any]]) -> str:
    """Which of the two is cheaper at which block sizes, in a line."""
    cheaper = {
        "swapping out and in": [row["block_size"] for row in rows if row["both"] < row["recompute"]],
        "recomputation": [row["block_size"] for row in rows if row["both"] >= row["recompute"]],
    }
    sentences = [
        f"{how} at block size {', '.join(map(str, sizes))}" for how, sizes in cheaper.items() if sizes
    ]
    return f"Cheaper on this machine: {'; '.join(sentences)}."


def _print_sequence(console: DataConsole, results: dict[str, Any]) -> None:
    settings = results["settings"]
    names = ("block size", "copies", "KiB each", "out", "in", "both", "recompute", "× both")
    rows = [
        [
            str(row["block_size"]),
            str(row["num_copies"]),
            f"{row['bytes_per_copy'] / 1024:,.0f}",
            *(f"{1e3 * row[name]:.2f}" for name in ("out", "in", "both", "recompute")),
            f"{row['recompute'] / row['both']:.1f}",
        ]
        for row in results["sequence"]
    ]
    title = f"Milliseconds for {settings['num_tokens']} tokens of {settings['model']}"
    print_table(console, title, names, rows)


def _print_served(console: DataConsole, results: dict[str, Any]) -> None:
    number = results["settings"]["num_requests"]
    title = f"{number} requests of {PROMPT[0]} to {PROMPT[1]} tokens that want {OUTPUT} more, {POOL} slots"
    names = ("block size", "preempted by", "seconds", "preemptions", "blocks swapped out", "same")
    counts = ("num_preemptions", "num_swapped_out_blocks", "same_tokens")
    rows = [
        [str(row["block_size"]), row["way"], f"{row['seconds']:.2f}", *(str(row[name]) for name in counts)]
        for row in results["served"]
    ]
    print_table(console, title, names, rows)
