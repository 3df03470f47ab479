"""The scheduler and the block manager, without a model: what runs when, on which blocks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.block_manager import BlockManager
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.request import Request, Sequence
from minipaged.sampling_params import SamplingParams
from minipaged.scheduler import Schedule, Scheduler

no_text = None  # a detokenizer that nobody asks


class World:
    """A scheduler over a pool, and a model that answers every sampled row with token 7."""

    def __init__(self, num_blocks: int, block_size: int, **limits: Any) -> None:
        caching = limits.pop("enable_prefix_caching", False)
        self.blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=caching)
        limits = {"max_num_seqs": 64, "max_num_batched_tokens": 2048} | limits
        self.scheduler = Scheduler(self.blocks, **limits)
        self.finished: list[str] = []
        self.order_of_admission: list[str] = []

    def add(self, name: str, num_tokens: int, max_tokens: int = 4, first: int = 10) -> Request:
        tokens = list(range(first, first + num_tokens))
        chain = self.blocks.new_chain(tokens, None)
        table = self.blocks.new_table()
        sequence = Sequence(tokens, chain, table, no_text, num_prompt_tokens=num_tokens, seed=0)  # type: ignore[arg-type]
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(name, None, list(tokens), params, max_tokens, [sequence], lambda: no_text)  # type: ignore[arg-type,return-value]
        self.scheduler.waiting.append(request)
        return request

    def step(self) -> Schedule:
        was_running = set(map(id, self.scheduler.running))
        step = self.scheduler.schedule()
        self.check()
        self.order_of_admission += [r.request_id for r in self.scheduler.running if id(r) not in was_running]
        for request in step.outgrown:
            self.finished.append(request.request_id)
        for row in step.rows:
            sequence = row.request.sequences[0]
            sampled = row.is_last_chunk
            self.blocks.publish(sequence, row.stop)
            if sampled:
                sequence.token_ids.append(7)
                if sequence.num_output_tokens >= row.request.max_tokens:
                    self.scheduler.finish(row.request)
                    self.finished.append(row.request.request_id)
        self.check()
        return step

    def check(self) -> None:
        scheduler = self.scheduler
        assert not set(map(id, scheduler.running)) & set(map(id, scheduler.waiting))
        self.blocks.check([request.sequences[0] for request in scheduler.requests()])
        for request in scheduler.running:
            assert request.sequences[0].table.num_empty_slots < self.blocks.block_size

    def run(self, limit: int = 500) -> list[Schedule]:
        steps = []
        while self.scheduler.running or self.scheduler.waiting:
            steps.append(self.step())
            assert len(steps) < limit, "no progress"
        assert self.blocks.num_available == self.blocks.num_blocks
        return steps


def names(step: Schedule) -> list[tuple[str, int, int]]:
    return [(row.request.request_id, row.start, row.stop) for row in step.rows]


def test_a_prompt_is_computed_in_chunks_and_sampled_once() -> None:
    world = World(8, 4, max_num_batched_tokens=4)
    world.add("A", 10, max_tokens=1)
    steps = world.run()
    assert [names(step) for step in steps] == [[("A", 0, 4)], [("A", 4, 8)], [("A", 8, 10)]]
    assert [step.rows[0].is_last_chunk for step in steps] == [False, False, True]


def test_decodes_come_first_and_prompts_share_what_is_left_of_the_budget() -> None:
    world = World(20, 4, max_num_batched_tokens=6)
    world.add("A", 3)
    world.step()
    world.add("B", 9)
    world.add("C", 2)
    assert names(world.step()) == [("A", 3, 4), ("B", 0, 5)]
    assert names(world.step()) == [("A", 4, 5), ("C", 0, 1), ("B", 5, 9)]


def test_rows_of_one_token_stand_before_all_others_even_when_just_admitted() -> None:
    world = World(20, 4)
    world.add("A", 5)
    world.add("B", 1)
    assert names(world.step()) == [("B", 0, 1), ("A", 0, 5)]


def test_the_youngest_is_preempted_once_and_comes_back_before_newcomers() -> None:
    world = World(5, 4)
    a, b = world.add("A", 8), world.add("B", 8)
    world.step()
    step = world.step()  # A takes the fifth block, B finds none
    assert [r.request_id for r in step.preempted] == ["B"]
    assert names(step) == [("A", 8, 9)]
    world.add("D", 4)
    steps = world.run()
    assert all(step.rows for step in steps)
    assert (a.num_preemptions, b.num_preemptions) == (0, 1)
    assert world.order_of_admission == ["A", "B", "B", "D"]
    assert world.finished == ["A", "B", "D"]
    assert b.sequences[0].num_output_tokens == 4


def test_a_request_alone_in_a_full_pool_has_outgrown_it() -> None:
    world = World(3, 4)
    request = world.add("A", 10, max_tokens=50)
    world.run()
    assert world.finished == ["A"]
    assert request.sequences[0].num_tokens == 3 * 4 + 1  # the last token needs no slot


def test_admission_counts_cached_blocks_once() -> None:
    """Six blocks; A has four, two of them a prefix that B shares. B needs three more, two are free."""
    world = World(6, 4, enable_prefix_caching=True)
    a = world.add("A", 16, max_tokens=9)
    world.step()
    b = world.add("B", 20, max_tokens=1)
    b.sequences[0].token_ids[8:] = range(100, 112)
    free_order = world.blocks.allocator.free_order()
    with pytest.raises(OutOfBlocksError) as error:
        world.blocks.admit(b.sequences)
    assert error.value.missing == 1
    assert world.blocks.allocator.free_order() == free_order
    assert [world.blocks.allocator.reference_count(block) for block in a.sequences[0].table.blocks] == [1] * 4
    assert len(b.sequences[0].table) == 0
    world.check()


def test_a_hit_that_nobody_uses_is_no_block_to_hand_out() -> None:
    """Four blocks: two cached and hit, two free. The prompt needs three more, not two."""
    world = World(4, 4, enable_prefix_caching=True)
    world.add("A", 9, max_tokens=1)
    world.run()
    assert world.blocks.allocator.num_cached == 2
    b = world.add("B", 18)
    with pytest.raises(OutOfBlocksError) as error:
        world.blocks.admit(b.sequences)
    assert error.value.missing == 1
    assert world.blocks.allocator.num_cached == 2


def test_one_percent_of_the_pool_is_left_to_those_already_running() -> None:
    world = World(200, 1)
    world.add("A", 10)
    world.add("B", 189)
    assert [name for name, _, _ in names(world.step())] == ["A"]
    world = World(200, 1)
    world.add("A", 10)
    world.add("B", 188)
    assert [name for name, _, _ in names(world.step())] == ["A", "B"]


def test_a_lone_request_may_fill_the_pool() -> None:
    world = World(200, 1)
    world.add("A", 200, max_tokens=1)
    assert names(world.step()) == [("A", 0, 200)]


def test_limits_on_sequences_and_tokens_hold() -> None:
    world = World(100, 4, max_num_seqs=3, max_num_batched_tokens=8)
    for i in range(7):
        world.add(f"R{i}", 3 + i)
    for step in world.run():
        assert len(step.rows) <= 3
        assert sum(row.stop - row.start for row in step.rows) <= 8
    assert world.finished == [f"R{i}" for i in range(7)]


def test_more_sequences_allowed_than_tokens_still_makes_progress() -> None:
    world = World(100, 4, max_num_seqs=64, max_num_batched_tokens=2)
    for i in range(6):
        world.add(f"R{i}", 5)
    world.run()
    assert len(world.finished) == 6


def test_finish_is_idempotent_and_works_in_any_state() -> None:
    world = World(10, 4)
    running, waiting = world.add("A", 5), world.add("B", 39)
    world.step()
    for request in (running, waiting, running, waiting):
        world.scheduler.finish(request)
        world.check()
    assert world.blocks.num_available == 10
    assert not world.scheduler.running and not world.scheduler.waiting


def test_a_shared_last_block_is_copied_before_it_is_written() -> None:
    world = World(8, 4)
    a = world.add("A", 6)
    world.step()
    b = world.add("B", 6)
    world.scheduler.waiting.clear()
    b.sequences[0].token_ids[:] = list(a.sequences[0].token_ids)
    b.sequences[0].table = a.sequences[0].table.fork()
    world.blocks.cache.share(b.sequences[0].table.blocks)
    assert world.blocks.append_slot(a.sequences[0]) == (1, 2)
    assert world.blocks.append_slot(b.sequences[0]) is None  # it is the only owner left
    assert a.sequences[0].table.blocks == [0, 2] and b.sequences[0].table.blocks == [0, 1]
    assert world.blocks.allocator.num_in_use == 3


@settings(max_examples=60, deadline=None)
@given(
    num_blocks=st.integers(4, 24),
    block_size=st.integers(1, 6),
    budget=st.integers(1, 30),
    max_num_seqs=st.integers(1, 8),
    caching=st.booleans(),
    requests=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3), st.integers(0, 5)), max_size=12
    ),
)
def test_every_request_ends_in_order_of_arrival_and_no_block_is_lost(
    num_blocks: int,
    block_size: int,
    budget: int,
    max_num_seqs: int,
    caching: bool,
    requests: list[tuple[int, int, int, int]],
) -> None:
    world = World(
        num_blocks,
        block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        enable_prefix_caching=caching,
    )
    added = []
    for i, (num_tokens, max_tokens, first, pause) in enumerate(requests):
        if num_tokens <= num_blocks * block_size:
            added.append(world.add(f"R{i}", num_tokens, max_tokens, first=10 * first))
        for _ in range(pause):
            world.step()
    world.run(limit=4000)
    assert sorted(world.finished) == sorted(request.request_id for request in added)
    first_admissions = list(dict.fromkeys(world.order_of_admission))
    assert first_admissions == [request.request_id for request in added]
    for request in added:
        outgrown = request.sequences[0].num_tokens == num_blocks * block_size + 1
        assert request.sequences[0].num_output_tokens == request.max_tokens or outgrown
