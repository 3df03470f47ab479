"""Grades lesson 9: real requests and a real block manager in small pools, without a model."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from minipaged.course.checks import check, check_true, trying
from minipaged.engine.block_manager import BlockManager
from minipaged.engine.request import Request, Sequence
from minipaged.engine.schedule import Schedule
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.sampling_params import SamplingParams


class World:
    """A scheduler over a pool, and a model that answers every sampled row with token 7."""

    def __init__(self, exercise: ModuleType, num_blocks: int, block_size: int = 4, **limits: int) -> None:
        self.blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=False)
        limits = {"max_num_seqs": 8, "max_num_batched_tokens": 100} | limits
        self.scheduler = exercise.Scheduler(self.blocks, **limits)
        self.budget = limits["max_num_batched_tokens"]
        self.ended: list[str] = []

    def add(self, name: str, num_tokens: int, max_tokens: int = 4, samples: int = 1) -> Request:
        """A new request in `waiting`, with one sequence so far."""
        sequences = [self.sequence(num_tokens)]
        params = SamplingParams(max_tokens=max_tokens, n=samples)
        tokens = list(sequences[0].token_ids)
        request = Request(name, None, tokens, params, max_tokens, sequences, lambda: None)  # type: ignore[arg-type,return-value]
        self.scheduler.waiting.append(request)
        return request

    def sequence(self, num_tokens: int, first: int = 0) -> Sequence:
        """A sequence of the tokens `first`, `first` + 1, ... without blocks."""
        tokens = list(range(first, first + num_tokens))
        chain, table = self.blocks.new_chain(tokens, None), self.blocks.new_table()
        return Sequence(tokens, chain, table, None, num_prompt_tokens=num_tokens, seed=0)  # type: ignore[arg-type]

    def step(self, look: Callable[[Any], None] = lambda step: None) -> Any:
        """Plan a step, look at it, see that it can be carried out, and carry it out."""
        scheduler = self.scheduler
        step = scheduler.schedule()
        check_true(
            "schedule()", step is not None, "the Schedule", "None", "schedule returns the step that it filled"
        )
        if step is not None:
            look(step)
        used = sum(row.stop - row.start for row in step.rows)
        why = "the budget is counted in tokens, over all requests"
        check_true(
            f"the tokens of a step, budget {self.budget}", used <= self.budget,
            f"at most {self.budget}", f"{used}: {rows(step)}", why,
        )  # fmt: skip
        idle = [r for r in scheduler.running if all(row.request is not r for row in step.rows)]
        why = (
            "whoever runs computes something in every step while budget is left: add rows for those that ran "
            "before as well as for those just admitted, and only a part of a prompt that is too long"
        )
        check_true(
            f"the rows of a step, budget {self.budget}", used == self.budget or not idle,
            "a row for each request in `running`", f"none for {', '.join(ids(idle))}: {rows(step)}", why,
        )  # fmt: skip
        queues = [*scheduler.running, *scheduler.swapped, *scheduler.waiting]
        twice = [r.request_id for r in queues if sum(r is other for other in queues) > 1]
        why = "a request is in one queue at a time: who is preempted leaves `running`"
        check("requests in two queues at once", twice, [], why)
        for row in step.rows:
            sequence = row.sequence
            tried = f"row ({row.request.request_id}, {row.start}, {row.stop})"
            check(
                f"where {tried} begins", row.start, sequence.num_computed_tokens,
                "a row begins where the computed tokens end, in a Schedule that is new in each call",
            )  # fmt: skip
            inside = row.start < row.stop <= sequence.num_tokens
            check_true(
                f"the end of {tried}",
                inside,
                f"up to {sequence.num_tokens}",
                str(row.stop),
                "empty, or too long",
            )
            last = row.stop == sequence.num_tokens
            why = "a token is sampled only where the last known token is computed, not after each chunk"
            if row.is_last_chunk and row.stop == sequence.num_tokens - 1:
                why = "a row holds the tokens start to stop - 1: to its last token a row stops at num_tokens"
            check(f"is_last_chunk of {tried}, {sequence.num_tokens} tokens", row.is_last_chunk, last, why)
            check_true(
                f"the slots of {tried}", row.stop <= sequence.table.num_tokens, "a slot for each token",
                f"slots for {sequence.table.num_tokens}",
                "no slot was reserved: those running get one for their newest token first",
            )  # fmt: skip
            self.blocks.publish(sequence, row.stop)
            if row.is_last_chunk:
                sequence.token_ids.append(7)
                if sequence.num_output_tokens >= row.request.max_tokens:
                    scheduler.finish(row.request)
                    self.ended.append(row.request.request_id)
        self.ended += [request.request_id for request in step.outgrown]
        live = [s for request in scheduler.requests() for s in request.sequences]
        try:
            self.blocks.check(live)
        except RuntimeError as error:
            why = (
                "a block leaked or is named twice: whoever is preempted or ended gives all of its blocks back"
            )
            check_true("the pool after a step", False, "every block free or in one table", str(error), why)
        return step

    def run(self, why: str = "") -> list[Any]:
        """Step until all have ended."""
        steps: list[Any] = []
        while any(self.scheduler.requests()):
            why = why or self._why_stuck()
            check_true("all requests after 200 steps", len(steps) < 200, "ended", "some are left", why)
            steps.append(self.step())
        free = self.blocks.num_available
        why = "a block leaked: somebody did not give it back"
        check("free blocks at the end", free, self.blocks.num_blocks, why)
        return steps

    def _why_stuck(self) -> str:
        """The reason why requests are left in the end."""
        first = next(iter(self.scheduler.waiting), None)
        if first is None or self.scheduler.running or first.sequences[0].num_tokens <= self.budget:
            return "no progress: somebody waits for what never comes"
        size = first.sequences[0].num_tokens
        return (
            f"no progress: {first.request_id} has {size} tokens, more than the budget of {self.budget}, and "
            "waits for ever: it joins with the chunk that the budget allows"
        )


def _left_schedule(error: BaseException) -> str:
    """The reason for an OutOfBlocksError that no method has caught."""
    if not isinstance(error, OutOfBlocksError):
        return ""
    if any(frame.name == "_start" for frame in traceback.extract_tb(error.__traceback__)):
        return "the first waiting request does not fit: if _start raises OutOfBlocksError, nobody else joins"
    return (
        "a running request found no block: each time that _append_slots raises OutOfBlocksError make room "
        "and try again, until the slots are there or the request itself gave way"
    )


def rows(step: Any) -> list[tuple[str, int, int]]:
    return [(row.request.request_id, row.start, row.stop) for row in step.rows]


def ids(requests: Any) -> list[str]:
    return [request.request_id for request in requests]


def test_one_request_from_prompt_to_end(exercise: ModuleType) -> None:
    """A prompt is computed at once where the budget allows, then one token a step."""
    world = World(exercise, 8)
    world.add("A", 5, max_tokens=3)
    with trying("a prompt of 5 tokens, then two decodes", _left_schedule):
        got = [rows(step) for step in world.run()]
    why = "the prompt, then the one token that was sampled last, each time"
    check(
        "the rows of a request of 5 tokens and 3 more",
        got,
        [[("A", 0, 5)], [("A", 5, 6)], [("A", 6, 7)]],
        why,
    )


def test_a_long_prompt_comes_in_chunks(exercise: ModuleType) -> None:
    """A prompt longer than the budget is computed in chunks, and sampled once, at its end."""
    world = World(exercise, 8, max_num_batched_tokens=4)
    world.add("A", 10, max_tokens=1)
    with trying("a prompt of 10 tokens under a budget of 4", _left_schedule):
        steps = world.run()
    why = "chunks of what the budget allows: 4, 4, and the 2 that are left"
    check(
        "the rows of 10 tokens, budget 4",
        [rows(s) for s in steps],
        [[("A", 0, 4)], [("A", 4, 8)], [("A", 8, 10)]],
        why,
    )
    why = "a token is sampled only where the last known token is computed, not after each chunk"
    check("is_last_chunk of its chunks", [s.rows[0].is_last_chunk for s in steps], [False, False, True], why)


def test_a_chunk_takes_all_that_the_budget_allows(exercise: ModuleType) -> None:
    """A chunk has no limit of its own: a prompt within the budget is one row."""
    world = World(exercise, 80, max_num_batched_tokens=200)
    world.add("A", 300, max_tokens=1)
    with trying("a prompt of 300 tokens under a budget of 200", _left_schedule):
        got = [rows(step) for step in world.run()]
    why = "a chunk takes as many tokens as the budget allows, and has no limit of its own"
    check("the rows of 300 tokens, budget 200", got, [[("A", 0, 200)], [("A", 200, 300)]], why)


def test_newcomers_join_while_others_run(exercise: ModuleType) -> None:
    """Whoever arrives joins at the next step, not when the batch has ended."""
    world = World(exercise, 20)
    world.add("A", 2, max_tokens=9)
    with trying("B arrives while A runs", _left_schedule):
        world.step()
        world.add("B", 2)
        got = rows(world.step())
    why = (
        "A took 1 token of 100, so B computes both of its own: _add_rows returns how many it added"
        if ("B", 0, 1) in got
        else "a batch that waits for its slowest member is static batching: ask anew before every step"
    )
    check("the step after B arrived", got, [("A", 2, 3), ("B", 0, 2)], why)


def test_all_who_fit_join_in_one_step(exercise: ModuleType) -> None:
    """A step admits one request after the other, until budget, places or blocks are used up."""
    for number in (2, 30):
        world = World(exercise, 40, max_num_seqs=40)
        for place in range(number):
            world.add(str(place), 2)
        tried = f"{number} prompts of 2 tokens, budget 100, 40 places, 40 blocks"
        with trying(tried, _left_schedule):
            got = rows(world.step())
        why = (
            f"all {number} fit: go on admitting while budget, places and blocks allow. Nothing else limits "
            "how many join in a step"
        )
        check(f"how many rows has the first step of {tried}", len(got), number, why)


def test_rows_of_one_token_come_first(exercise: ModuleType) -> None:
    """Rows of one token stand before longer ones, and the order of arrival stays within each."""
    world = World(exercise, 20)
    for name, length in (("A", 5), ("B", 1), ("C", 3), ("D", 1)):
        world.add(name, length)
    with trying("prompts of 5, 1, 3 and 1 tokens arrive together", _left_schedule):
        got = rows(world.step())
    why = "sort the rows by whether they have more than one token; a stable sort keeps the order of arrival"
    check("the rows of prompts of 5, 1, 3, 1", got, [("B", 0, 1), ("D", 0, 1), ("A", 0, 5), ("C", 0, 3)], why)


def test_decodes_first_prompts_share_the_rest(exercise: ModuleType) -> None:
    """Decodes take their token first; prompts share what is left of the budget, in order of arrival."""
    world = World(exercise, 20, max_num_batched_tokens=6)
    world.add("A", 3)
    with trying("A decodes, B of 9 and C of 2 tokens arrive, budget 6", _left_schedule):
        world.step()
        world.add("B", 9)
        world.add("C", 2)
        first, second = rows(world.step()), rows(world.step())
    why = "A's decode takes 1 of 6 tokens, B's prompt the other 5; the budget is in tokens, C waits"
    check("the second step, budget 6", first, [("A", 3, 4), ("B", 0, 5)], why)
    why = "A's decode, B's remaining 4, and for C the 1 that is left; rows of one token stand first"
    check("the third step, budget 6", second, [("A", 4, 5), ("C", 0, 1), ("B", 5, 9)], why)


def test_an_exhausted_budget_admits_nobody(exercise: ModuleType) -> None:
    """Where no token of the budget is left, nobody is admitted: blocks would be held for nothing."""
    world = World(exercise, 20, max_num_batched_tokens=4)
    world.add("A", 4)
    world.add("B", 2)
    with trying("A's prompt takes all 4 tokens of the budget, B waits", _left_schedule):
        world.step()
    why = "B would hold blocks in a step that computes nothing of it: admit while budget is left"
    check("who waits when A took the whole budget", ids(world.scheduler.waiting), ["B"], why)
    check("free blocks then, of 20", world.blocks.num_available, 19, why)


def test_a_decode_stands_before_a_newcomer_of_one_token(exercise: ModuleType) -> None:
    """Among rows of one token the order of arrival stays."""
    world = World(exercise, 20)
    world.add("A", 3)
    with trying("A decodes, B of one token arrives", _left_schedule):
        world.step()
        world.add("B", 1)
        got = rows(world.step())
    why = "both rows have one token, and A came first: sort by row length above 1 only"
    check("the rows of A in decode and B of one token", got, [("A", 3, 4), ("B", 0, 1)], why)


def test_decodes_keep_the_order_of_arrival(exercise: ModuleType) -> None:
    """The rows of those in decode stand in order of arrival, whatever they are called."""
    for names in ("ABC", "CAB"):
        world = World(exercise, 20)
        for name in names:
            world.add(name, 2)
        tried = f"{', '.join(names)} arrive in this order, 2 tokens each"
        with trying(f"two steps, {tried}", _left_schedule):
            first, second = rows(world.step()), rows(world.step())
        why = "the oldest stands first: go through `running` as it is, and sort by row length above 1 only"
        check(f"the rows of the first step, {tried}", first, [(name, 0, 2) for name in names], why)
        check(f"the rows of the second step, {tried}", second, [(name, 2, 3) for name in names], why)


def test_the_sequences_of_a_group_share_the_budget(exercise: ModuleType) -> None:
    """The sequences of one request go in order, and share the budget."""
    world = World(exercise, 20)
    request = world.add("A", 5, samples=2)
    other = world.add("other", 7).sequences[0]
    request.sequences.append(other)  # as after a preemption: both have all their tokens to compute
    why = "the second sequence gets what the first one leaves of the budget, and no empty row"
    for budget, want in (
        (20, [(0, 5), (0, 7)]),
        (8, [(0, 5), (0, 3)]),
        (6, [(0, 5), (0, 1)]),
        (5, [(0, 5)]),
        (2, [(0, 2)]),
        (0, []),
    ):
        step, tried = Schedule(), f"_add_rows of sequences with 5 and 7 tokens, budget {budget}"
        with trying(tried, _left_schedule):
            used = world.scheduler._add_rows(step, request, budget)
        check(f"the rows of {tried}", [(row.start, row.stop) for row in step.rows], want, why)
        check(f"what {tried} returns", used, sum(stop for _, stop in want), "the number of tokens added")


def test_decodes_before_a_prompt_that_is_half_done(exercise: ModuleType) -> None:
    """A prompt in chunks takes what decodes leave of the budget, also when it runs already."""
    world = World(exercise, 20, max_num_batched_tokens=4)
    world.add("A", 3)
    with trying("A decodes, B of 9 tokens comes in chunks, budget 4", _left_schedule):
        world.step()
        world.add("B", 9)
        got = [rows(world.step()) for _ in range(3)]
    why = (
        "a decode takes its one token before prompts share the rest, or A's answer would stop for B's prompt"
    )
    want = [[("A", 3, 4), ("B", 0, 3)], [("A", 4, 5), ("B", 3, 6)], [("A", 5, 6), ("B", 6, 9)]]
    check("three steps of A in decode and B in prefill, budget 4", got, want, why)
    world = World(exercise, 20, max_num_batched_tokens=4)
    world.add("A", 3)
    world.add("B", 1)
    with trying(
        "A and B decode; then A computes all of its tokens again, as after preemption by another policy"
    ):
        world.step()
        a = world.scheduler.running[0].sequences[0]
        a.token_ids += [7, 7]
        a.num_prompt_tokens = a.num_tokens
        world.blocks.free(a)
        world.blocks.admit([a])
        got = [rows(world.step())]
    why = "B, though younger, decodes: it takes its one token before A's prompt takes the rest"
    check("a step of A in prefill and B in decode, budget 4", got, [[("B", 1, 2), ("A", 0, 3)]], why)


def test_a_finished_sequence_computes_nothing(exercise: ModuleType) -> None:
    """Rows are for the sequences that go on; each is sampled where its own last known token is computed."""
    world = World(exercise, 20)
    request = world.add("A", 3)
    done, last = world.sequence(4, first=10), world.sequence(2, first=20)
    done.finish_reason = "stop"
    request.sequences += [done, last]
    for budget, want in ((4, [(0, 3, True), (0, 1, False)]), (9, [(0, 3, True), (0, 2, True)])):
        step, tried = Schedule(), f"_add_rows, budget {budget}, sequences of 3 tokens, 4 (finished) and 2"
        with trying(tried, _left_schedule):
            world.scheduler._add_rows(step, request, budget)
        why = "`request.unfinished` are the sequences that go on, and each has a last token of its own"
        got = [(row.start, row.stop, row.is_last_chunk) for row in step.rows]
        check(f"start, stop and is_last_chunk of the rows of {tried}", got, want, why)


def test_tokens_sampled_before_are_computed_again_in_chunks(exercise: ModuleType) -> None:
    """After a preemption the tokens sampled so far follow the prompt, and only the last of all samples."""
    for budget, want in (
        (2, [(0, 2, False)]),
        (3, [(0, 3, False)]),
        (4, [(0, 4, False)]),
        (5, [(0, 5, True)]),
    ):
        world = World(exercise, 20)
        request = world.add("A", 3)
        request.sequences[0].token_ids += [7, 7]
        step, tried = (
            Schedule(),
            f"_add_rows, budget {budget}, a prompt of 3 tokens and 2 sampled, none computed",
        )
        with trying(tried, _left_schedule):
            world.scheduler._add_rows(step, request, budget)
        why = (
            "after a preemption the prompt ends before the tokens do: the last known token is at "
            "`num_tokens`, and to sample before it would guess again what was answered already"
        )
        got = [(row.start, row.stop, row.is_last_chunk) for row in step.rows]
        check(f"start, stop and is_last_chunk of the row of {tried}", got, want, why)


def test_the_watermark(exercise: ModuleType) -> None:
    """An admission leaves 1 % of the pool, rounded up, to those running; alone one may have all."""
    for blocks, spare in ((4, 1), (100, 1), (101, 2), (250, 3)):
        world = World(exercise, blocks)
        with trying("num_spare_blocks of an idle pool", _left_schedule):
            got = world.scheduler.num_spare_blocks
        check(
            f"num_spare_blocks of {blocks} blocks, nobody running",
            got,
            0,
            "nobody runs: nothing has to be left for them",
        )
        world.add("A", 1)
        world.step()
        why = "1 % of the pool, rounded up, so that a small pool leaves a block, too"
        check(
            f"num_spare_blocks of {blocks} blocks, one running", world.scheduler.num_spare_blocks, spare, why
        )
    world = World(exercise, 4)
    world.add("A", 7, max_tokens=2)
    world.add("B", 8, max_tokens=1)
    with trying("A takes 2 of 4 blocks, B needs the other 2", _left_schedule):
        got = rows(world.step())
    why = "B would take the last block, and A would preempt it at the next token: leave the watermark"
    check("who runs where B would take the last block", got, [("A", 0, 7)], why)
    world = World(exercise, 4)
    world.add("A", 16, max_tokens=1)
    with trying("A needs all 4 blocks, alone", _left_schedule):
        check(
            "who runs, alone in 4 blocks",
            rows(world.step()),
            [("A", 0, 16)],
            "nobody runs: nothing has to be left",
        )


def test_the_running_come_before_newcomers(exercise: ModuleType) -> None:
    """Blocks go to those running first, and only what is left to newcomers."""
    world = World(exercise, 4)
    world.add("A", 8)
    with trying("A holds 2 of 4 blocks and needs a third; D needs one", _left_schedule):
        world.step()
        world.add("D", 4)
        got = rows(world.step())
    why = "A's slot comes first and leaves 1 block, the watermark: reserve slots before anybody is admitted"
    check("who runs when A needs a third of 4 blocks and D one", got, [("A", 8, 9)], why)


def test_no_more_than_there_are_places(exercise: ModuleType) -> None:
    """At most max_num_seqs sequences run at a time, and a request counts as many as it will have."""
    world = World(exercise, 40, max_num_seqs=2)
    for name in "ABC":
        world.add(name, 2, max_tokens=2)
    with trying("three requests, max_num_seqs=2", _left_schedule):
        steps = [world.step() for _ in range(3)]
    check(
        "who runs first, max_num_seqs=2",
        sorted({r[0] for r in rows(steps[0])}),
        ["A", "B"],
        "there are two places, and both can be taken",
    )
    why = "C arrives at two places that are taken: those who run already count as well as newcomers"
    check("who runs second, max_num_seqs=2", sorted({r[0] for r in rows(steps[1])}), ["A", "B"], why)
    check(
        "who runs third, max_num_seqs=2",
        sorted({r[0] for r in rows(steps[2])}),
        ["C"],
        "C joins when a place is free",
    )
    world = World(exercise, 40, max_num_seqs=3)
    world.add("A", 2, samples=2)
    world.add("B", 2, samples=2)
    world.add("C", 2)
    with trying("n=2, n=2 and n=1, max_num_seqs=3", _left_schedule):
        got = [r[0] for r in rows(world.step())]
    why = "A will have 2 sequences, B 2 more: 4 are too many. C would fit, and must not pass B"
    check("who runs of n=2, n=2, n=1, max_num_seqs=3", got, ["A"], why)
    with trying("n=2, n=2 and n=1, max_num_seqs=3, the second step", _left_schedule):
        got = [r[0] for r in rows(world.step())]
    why = "A has one sequence so far and will have 2: a request's places are `num_sequences`, from the start"
    check("who runs of n=2, n=2, n=1, max_num_seqs=3, second step", got, ["A"], why)


def test_to_make_room_takes_a_request_out_of_running(exercise: ModuleType) -> None:
    """Whoever gives way runs no more, so room is not made for it."""
    world = World(exercise, 4)
    for name in "AB":
        world.add(name, 4)
    with trying("_make_room, while A and B run", _left_schedule):
        world.step()
        world.scheduler._make_room(Schedule())
    why = "a request that gave way leaves `running`, or it is asked to give way again and again"
    check("how many run after _make_room, while A and B ran", len(world.scheduler.running), 1, why)


def test_the_youngest_gives_way_and_comes_back_first(exercise: ModuleType) -> None:
    """When blocks run out the youngest is preempted, waits at the front, and comes back before newcomers."""
    world = World(exercise, 5)
    a, b = world.add("A", 8), world.add("B", 8)

    def look(step: Any) -> None:
        why = (
            "the youngest of those running gives way, also where it needs the slot itself: the oldest must "
            "never starve"
            if step.preempted
            else "whoever gives way is listed in step.preempted: nobody may join in such a step"
        )
        check(
            "who is preempted when A and B need a third block each, one free", ids(step.preempted), ["B"], why
        )
        if step.outgrown:
            why = (
                "B gave way, and was tried again in the same step: room was made for it once more, at A's "
                "cost. Reserve slots for nobody in step.preempted"
            )
        check("who runs after B was preempted", ids(world.scheduler.running), ["A"], why)

    with trying("A and B, 8 tokens each, in 5 blocks of 4", _left_schedule):
        world.step()
        world.add("D", 4)
        step = world.step(look)
    why = "who was preempted comes back before newcomers: to the front of `waiting`, not to its end"
    check(
        "who waits after B was preempted, D having arrived later",
        ids(world.scheduler.waiting),
        ["B", "D"],
        why,
    )
    why = "blocks that were just given up must not be taken at once: nobody joins in a step that preempted"
    check("the rows of the step that preempted B", rows(step), [("A", 8, 9)], why)
    check(
        "num_preemptions of A and B",
        (a.num_preemptions, b.num_preemptions),
        (0, 1),
        "count it for the request",
    )
    with trying("the steps after that, until all have ended", _left_schedule):
        world.run()
    check(
        "the order in which A, B, D end",
        world.ended,
        ["A", "B", "D"],
        lambda got: (
            "B was ended at admission though A runs: it fits once A has ended"
            if got[0] == "B"
            else "D passed B, which waits for blocks at the head of the line: first come, first served"
        ),
    )
    check(
        "num_preemptions of B at the end",
        b.num_preemptions,
        1,
        "B came back too early, and was preempted again",
    )


def test_the_youngest_whatever_its_size(exercise: ModuleType) -> None:
    """Who gives way is a matter of age: neither the smallest nor the largest, nor whoever needs the block."""
    for lengths in ((8, 4, 8), (12, 4, 4)):
        world = World(exercise, 6)
        for name, length in zip("ABC", lengths, strict=True):
            world.add(name, length)
        tried = (
            f"A, B, C of {lengths[0]}, {lengths[1]}, {lengths[2]} tokens want one more each, one block free"
        )

        def look(step: Any, tried: str = tried) -> None:
            why = (
                "A takes the free block, B finds none, and C, the youngest, gives way: age decides, not size"
            )
            check(f"who is preempted when {tried}", ids(step.preempted), ["C"], why)

        with trying(tried, _left_schedule):
            world.step()
            step = world.step(look)
        why = "A and B got their slots, and C has none; the oldest stands first"
        check(f"who has rows when {tried}", [row[0] for row in rows(step)], ["A", "B"], why)


def test_the_youngest_gives_way_in_the_midst_of_its_prompt(exercise: ModuleType) -> None:
    """Who gives way is a matter of age: whoever is still computing its prompt is no exception."""
    world = World(exercise, 6, max_num_batched_tokens=10)
    for name, length in (("A", 4), ("B", 4), ("C", 12)):
        world.add(name, length)
    with trying("A, B decode, C is in the midst of its prompt, one block free", _left_schedule):
        world.step()
        step = world.step()
    why = "C is the youngest, and age decides: what it has computed of its prompt is computed again"
    check("who is preempted when A and B need a block each, one free", ids(step.preempted), ["C"], why)
    check("the rows of that step", rows(step), [("A", 4, 5), ("B", 4, 5)], why)


def test_a_request_comes_back_beside_others(exercise: ModuleType) -> None:
    """Whoever gave way comes back as soon as there is room, and gives way again if need be."""
    world = World(exercise, 5)
    world.add("A", 4, max_tokens=2)
    world.add("B", 4, max_tokens=9)
    c = world.add("C", 4, max_tokens=9)
    with trying(
        "A, B, C of 4 tokens in 5 blocks of 4: two blocks are free, three are needed, A ends then",
        _left_schedule,
    ):
        world.step()
        second = world.step()
        third = world.step()
    why = "C is the youngest, and its own slot is the one that is missing"
    check("who is preempted in the second step", ids(second.preempted), ["C"], why)
    why = (
        "C stays away in the step that preempted it, no longer: A ended, 3 blocks are free, C needs 2 and "
        "leaves 1, the watermark, so it joins while B runs"
    )
    check("the rows of the third step", rows(third), [("B", 5, 6), ("C", 0, 5)], why)
    world.run()
    why = "C gave way twice, for A and B first and for B later: count up, once for each time"
    check("num_preemptions of C at the end", c.num_preemptions, 2, why)


def test_nobody_comes_back_at_once(exercise: ModuleType) -> None:
    """Whoever gave way stays away for this step, even where the blocks would do."""
    world = World(exercise, 10)
    world.add("A", 8)
    b = world.add("B", 16, samples=2)
    b.sequences.append(world.sequence(16))  # two samples that came to say the same, in blocks of their own
    with trying("A in 2 of 10 blocks, B with two equal samples in the other 8", _left_schedule):
        scheduler = world.scheduler
        for request in (scheduler.waiting.popleft(), scheduler.waiting.popleft()):
            for sequence in request.sequences:
                world.blocks.admit([sequence])
                world.blocks.publish(sequence, sequence.num_tokens)
                sequence.token_ids.append(7)
            scheduler.running.append(request)
        step = world.step()
    why = (
        "B gave up 8 blocks and, with its equal samples sharing theirs, would fit into the 7 that A left: "
        "but nobody joins in a step that preempted, or two would take turns at preempting each other"
    )
    check(
        "who is preempted when A needs a block and B holds all others",
        ids(step.preempted),
        ["B"],
        "A needs a block, and B is the youngest",
    )
    check("the rows of the step that preempted B", rows(step), [("A", 8, 9)], why)
    check("who waits after the step that preempted B", ids(scheduler.waiting), ["B"], why)


def test_two_give_way_in_one_step(exercise: ModuleType) -> None:
    """One victim may not be enough: whoever needs slots asks again until it has them."""
    world = World(exercise, 4)
    a = world.add("A", 4, max_tokens=9, samples=2)
    a.sequences.append(world.sequence(4, first=50))
    b, c = world.add("B", 4), world.add("C", 4)

    def look(step: Any) -> None:
        why = "C's block serves A's first sequence, the second needs B's: try again until the slots are there"
        check("who is preempted when A needs two blocks", ids(step.preempted), ["C", "B"], why)

    with trying("A with two sequences, B and C fill 4 blocks; A needs two more", _left_schedule):
        scheduler = world.scheduler
        for request in (a, b, c):
            scheduler.running.append(scheduler.waiting.popleft())
            for sequence in request.sequences:
                world.blocks.admit([sequence])
                world.blocks.publish(sequence, sequence.num_tokens)
                sequence.token_ids.append(7)
        step = world.step(look)
    why = "both of A's sequences have a slot by now"
    check("the rows of A's two sequences", rows(step), [("A", 4, 5), ("A", 4, 5)], why)
    why = "C went first and B was put before it: the line stays in order of arrival"
    check("who waits when C and B gave way", ids(scheduler.waiting), ["B", "C"], why)


def test_what_a_preempted_request_computes_again(exercise: ModuleType) -> None:
    """A preempted request keeps its tokens, and computes them all in one go when it comes back."""
    world = World(exercise, 5)
    world.add("A", 8, max_tokens=3)
    world.add("B", 8, max_tokens=3)
    with trying("A and B, 8 tokens each, in 5 blocks of 4, until B runs again", _left_schedule):
        steps = world.run()
    got = [row for step in steps for row in rows(step) if row[0] == "B"]
    why = "8 tokens of the prompt and the 1 sampled are one prompt of 9 by now, then decode goes on"
    check("all rows of B", got, [("B", 0, 8), ("B", 0, 9), ("B", 9, 10)], why)


def test_several_give_way(exercise: ModuleType) -> None:
    """As many give way as it takes, from the end of the line, and keep their order."""
    world = World(exercise, 6, block_size=1)
    for name in "ABCDE":
        world.add(name, 1)
    with trying("A to E of 1 token in 6 blocks of 1", _left_schedule):
        world.step()
        step = world.step()
    why = "A takes the free block, B needs E's and C needs D's: give way from the end until the slots suffice"
    check(
        "who is preempted when A to E want a second token, one block free",
        ids(step.preempted),
        ["E", "D"],
        why,
    )
    check("the rows of that step", rows(step), [("A", 1, 2), ("B", 1, 2), ("C", 1, 2)], why)
    why = "E went first and D was put before it: the line stays in order of arrival"
    check("who waits then", ids(world.scheduler.waiting), ["D", "E"], why)
    world = World(exercise, 13, block_size=1)
    for name in "ABCD":
        world.add(name, 3, max_tokens=6)
    with trying("four requests of 3 tokens in 13 blocks of 1", _left_schedule):
        world.step()
        step = world.step()
    check(
        "who runs of A to D in 13 blocks of 1",
        ids(world.scheduler.running),
        ["A", "B", "C"],
        "D's 3 blocks are enough for A, B and C",
    )
    check(
        "who is preempted when A to D want a fourth token",
        ids(step.preempted),
        ["D"],
        "nobody gives way without need",
    )
    with trying("the third and the fourth step", _left_schedule):
        world.step()
        world.step()
    why = "the front of `waiting` is for the oldest: C was preempted after D, and stands before it"
    check("who waits after C was preempted as well", ids(world.scheduler.waiting), ["C", "D"], why)
    world.run()
    check("the order in which A to D end", world.ended, list("ABCD"), "first come, first served")


def test_nobody_passes_the_head_of_the_line(exercise: ModuleType) -> None:
    """Where the head of the line doesn't fit, nobody behind it is admitted."""
    world = World(exercise, 6)
    world.add("A", 10, max_tokens=2)
    world.add("B", 16, max_tokens=1)
    world.add("C", 2, max_tokens=1)
    with trying("A takes 3 of 6 blocks; B needs 4, C needs 1", _left_schedule):
        got = rows(world.step())
    why = "C is small and would fit, but B came first: it would wait for as long as small ones keep coming"
    check("who runs, B too large for now", got, [("A", 0, 10)], why)
    world.run()
    check("the order in which A, B, C end", world.ended, ["A", "B", "C"], "first come, first served")


def test_who_outgrows_the_pool(exercise: ModuleType) -> None:
    """Alone and out of blocks, a request ends with what it has, and the next one runs."""
    world = World(exercise, 2)
    world.add("A", 7, max_tokens=50)
    world.add("B", 2, max_tokens=2)
    with trying("A wants 57 tokens in a pool of 8", _left_schedule):
        steps = world.run()
    preempted = [name for step in steps for name in ids(step.preempted)]
    why = "alone it has nobody to give way to: it ends, and is not tried again"
    check("who is preempted, A being alone in the pool", preempted, [], why)
    outgrown = [name for step in steps for name in ids(step.outgrown)]
    check(
        "who has outgrown 2 blocks of 4",
        outgrown,
        ["A"],
        "alone it can't preempt anybody: list it in step.outgrown",
    )
    check("who has ended, in order", world.ended, ["A", "B"], "its blocks are free again, and B is served")
    world = World(exercise, 2)
    world.add("A", 9, max_tokens=2)
    world.add("B", 2, max_tokens=1)
    why = "nobody runs and it still doesn't fit: it never will, so it must not block the line for ever"
    with trying("the head of the line doesn't fit into the empty pool", _left_schedule):
        steps = world.run(why)
    outgrown = [name for step in steps for name in ids(step.outgrown)]
    check("who has outgrown 2 blocks of 4, at admission", outgrown, ["A"], why)
    check("who has ended then", sorted(world.ended), ["A", "B"], why)


def test_each_call_plans_a_step_of_its_own(exercise: ModuleType) -> None:
    """`schedule()` returns a new step each time; without requests it is empty."""
    world = World(exercise, 4)
    with trying("schedule() without requests", _left_schedule):
        check("rows without requests", rows(world.step()), [], "nothing to do is no error")
    request = world.add("A", 3)
    with trying("schedule() for A, twice", _left_schedule):
        first = world.step()
        before = rows(first)
        second = world.step()
    why = "the step before was carried out: each call begins with an empty Schedule"
    check_true("the second step", second is not first, "a new Schedule", "the first one again", why)
    check("the rows of the second step", rows(second), [("A", 3, 4)], why)
    check("the rows of the first step, looked at later", rows(first), before, why)
    admitted = [r is request for r in first.admitted]
    check("step.admitted of the first step", admitted, [True], "_start lists it")


def test_long_lives_in_small_pools(exercise: ModuleType) -> None:
    """Whatever comes, the oldest makes progress in every step, and all blocks come home."""
    for seed in range(12):
        chance = random.Random(seed)
        world = World(
            exercise, chance.randint(6, 14), block_size=chance.choice([1, 2, 4]),
            max_num_batched_tokens=chance.choice([3, 8, 50]), max_num_seqs=chance.choice([2, 5]),
        )  # fmt: skip
        names, num_steps = [], 0
        with trying(f"25 random requests, pool number {seed}", _left_schedule):
            while len(names) < 25 or any(world.scheduler.requests()):
                if len(names) < 25 and chance.random() < 0.5:
                    names.append(str(len(names)))
                    world.add(names[-1], chance.randint(1, 5), max_tokens=chance.randint(1, 5))
                oldest = next(world.scheduler.requests(), None)
                before = oldest and (
                    oldest.sequences[0].num_computed_tokens,
                    len(oldest.sequences[0].token_ids),
                )
                world.step()
                num_steps += 1
                check_true(
                    f"pool {seed} after 600 steps",
                    num_steps < 600,
                    "all ended",
                    "some are left",
                    "no progress",
                )
                if oldest is not None and oldest.request_id not in world.ended:
                    after = (oldest.sequences[0].num_computed_tokens, len(oldest.sequences[0].token_ids))
                    why = "the oldest must move in every step: whatever others need, it comes first"
                    check_true(
                        f"the oldest request in step {num_steps}", after != before, "a row", "no row", why
                    )
        free = world.blocks.num_available
        check(f"free blocks at the end of pool {seed}", free, world.blocks.num_blocks, "a block leaked")
