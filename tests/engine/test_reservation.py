"""Reserving the maximum is paging with block_size = max_model_len: shown on the engine itself.

The same requests run three times: on an engine whose blocks are as long as a request may become, on
`reference.contiguous` with the policy of the maximum, and on an engine with small blocks and as many slots.
The first two agree in every slot of every step; the third shows what paging gains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minipaged import LLM, SamplingParams
from minipaged.reference.contiguous import ContiguousCache, SlotUsage, maximum
from minipaged.reference.slot_allocator import BuddyAllocator, OutOfSlotsError

MAX_MODEL_LEN = 64
NUM_PIECES = 3
NUM_BLOCKS = NUM_PIECES + 1  # an admission leaves one block to those already running: the watermark
SMALL = 4
OUTPUT_LENGTHS = (24, 3, 17, 1, 9, 24, 5, 12, 2, 20, 7, 24)


class Step(NamedTuple):
    """What one step held, by request: its blocks, and its tokens with a slot."""

    num_blocks: dict[int, int]
    num_tokens: dict[int, int]
    slots_in_use: int


class Run(NamedTuple):
    """An engine that has served, what it generated, and its steps."""

    llm: LLM
    outputs: list[list[int]]
    steps: list[Step]


@pytest.fixture
def serve(tiny_model: Callable[[str], Path]) -> Callable[..., Run]:
    """Run prompts with output lengths of their own on the tiny Llama, and watch every step."""

    def serve(
        prompts: list[list[int]], lengths: tuple[int, ...], ignore_eos: bool = False, **settings: Any
    ) -> Run:
        llm = LLM(
            str(tiny_model("llama")), dtype="float64", device="cpu", enable_prefix_caching=False, **settings
        )
        steps: list[Step] = []

        def watch(_: object) -> None:
            tables = {int(r.request_id[4:]): r.sequences[0].table for r in llm.engine.scheduler.running}
            in_use = llm.engine.blocks.allocator.num_in_use * llm.engine.blocks.block_size
            blocks = {number: len(table.blocks) for number, table in tables.items()}
            steps.append(Step(blocks, {number: table.num_tokens for number, table in tables.items()}, in_use))

        llm.engine.observers.append(watch)
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=ignore_eos) for n in lengths]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return Run(llm, [output.outputs[0].token_ids for output in outputs], steps)

    return serve


def serve_contiguously(
    prompts: list[list[int]], outputs: list[list[int]], num_pieces: int, max_model_len: int
) -> tuple[list[dict[int, int]], list[SlotUsage]]:
    """Serve first come, first served from pieces of the maximum: tokens by request, and usage, step by step.

    The last token generated ends its request: nothing reads its K and V, and they get no slot.
    """
    cache = ContiguousCache(BuddyAllocator(num_pieces * max_model_len), maximum)
    final = [len(prompt) + len(output) - 1 for prompt, output in zip(prompts, outputs, strict=True)]
    waiting = deque(range(len(prompts)))
    running: dict[int, int] = {}
    steps, usages = [], []
    while waiting or running:
        for number in running:
            cache.append(number)
            running[number] += 1
        asked = 0
        while waiting and not asked:
            number = waiting[0]
            try:
                cache.admit(number, len(prompts[number]), final[number], max_model_len)
            except OutOfSlotsError as error:
                asked = error.requested
            else:
                running[number] = len(prompts[waiting.popleft()])
        steps.append(dict(running))
        usages.append(cache.usage(asked))
        for number in [number for number, num_tokens in running.items() if num_tokens == final[number]]:
            cache.free(number)
            del running[number]
    return steps, usages


@pytest.fixture
def reserved(serve: Callable[..., Run], prompts: list[list[int]]) -> Run:
    """The engine that reserves the maximum."""
    return serve(
        prompts, OUTPUT_LENGTHS, block_size=MAX_MODEL_LEN, num_blocks=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN
    )


@pytest.fixture
def paged(serve: Callable[..., Run], prompts: list[list[int]]) -> Run:
    """The engine that pages as many slots."""
    num_blocks = NUM_BLOCKS * MAX_MODEL_LEN // SMALL
    return serve(
        prompts, OUTPUT_LENGTHS, block_size=SMALL, num_blocks=num_blocks, max_model_len=MAX_MODEL_LEN
    )


def test_tokens_do_not_depend_on_the_size_of_blocks(
    reserved: Run, paged: Run, prompts: list[list[int]], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    whole = hf_greedy("llama", prompts, max(OUTPUT_LENGTHS))
    expected = [tokens[:length] for tokens, length in zip(whole, OUTPUT_LENGTHS, strict=True)]
    assert reserved.outputs == expected
    assert paged.outputs == expected


def test_a_block_as_long_as_a_request_may_become_is_the_piece_of_a_request(
    reserved: Run, prompts: list[list[int]]
) -> None:
    for step in reserved.steps:
        assert set(step.num_blocks.values()) == {1}
        assert step.slots_in_use == len(step.num_blocks) * MAX_MODEL_LEN
    assert max(len(step.num_blocks) for step in reserved.steps) == NUM_PIECES
    # As long as anyone waits, all pieces are taken: nothing but the number of pieces holds a request up.
    started: set[int] = set()
    for step in reserved.steps:
        started |= set(step.num_tokens)
        assert len(step.num_tokens) == NUM_PIECES or len(started) == len(prompts)
    assert reserved.llm.stats().num_preemptions == 0


def test_it_reserves_and_wastes_what_contiguous_pieces_do(reserved: Run, prompts: list[list[int]]) -> None:
    steps, usages = serve_contiguously(prompts, reserved.outputs, NUM_PIECES, MAX_MODEL_LEN)
    assert [step.num_tokens for step in reserved.steps] == steps
    num_slots = NUM_PIECES * MAX_MODEL_LEN
    for step, usage in zip(reserved.steps, usages, strict=True):
        assert step.slots_in_use == num_slots - usage.external - usage.free
        assert step.slots_in_use - sum(step.num_tokens.values()) == usage.reserved + usage.internal
    wasted = sum(usage.reserved + usage.internal for usage in usages)
    taken = sum(usage.tokens + usage.reserved + usage.internal for usage in usages)
    stats = reserved.llm.stats()
    assert stats.waste == wasted / taken
    assert stats.waste == stats.waste_if_reserved


def test_paging_wastes_less_than_a_block_a_sequence_and_runs_more_at_once(reserved: Run, paged: Run) -> None:
    assert reserved.llm.engine.blocks.num_blocks * MAX_MODEL_LEN == paged.llm.engine.blocks.num_blocks * SMALL
    for step in paged.steps:
        for number, num_blocks in step.num_blocks.items():
            assert 0 <= num_blocks * SMALL - step.num_tokens[number] < SMALL
        assert step.slots_in_use - sum(step.num_tokens.values()) < SMALL * len(step.num_blocks)
    assert max(len(step.num_blocks) for step in paged.steps) > 2 * NUM_PIECES
    assert len(paged.steps) < len(reserved.steps) / 2
    assert paged.llm.stats().waste < reserved.llm.stats().waste / 4


def test_waste_worked_out_by_hand(serve: Callable[..., Run]) -> None:
    """Prompts of 5 and 3 tokens, 4 and 2 more, at most 16: the last token of each gets no slot.

    A holds 5, 6, 7, 8 tokens in four steps, B 3, 4 in two; so 33 of (2 + 2 + 1 + 1) * 16 = 96 slots are
    filled and 63 wasted. Reserved: A 3, 2, 1, 0 and B 1, 0. Internal: A 16 - 8, B 16 - 4 in each step.
    """
    prompts = [[5, 6, 7, 8, 9], [10, 11, 12]]
    run = serve(prompts, (4, 2), ignore_eos=True, block_size=16, num_blocks=3, max_model_len=16)
    steps, usages = serve_contiguously(prompts, run.outputs, 2, 16)
    assert [step.num_tokens for step in run.steps] == steps == [{0: 5, 1: 3}, {0: 6, 1: 4}, {0: 7}, {0: 8}]
    assert usages == [
        SlotUsage(tokens=8, reserved=4, internal=20, external=0, free=0),
        SlotUsage(tokens=10, reserved=2, internal=20, external=0, free=0),
        SlotUsage(tokens=7, reserved=1, internal=8, external=0, free=16),
        SlotUsage(tokens=8, reserved=0, internal=8, external=0, free=16),
    ]
    assert run.llm.stats().waste == 63 / 96

    small = serve(prompts, (4, 2), ignore_eos=True, block_size=4, num_blocks=12, max_model_len=16)
    # Blocks of 4: A 2, 2, 2, 2 and B 1, 1. So 33 of 40 slots are filled.
    assert small.outputs == run.outputs
    assert small.llm.stats().waste == 7 / 40
