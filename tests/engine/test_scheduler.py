"""The scheduler and the block manager, without a model: what runs when, on which blocks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipaged.engine.block_manager import BlockManager
from minipaged.engine.request import Request, Sequence
from minipaged.engine.schedule import Schedule
from minipaged.engine.scheduler import Scheduler
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.sampling_params import SamplingParams

no_text = None  # a detokenizer that nobody asks


class World:
    """A scheduler over a pool, and a model that answers every sampled row with token 7."""

    def __init__(self, num_blocks: int, block_size: int, **limits: Any) -> None:
        caching = limits.pop("enable_prefix_caching", False)
        host = limits.pop("num_host_blocks", 0)
        self.blocks = BlockManager(
            num_blocks, block_size, num_host_blocks=host, enable_prefix_caching=caching
        )
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
            assert sequence.num_computed_tokens == row.start < row.stop <= sequence.num_tokens
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
        queued = [*scheduler.running, *scheduler.swapped, *scheduler.waiting]
        assert len(set(map(id, queued))) == len(queued)
        self.blocks.check([request.sequences[0] for request in scheduler.requests()])
        for request in scheduler.running:
            assert request.sequences[0].table.num_empty_slots < self.blocks.block_size

    def run(self, limit: int = 500) -> list[Schedule]:
        steps = []
        while any(self.scheduler.requests()):
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


@pytest.mark.parametrize("d_comes_early", [True, False])
@pytest.mark.parametrize("num_host_blocks", [0, 2])
def test_the_youngest_is_preempted_once_and_comes_back_before_newcomers(
    num_host_blocks: int, d_comes_early: bool
) -> None:
    world = World(5, 4, num_host_blocks=num_host_blocks)
    a, b = world.add("A", 8), world.add("B", 8)
    if d_comes_early:
        world.add("D", 4)  # and waits: one block is left to those that run
    steps = [world.step()]
    steps.append(world.step())  # A takes the fifth block, B finds none
    assert [r.request_id for r in steps[1].preempted] == ["B"]
    assert names(steps[1]) == [("A", 8, 9)]
    assert (world.scheduler.swapped if num_host_blocks else world.scheduler.waiting)[0] is b
    if not d_comes_early:
        world.add("D", 4)
    steps += world.run()
    assert all(any(row.is_last_chunk for row in step.rows) for step in steps), "a step without a token"
    assert (a.num_preemptions, b.num_preemptions) == (0, 1)
    assert world.order_of_admission == ["A", "B", "B", "D"]
    assert world.finished == ["A", "B", "D"]
    assert b.sequences[0].num_output_tokens == 4


@pytest.mark.parametrize("num_host_blocks", [0, 9])
def test_several_that_were_preempted_come_back_in_order_of_arrival(num_host_blocks: int) -> None:
    """C gives way to B's third block, and then B to A's fourth."""
    world = World(7, 4, num_host_blocks=num_host_blocks)
    requests = [world.add(name, 8, max_tokens=6) for name in "ABC"]
    world.run()
    assert [request.num_preemptions for request in requests] == [0, 1, 1]
    assert world.order_of_admission == ["A", "B", "C", "B", "C"]
    assert world.finished == ["A", "B", "C"]


def test_a_prompt_preempted_between_its_chunks_hits_its_own_blocks_and_is_sampled_once() -> None:
    world = World(7, 4, max_num_batched_tokens=4, enable_prefix_caching=True)
    world.add("A", 4, max_tokens=6)
    world.add("B", 4, max_tokens=4, first=30)
    c = world.add("C", 10, max_tokens=1, first=50)
    steps = world.run()
    assert [names(step) for step in steps] == [
        [("A", 0, 4)],
        [("A", 4, 5), ("B", 0, 3)],
        [("A", 5, 6), ("B", 3, 4), ("C", 0, 2)],
        [("A", 6, 7), ("B", 4, 5), ("C", 2, 4)],  # all 7 blocks are in use now
        [("A", 7, 8), ("B", 5, 6), ("C", 4, 6)],
        [("A", 8, 9), ("B", 6, 7)],  # A takes a block of C's, and not the one that is cached
        [("C", 4, 8)],
        [("C", 8, 10)],
    ]
    assert c.num_preemptions == 1
    of_c = [row.is_last_chunk for step in steps for row in step.rows if row.request is c]
    assert of_c == [False, False, False, False, True]
    assert c.num_cached_tokens == 0  # as counted when it was first admitted


def test_tokens_found_in_the_cache_take_nothing_from_the_budget() -> None:
    world = World(20, 4, max_num_batched_tokens=4, enable_prefix_caching=True)
    world.add("A", 10, max_tokens=1)
    world.run()
    again = world.add("B", 10, max_tokens=1)
    world.add("C", 3, max_tokens=1, first=90)
    assert names(world.step()) == [("B", 8, 10), ("C", 0, 2)]
    assert again.num_cached_tokens == 8


def test_a_victim_larger_than_the_host_pool_is_computed_again_as_a_whole() -> None:
    world = World(5, 4, num_host_blocks=1)
    world.add("A", 8)
    b = world.add("B", 8)
    steps = [world.step(), world.step()]
    assert steps[1].preempted == [b] and list(world.scheduler.waiting) == [b]
    assert (len(b.sequences[0].table), b.sequences[0].num_computed_tokens) == (0, 0)
    steps += world.run()
    assert not any(step.moves for step in steps)
    assert [name for step in steps for name in names(step) if name[0] == "B"][:2] == [
        ("B", 0, 8),
        ("B", 0, 9),
    ]
    assert world.blocks.host_allocator is not None and world.blocks.host_allocator.num_free == 1


def test_what_is_swapped_out_stays_until_its_next_token_has_room_too() -> None:
    """B holds 8 tokens and has a ninth to place. Beside A, which holds 3 of 5 blocks, 2 are free."""
    world = World(5, 4, num_host_blocks=2)
    world.add("A", 8, max_tokens=3)
    b = world.add("B", 8, max_tokens=2)
    world.step()
    assert world.step().moves == [("out", 2, 0, b), ("out", 3, 1, b)]
    assert world.blocks.num_available == 2
    waits = world.step()
    assert (names(waits), waits.moves, list(world.scheduler.swapped)) == ([("A", 9, 10)], [], [b])
    assert world.finished == ["A"]
    resumes = world.step()
    assert names(resumes) == [("B", 8, 9)]
    assert [(move.kind, move.source) for move in resumes.moves] == [("in", 0), ("in", 1)]
    assert world.finished == ["A", "B"]


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
    cache = world.blocks.cache
    free_order, findable = world.blocks.allocator.free_order(), (dict(cache._blocks), dict(cache._digests))
    with pytest.raises(OutOfBlocksError) as error:
        world.blocks.admit(b.sequences)
    assert error.value.missing == 1
    assert world.blocks.allocator.free_order() == free_order
    assert (cache._blocks, cache._digests) == findable and len(findable[1]) == 4
    assert [world.blocks.allocator.reference_count(block) for block in a.sequences[0].table.blocks] == [1] * 4
    assert len(b.sequences[0].table) == 0
    world.check()


def test_a_hit_that_nobody_uses_is_no_block_to_hand_out() -> None:
    """Five blocks: two cached and hit, one cached, two free. The prompt needs four more, and gets three."""
    world = World(5, 4, enable_prefix_caching=True)
    world.add("A", 9, max_tokens=1)
    world.run()
    world.add("X", 5, max_tokens=1, first=90)
    world.run()
    cache = world.blocks.cache
    assert world.blocks.allocator.num_cached == 3
    order = (list(cache._unused), world.blocks.allocator.free_order(), dict(cache._digests))
    b = world.add("B", 22)
    with pytest.raises(OutOfBlocksError) as error:
        world.blocks.admit(b.sequences)
    assert error.value.missing == 1
    assert (list(cache._unused), world.blocks.allocator.free_order(), cache._digests) == order
    b.sequences[0].token_ids.pop()
    b.sequences[0].token_ids.pop()  # 20 tokens, now it fits
    assert world.blocks.admit(b.sequences) == 8
    assert world.blocks.num_available == 0


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


def test_a_shared_last_block_without_a_block_for_the_copy_changes_nothing() -> None:
    blocks = BlockManager(2, 4)
    tokens = list(range(6))
    first = Sequence(
        tokens, blocks.new_chain(tokens, None), blocks.new_table(), no_text, num_prompt_tokens=6, seed=0
    )  # type: ignore[arg-type]
    blocks.admit([first])
    second = first.fork(1, 1, blocks.fork(first), no_text)  # type: ignore[arg-type]
    first.token_ids.append(6)
    with pytest.raises(OutOfBlocksError) as error:
        blocks.append_slot(first)
    assert error.value.missing == 1
    assert (first.table.blocks, first.table.num_tokens) == ([0, 1], 6)
    assert [blocks.allocator.reference_count(block) for block in (0, 1)] == [2, 2]
    blocks.free(second)
    assert blocks.append_slot(first) is None  # it is the only owner left
    blocks.check([first])


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
