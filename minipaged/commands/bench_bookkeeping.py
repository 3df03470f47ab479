"""How `minipaged bench-scheduler` measures: the engine's own bookkeeping, with nothing to compute beside it.

Steps are the engine's, with a model and a sampler that answer at once. Pools are full, so that taking a block
means evicting one. Beside seconds, Python's own calls are counted: work that no busy machine disturbs.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from ..config import EngineConfig
from ..engine import decoding
from ..engine.block_manager import BlockManager
from ..engine.detokenizer import IncrementalDetokenizer
from ..engine.engine import LLMEngine
from ..engine.request import Sequence
from ..engine.sampler import SampledToken
from ..models.loading import LoadedModel
from ..sampling_params import SamplingParams
from .bench_meters import timed_parts

BLOCK_SIZE = 16  # so many steps are a round: each sequence takes one block in it
RESERVE = 8 * BLOCK_SIZE  # tokens that a sequence may grow by until all is measured
LENGTH = 256  # tokens of the sequence that lives in pools of several sizes
ROUNDS, LIVES = 5, 200
PARTS = ("schedule", "usage", "batch", "tokens", "rest")


class StandIn(torch.nn.Module):
    """A model without weights whose logits are all zero."""

    device = torch.device("cpu")
    dtype = torch.float32

    def forward(self, logits_to_keep: torch.Tensor, **_: Any) -> SimpleNamespace:
        """Logits [1, rows, 1] for the rows that sample."""
        return SimpleNamespace(logits=torch.zeros(1, len(logits_to_keep), 1))


def make_engine(loaded: LoadedModel, num_sequences: int, num_context: int) -> LLMEngine:
    """An engine that computes so many prompts of `num_context` tokens in one step, and never preempts."""
    config = EngineConfig(
        block_size=BLOCK_SIZE,
        num_blocks=num_sequences * -(-(num_context + RESERVE) // BLOCK_SIZE),
        max_num_seqs=num_sequences,
        max_num_batched_tokens=num_sequences * num_context,
    )
    return LLMEngine(loaded, config)


def stand_in_steps(num_sequences: int, num_context: int) -> dict[str, Any]:
    """`decode` without a model to wait for, and the Python calls that a sequence costs in a step."""
    loaded = LoadedModel("stand-in", StandIn(), None, None, frozenset(), 1 << 20, 50_000, 50_000, 1, 1, 1, 1)  # type: ignore[arg-type]
    engine = make_engine(loaded, num_sequences, num_context)
    sample = decoding.sample
    decoding.sample = lambda logits, rows: [SampledToken(0) for _ in rows]
    try:
        return decode(engine, num_sequences, num_context, ROUNDS, with_calls=True)
    finally:
        decoding.sample = sample


def decode(
    engine: LLMEngine, num_sequences: int, num_context: int, rounds: int, with_calls: bool = False
) -> dict[str, Any]:
    """Seconds a step in decode, of the cheapest of a few rounds; the bookkeeping is split into PARTS."""
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
