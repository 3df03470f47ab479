"""`minipaged bench bookkeeping`: what the engine's bookkeeping costs, as sequences and blocks grow in number.

Steps without a model, by the parts of the bookkeeping; the life of one sequence in pools of growing size; and
what share of a real model's step all of it is. Steps are the engine's; what stands in for model and sampler
answers at once. Pools are full, so that taking a block means evicting one. Beside seconds, Python's own calls
are counted: work that no busy machine disturbs. Page: docs/concepts/continuous_batching.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from minipaged.config import EngineConfig
from minipaged.engine.block_manager import BlockManager
from minipaged.engine.detokenizer import IncrementalDetokenizer
from minipaged.engine.request import Sequence
from minipaged.errors import InvalidConfigError
from minipaged.reference.block_table import num_blocks_for
from minipaged.sampling_params import SamplingParams
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from .shared.models import add_model_arguments, load
from .shared.report import add_output_argument, head, print_machine, print_table
from .shared.sizes import BLOCK_SIZE

if TYPE_CHECKING:
    import torch

    from minipaged.engine.engine import LLMEngine
    from minipaged.models.loading import LoadedModel

NUM_SEQUENCES = (8, 64, 256, 1_024)  # running at once
POOL_SIZES = (1_000, 10_000, 100_000, 1_000_000)  # blocks
REAL_SEQUENCES, REAL_ROUNDS = 64, 2
RESERVE = 8 * BLOCK_SIZE  # tokens that a sequence may grow by: a round is BLOCK_SIZE steps, so one block each
LENGTH = 256  # tokens of the sequence that lives in pools of several sizes
ROUNDS, LIVES = 5, 200
PARTS = ("schedule", "usage", "batch", "tokens", "rest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and the prompts."""
    add_model_arguments(parser)
    parser.add_argument("--context-tokens", type=int, default=128, metavar="N", help="of every prompt")
    add_output_argument(parser, "bookkeeping")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run all three parts, print them, write them to `args.output` as JSON, and return them."""
    output = output_file(args.output)
    loaded = load(args)
    longest = loaded.max_model_len - RESERVE
    if not 1 <= args.context_tokens <= longest:
        raise InvalidConfigError(f"context_tokens must be from 1 to {longest}, got {args.context_tokens}")
    console = DataConsole()
    results = head({name: getattr(args, name) for name in ("model", "dtype", "context_tokens")})
    with console.status("bookkeeping alone ..."):
        results["steps"] = [stand_in_steps(number, args.context_tokens) for number in NUM_SEQUENCES]
        results["pools"] = [pool_costs(num_blocks) for num_blocks in POOL_SIZES]
    with console.status(f"{args.model} ..."):
        engine = make_engine(loaded, REAL_SEQUENCES, args.context_tokens)
        real = decode(engine, REAL_SEQUENCES, args.context_tokens, REAL_ROUNDS)
        results["real_step"] = real | {"share": real["bookkeeping"] / real["step"]}
    print_results(console, results)
    write_results(console, output, results)
    return results


# ---------------------------------------------------------------------- what is measured


def stand_in_model() -> LoadedModel:
    """Return a model without weights whose logits are all zero."""
    import torch  # not before a bench runs: its help must not wait for it

    from minipaged.models.loading import LoadedModel

    class StandIn(torch.nn.Module):
        device = torch.device("cpu")
        dtype = torch.float32

        def forward(self, logits_to_keep: torch.Tensor, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(logits=torch.zeros(1, len(logits_to_keep), 1))  # for the rows that sample

    return LoadedModel("stand-in", StandIn(), None, None, frozenset(), 1 << 20, 50_000, 50_000, 1, 1, 1)  # type: ignore[arg-type]


def make_engine(loaded: LoadedModel, num_sequences: int, num_context: int) -> LLMEngine:
    """Return an engine that computes all prompts of `num_context` tokens in one step, and never preempts."""
    from minipaged.engine.engine import LLMEngine

    config = EngineConfig(
        block_size=BLOCK_SIZE,
        num_blocks=num_sequences * num_blocks_for(num_context + RESERVE, BLOCK_SIZE),
        max_num_seqs=num_sequences,
        max_num_batched_tokens=num_sequences * num_context,
    )
    return LLMEngine(loaded, config)


def stand_in_steps(num_sequences: int, num_context: int) -> dict[str, Any]:
    """`decode` without a model to wait for, and the Python calls that a sequence costs in a step."""
    from minipaged.engine import decoding
    from minipaged.engine.sampler import SampledToken

    engine = make_engine(stand_in_model(), num_sequences, num_context)
    sample = decoding.sample
    decoding.sample = lambda logits, rows: [SampledToken(0) for _ in rows]
    try:
        return decode(engine, num_sequences, num_context, ROUNDS, with_calls=True)
    finally:
        decoding.sample = sample


def decode(
    engine: LLMEngine, num_sequences: int, num_context: int, rounds: int, with_calls: bool = False
) -> dict[str, Any]:
    """Return the seconds per decode step, of the cheapest round; the bookkeeping is split into PARTS."""
    from .shared.meters import timed_parts

    rng = random.Random(0)
    ids = [str(number) for number in range(num_sequences)]
    params = SamplingParams(temperature=0.0, max_tokens=engine.max_model_len, ignore_eos=True)
    for request_id in ids:
        engine.add_request(request_id, rng.choices(range(engine.loaded.vocab_size), k=num_context), params)
    engine.step()  # all prompts
    best: dict[str, Any] = {}
    for _ in range(rounds):
        with timed_parts(engine) as seconds, _timed_bookkeeping(engine) as parts:
            for _ in range(BLOCK_SIZE):
                engine.step()
        total = seconds["step"] - seconds["forward"] - seconds["sampler"]
        parts["tokens"] -= seconds["sampler"]
        parts["rest"] = total - sum(parts.values())
        if not best or total / BLOCK_SIZE < best["bookkeeping"]:
            best = {"bookkeeping": total / BLOCK_SIZE, "step": seconds["step"] / BLOCK_SIZE}
            best["parts"] = {name: parts[name] / BLOCK_SIZE for name in PARTS}
    if with_calls:
        calls = sum(count_calls(engine.step) for _ in range(BLOCK_SIZE))
        best["calls_per_sequence"] = calls / BLOCK_SIZE / num_sequences
    engine.forget(ids)
    return {"num_sequences": num_sequences} | best


@contextmanager
def _timed_bookkeeping(engine: LLMEngine) -> Iterator[dict[str, float]]:
    """Stopwatches around the parts of a step that have a call of their own."""
    owners = (engine.scheduler, engine.usage, engine.runner._builder, engine._decoder)
    methods = ("schedule", "record", "build", "advance")
    seconds = dict.fromkeys(PARTS[:-1], 0.0)

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            seconds[part] += time.perf_counter() - start
            return result

        return run

    with ExitStack() as stack:
        for part, owner, method in zip(PARTS, owners, methods, strict=False):
            setattr(owner, method, timed(part, getattr(owner, method)))
            stack.callback(delattr, owner, method)
        yield seconds


def pool_costs(num_blocks: int) -> dict[str, Any]:
    """Seconds and Python calls of each operation in the life of one sequence, the best of many lives.

    Half of the blocks are in use, and as good as all others cached: to take one means to evict one.
    """
    blocks = BlockManager(num_blocks, BLOCK_SIZE)
    blocks.cache.allocate(num_blocks // 2)
    rest = blocks.cache.allocate(num_blocks - num_blocks // 2)
    blocks.cache.publish(blocks.new_chain([0] * (len(rest) * BLOCK_SIZE), None), rest, 0, len(rest))
    blocks.cache.free(rest)
    seconds: dict[str, list[float]] = {}
    for number in range(1, LIVES + 1):
        for name, operation in _life(blocks, number):
            start = time.perf_counter()
            operation()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
    calls = {name: count_calls(operation) for name, operation in _life(blocks, LIVES + 1)}
    return {
        "num_blocks": num_blocks,
        "seconds": {name: min(all_of) for name, all_of in seconds.items()},
        "calls": calls,
    }


def _life(blocks: BlockManager, number: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What happens to a sequence, by name. No two lives have a token in common."""
    token_ids = [number] * LENGTH
    chain, text = blocks.new_chain(token_ids, None), IncrementalDetokenizer(None, token_ids, ())
    sequence = Sequence(token_ids, chain, blocks.new_table(), text, num_prompt_tokens=LENGTH, seed=0)
    taken: list[int] = []
    yield "allocate", lambda: taken.extend(blocks.cache.allocate(LENGTH // BLOCK_SIZE))
    blocks.cache.publish(blocks.new_chain([-number] * LENGTH, None), taken, 0, len(taken))
    blocks.cache.free(taken)
    yield "admit", lambda: blocks.admit([sequence])
    yield "publish", lambda: blocks.publish(sequence, LENGTH)
    token_ids.append(number)
    yield "append", lambda: blocks.append_slot(sequence)
    yield "free", lambda: blocks.free(sequence)


def count_calls(function: Callable[[], Any]) -> int:
    """How many functions, of Python and of C, a call of `function` calls: work that no clock disturbs."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


# ---------------------------------------------------------------------- what is printed


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """All three parts, for people."""
    settings, real = results["settings"], results["real_step"]
    print_machine(console, results)
    title = f"Microseconds a step but model and sampler, decode from {settings['context_tokens']} tokens on"
    names = ("sequences", *PARTS, "sum", "each", "calls each")
    rows = [_step_row(row) for row in (*results["steps"], real)]
    print_table(console, title, names, rows)
    title = f"Microseconds (calls) for a sequence of {LENGTH} tokens, in a pool that is full"
    names = ("blocks", *results["pools"][0]["calls"])
    rows = [_pool_row(row) for row in results["pools"]]
    print_table(console, title, names, rows)
    console.print(
        f"{settings['model']}, {settings['dtype']}, {real['num_sequences']} sequences: a step takes "
        f"{1e3 * real['step']:.1f} ms, {1e3 * real['bookkeeping']:.2f} ms of it bookkeeping: "
        f"{real['share']:.1%}"
    )


def _step_row(row: dict[str, Any]) -> list[str]:
    number, total, calls = row["num_sequences"], 1e6 * row["bookkeeping"], row.get("calls_per_sequence")
    parts = [f"{1e6 * row['parts'][part]:,.0f}" for part in PARTS]
    last = "real model" if calls is None else f"{calls:.0f}"
    return [f"{number:,}", *parts, f"{total:,.0f}", f"{total / number:.1f}", last]


def _pool_row(row: dict[str, Any]) -> list[str]:
    costs = [f"{1e6 * seconds:.1f} ({row['calls'][name]})" for name, seconds in row["seconds"].items()]
    return [f"{row['num_blocks']:,}", *costs]
