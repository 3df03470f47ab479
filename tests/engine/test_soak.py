"""A long random life of scheduler, block manager and caches, with a fake model that sees every K and V.

The fake model writes into each slot a fingerprint of all tokens up to that one, and before a token is
computed it looks whether every slot that attention would read holds the right one: sharing, copies, swaps and
prefix hits may put blocks anywhere, but never the wrong ones. `make soak` runs 20,000 requests.
"""

from __future__ import annotations

import os
import random
import time
from functools import partial
from typing import Any

import pytest

from minipaged.engine.beam_scores import BeamSearch
from minipaged.engine.beams import follow
from minipaged.engine.block_manager import BlockManager
from minipaged.engine.decoding import fan_out
from minipaged.engine.detokenizer import IncrementalDetokenizer
from minipaged.engine.policies import FirstComeFirstServed, Policy
from minipaged.engine.request import Request, Sequence
from minipaged.engine.schedule import Schedule
from minipaged.engine.scheduler import Scheduler
from minipaged.sampling_params import BeamSearchParams, SamplingParams

NUM_REQUESTS = int(os.environ.get("MINIPAGED_SOAK_REQUESTS", "250"))  # a setting of the pool
MAX_LENGTH = 60


class FakeModel:
    """Slots of the pool and of the host pool, each with the fingerprint that was written to it."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: dict[tuple[str, int], list[Any]] = {}
        self.num_tokens = 0

    def run(self, step: Schedule) -> None:
        ways = {"copy": ("device", "device"), "out": ("device", "host"), "in": ("host", "device")}
        for move in step.moves:
            here, there = ways[move.kind]
            # A request may give way after it was given a block in this step: nothing is in that block yet.
            unwritten = [None] * self.block_size
            self.blocks[there, move.destination] = list(self.blocks.get((here, move.source), unwritten))
        for row in step.rows:
            prints = fingerprints(row.request, row.sequence)
            for position in range(row.start, row.stop):
                index, offset = divmod(position, self.block_size)
                empty = [None] * self.block_size
                block = self.blocks.setdefault(("device", row.sequence.table.blocks[index]), empty)
                block[offset] = prints[position]
            self.num_tokens += row.stop - row.start
        for row in step.rows:  # all K and V of a step are written before any is read
            prints = fingerprints(row.request, row.sequence)
            for index, block in enumerate(row.sequence.table.blocks):
                first = index * self.block_size
                wanted = prints[first : max(first, min(first + self.block_size, row.stop))]
                assert self.blocks.get(("device", block), [])[: len(wanted)] == wanted


def fingerprints(request: Request, sequence: Sequence) -> list[int]:
    """For each token, a hash of it and all before it, and of the salt."""
    prints, last = [], hash(request.params.cache_salt)
    for token in sequence.token_ids:
        last = hash((last, token))
        prints.append(last)
    return prints


class Chance(Policy):
    """Any request may come next, and any may give way."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def order(self, requests: list[Request]) -> list[Request]:
        return self.chance.sample(requests, len(requests))

    def victim(self, running: list[Request]) -> Request:
        return self.chance.choice(running)


class Life:
    """Requests that come, run, are aborted or end, until none is left."""

    def __init__(self, seed: int, *, caching: bool, num_host_blocks: int, block_size: int) -> None:
        self.random = random.Random(seed)
        self.blocks = BlockManager(
            self.random.randint(MAX_LENGTH // block_size + 1, 120 // block_size),
            block_size,
            num_host_blocks=num_host_blocks,
            enable_prefix_caching=caching,
        )
        budget = self.random.choice([8, 20, 500])
        policy = Chance(self.random) if seed >= 5 else FirstComeFirstServed()
        self.scheduler = Scheduler(self.blocks, max_num_seqs=8, max_num_batched_tokens=budget, policy=policy)
        self.model = FakeModel(block_size)
        self.num_arrived = 0
        self.num_steps = 0
        self.events = {"preempted": 0, "out": 0, "in": 0, "copy": 0, "aborted": 0, "outgrown": 0}

    def arrive(self) -> None:
        choose = self.random
        prompt = [0] * choose.randint(0, 20) + [choose.randint(0, 2) for _ in range(choose.randint(1, 10))]
        max_tokens = choose.randint(1, MAX_LENGTH - len(prompt) - 1)
        width = choose.choice([1, 1, 2, 3, 4])
        with_beams = width > 1 and choose.random() < 0.5
        params = SamplingParams(
            n=1 if with_beams else width, max_tokens=max_tokens, cache_salt=choose.choice([None, "x"])
        )
        search = (
            BeamSearch(BeamSearchParams(beam_width=width), frozenset(), max_tokens) if with_beams else None
        )
        token_ids = list(prompt)
        new_detokenizer = partial(IncrementalDetokenizer, None, prompt, ())
        chain = self.blocks.new_chain(token_ids, params.cache_salt)
        table = self.blocks.new_table()
        first = Sequence(token_ids, chain, table, new_detokenizer(), num_prompt_tokens=len(prompt), seed=0)
        name = str(self.num_arrived)
        self.num_arrived += 1
        self.scheduler.waiting.append(
            Request(name, None, prompt, params, max_tokens, [first], new_detokenizer, search)
        )

    def step(self) -> None:
        step = self.scheduler.schedule()
        self.check()
        self.num_steps += 1
        self.events["preempted"] += len(step.preempted)
        self.events["outgrown"] += len(step.outgrown)
        for move in step.moves:
            self.events[move.kind] += 1
        for request in step.outgrown:
            self.scheduler.finish(request)
        assert step.rows or step.outgrown or not any(self.scheduler.requests()), "nothing moves any more"
        self.model.run(step)
        for row in step.rows:
            self.blocks.publish(row.sequence, row.stop)
        ready = dict.fromkeys((row.request, row.sequence) for row in step.rows if row.is_last_chunk)
        for request in dict.fromkeys(request for request, _ in ready):
            self.advance(request, [sequence for owner, sequence in ready if owner is request])
        self.check()

    def advance(self, request: Request, ready: list[Sequence]) -> None:
        """Tokens for the sequences that are up to date; some end."""
        if request.beam_search is not None:
            assert ready and set(ready) == set(request.sequences), "beams must be compared all at once"
            follow(
                request,
                [self.random.randrange(len(ready)) for _ in range(request.num_sequences)],
                self.blocks,
            )
            ready = request.sequences
        elif len(request.sequences) < request.params.n:
            ready = fan_out(request, self.blocks)
        ends = self.random.random() < 0.03
        for sequence in ready:
            sequence.token_ids.append(self.random.randint(0, 2))
            alone = request.beam_search is None and self.random.random() < 0.03
            if ends or alone or sequence.num_output_tokens >= request.max_tokens:
                sequence.finish_reason = "stop"
                self.blocks.free(sequence)
        if not request.unfinished:
            self.scheduler.finish(request)

    def abort(self) -> None:
        requests = list(self.scheduler.requests())
        if requests:
            self.scheduler.finish(self.random.choice(requests))
            self.events["aborted"] += 1
            self.check()

    def check(self) -> None:
        self.blocks.check([each for request in self.scheduler.requests() for each in request.sequences])

    def run(self, num_requests: int) -> None:
        while self.num_arrived < num_requests or any(self.scheduler.requests()):
            if self.num_arrived < num_requests and self.random.random() < 0.25:
                self.arrive()
            if self.random.random() < 0.01:
                self.abort()
            self.step()
        assert self.num_steps < 200 * num_requests
        allocator, host = self.blocks.allocator, self.blocks.host_allocator
        assert allocator.num_free + allocator.num_cached == allocator.num_blocks
        assert host is None or host.num_free == host.num_blocks


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("num_host_blocks", [0, 5, 60])
@pytest.mark.parametrize("caching", [True, False])
def test_nothing_is_lost_and_nothing_is_mixed_up(
    caching: bool, num_host_blocks: int, block_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    start = time.perf_counter()
    events: dict[str, int] = {}
    num_steps = 0
    for seed in range(7):
        life = Life(seed, caching=caching, num_host_blocks=num_host_blocks, block_size=block_size)
        life.run(-(-NUM_REQUESTS // 5))
        num_steps += life.num_steps
        events = {name: events.get(name, 0) + count for name, count in life.events.items()}
    assert min(events[name] for name in ("preempted", "aborted")) > 0
    assert block_size == 1 or events["copy"] > 0
    assert num_host_blocks == 0 or (events["out"] > 0 and events["in"] > 0)
    with capsys.disabled():
        if NUM_REQUESTS > 1000:
            print(f"\n{num_steps / (time.perf_counter() - start):.0f} steps a second: {events}")
