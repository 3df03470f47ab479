"""`minipaged bench prefix`: the time that a prefix cache saves, and the time that it costs.

Requests with one long beginning in common are served one by one, with the cache and without it. The bench
takes their times to the first token. Then it times hashing and look-up alone, as the prompt grows and as the
pool grows. Page: docs/concepts/prefix_cache.md.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from minipaged.config import EngineConfig
from minipaged.errors import InvalidConfigError
from minipaged.outputs import RequestOutput
from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.block_table import num_blocks_for
from minipaged.reference.prefix_cache import PrefixCache
from minipaged.reference.prefix_chain import PrefixChain
from minipaged.sampling_params import SamplingParams
from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import output_file, write_results

from .shared.models import add_model_arguments, load, plain_token_ids
from .shared.report import add_output_argument, head, print_machine, print_table
from .shared.sizes import BLOCK_SIZE

if TYPE_CHECKING:
    from minipaged.engine.engine import LLMEngine
    from minipaged.models.loading import LoadedModel

PROMPT_LENGTHS = (1_000, 4_000, 16_000)  # tokens, for the look-up
POOL_SIZES = (1_000, 10_000, 100_000)  # cached blocks, for the look-up
LOOKUP_LENGTH = 1_000  # tokens of the prompt that is looked up as the pool grows
ROUNDS = 5


@dataclass(frozen=True)
class Served:
    """One request: its time to first token, its cache hits, and its output."""

    seconds: float
    num_cached_tokens: int
    token_ids: list[int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The model, and requests that begin alike."""
    add_model_arguments(parser)
    parser.add_argument("--num-requests", type=int, default=16, metavar="N")
    parser.add_argument("--common-tokens", type=int, default=400, metavar="N", help="of every prompt")
    parser.add_argument("--own-tokens", type=int, default=16, metavar="N", help="of each prompt")
    add_output_argument(parser, "prefix")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run both parts, print them, write them to `args.output` as JSON, and return them."""
    output = output_file(args.output)
    console = DataConsole()
    names = ("model", "dtype", "num_requests", "common_tokens", "own_tokens")
    results = head({name: getattr(args, name) for name in names})
    results["first_token"] = compare(load(args), args.num_requests, args.common_tokens, args.own_tokens)
    results["lookup"] = lookup_costs()
    print_results(console, results)
    write_results(console, output, results)
    return results


def compare(loaded: LoadedModel, num_requests: int, num_common: int, num_own: int) -> dict[str, Any]:
    """Times to first token with the cache and without, request by request in turn.

    The first request has no hit in either engine, and is left out of the medians. Raises InvalidConfigError
    if there would be none to compare.
    """
    from minipaged.engine.engine import LLMEngine  # not before a bench runs: its help must not wait for torch

    if min(num_requests - 1, num_common, num_own) < 1:
        raise InvalidConfigError("two requests are the least, and one token of each kind")
    rng = random.Random(0)
    tokens = plain_token_ids(loaded)
    common = rng.choices(tokens, k=num_common)
    prompts = [common + rng.choices(tokens, k=num_own) for _ in range(num_requests)]
    num_blocks = 2 * num_requests * num_blocks_for(num_common + num_own + 8, BLOCK_SIZE)
    config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks)
    with_cache = LLMEngine(loaded, config)
    without = LLMEngine(loaded, replace(config, enable_prefix_caching=False))
    for engine in (with_cache, without):  # compiled, and warm
        serve(engine, rng.choices(tokens, k=num_common + num_own))
    pairs = [(serve(with_cache, prompt), serve(without, prompt)) for prompt in prompts]
    hits, misses = zip(*pairs[1:], strict=True)
    on, off = (median(served.seconds for served in side) for side in (hits, misses))
    return {
        "seconds_with_cache": on,
        "seconds_without": off,
        "ratio": off / on,
        "cached_tokens": [served.num_cached_tokens for served, _ in pairs],
        "prompt_tokens": num_common + num_own,
        "same_tokens": sum(one.token_ids == other.token_ids for one, other in pairs),
        "num_requests": num_requests,
    }


def serve(engine: LLMEngine, prompt: list[int]) -> Served:
    """Greedy, a few tokens, alone."""
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    start = time.perf_counter()
    engine.add_request("r", prompt, params)
    outputs: list[RequestOutput] = []
    while not outputs:
        outputs = engine.step()
    seconds = time.perf_counter() - start
    while not outputs[-1].finished:
        outputs += engine.step()
    last = outputs[-1]
    return Served(seconds, last.num_cached_tokens, last.outputs[0].token_ids)


def lookup_costs() -> dict[str, Any]:
    """Seconds a token of hashing a new prompt and of looking it up, found whole."""
    by_length = [(n, *_lookup_seconds(n, max(PROMPT_LENGTHS) // BLOCK_SIZE)) for n in PROMPT_LENGTHS]
    by_pool = [(size, *_lookup_seconds(LOOKUP_LENGTH, size)) for size in POOL_SIZES]
    names = ("size", "hash_seconds_per_token", "lookup_seconds_per_token")
    return {
        "by_prompt_tokens": [dict(zip(names, row, strict=True)) for row in by_length],
        "by_cached_blocks": [dict(zip(names, row, strict=True)) for row in by_pool],
    }


def _lookup_seconds(num_tokens: int, num_cached: int) -> tuple[float, float]:
    """A cache of `num_cached` blocks, the prompt's among them: the best of a few rounds, per token."""
    rng = random.Random(1)
    cache = PrefixCache(BlockAllocator(num_cached))
    prompt = rng.choices(range(50_000), k=num_tokens)
    filler = rng.choices(range(50_000), k=(num_cached - num_tokens // BLOCK_SIZE) * BLOCK_SIZE)
    for token_ids in (prompt, filler):
        chain = PrefixChain(token_ids, BLOCK_SIZE)
        blocks = cache.allocate(len(token_ids) // BLOCK_SIZE)
        cache.publish(chain, blocks, 0, len(blocks))
        cache.free(blocks)
    hashing, looking = [], []
    for _ in range(ROUNDS):
        chain = PrefixChain(list(prompt), BLOCK_SIZE)
        start = time.perf_counter()
        for index in range(num_tokens // BLOCK_SIZE):
            chain[index]
        middle = time.perf_counter()
        cache.lookup(chain)
        hashing.append(middle - start)
        looking.append(time.perf_counter() - middle)
    return min(hashing) / num_tokens, min(looking) / num_tokens


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """Both parts, for people."""
    settings, first = results["settings"], results["first_token"]
    print_machine(console, results)
    console.print(
        f"{settings['model']}, {settings['dtype']}: {first['num_requests']} requests of "
        f"{first['prompt_tokens']} tokens, the first {settings['common_tokens']} in common"
    )
    rows = [
        ["on", f"{1e3 * first['seconds_with_cache']:.0f}", str(first["cached_tokens"][-1])],
        ["off", f"{1e3 * first['seconds_without']:.0f}", "0"],
    ]
    title = "Time to first token, median of all but the first request"
    print_table(console, title, ("prefix cache", "ms", "tokens found"), rows)
    console.print(
        f"{first['ratio']:.1f} times sooner; {first['same_tokens']} of {first['num_requests']} requests have "
        "the same tokens with and without"
    )
    for key, title in (
        ("by_prompt_tokens", "as the prompt grows (tokens)"),
        ("by_cached_blocks", f"as the pool grows (cached blocks; a prompt of {LOOKUP_LENGTH} tokens)"),
    ):
        rows = [_lookup_row(row) for row in results["lookup"][key]]
        print_table(console, f"Cost of a token, {title}", ("size", "hashing, ns", "look-up, ns"), rows)


def _lookup_row(row: dict[str, Any]) -> list[str]:
    costs = (row["hash_seconds_per_token"], row["lookup_seconds_per_token"])
    return [f"{row['size']:,}", *(f"{1e9 * cost:.0f}" for cost in costs)]
