"""Pictures of time: batches that end together beside continuous ones, and a prompt computed in chunks.

The engine's own scheduler plans every step. In place of the model each sequence just gets one more token.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any, NamedTuple

from minipaged.engine.block_manager import BlockManager
from minipaged.engine.request import Request, Sequence
from minipaged.engine.scheduler import Scheduler
from minipaged.sampling_params import SamplingParams

from .svg import Drawing

LENGTHS, PLACES = (3, 12, 4, 5, 9, 2, 8, 3), 4
BUDGET = 16  # tokens per step


class Asked(NamedTuple):
    """A request: its name, the tokens of its prompt and of its answer, and the step at which it comes."""

    name: str
    prompt: int
    answer: int
    arrives: int = 0


class Work(NamedTuple):
    """Tokens start to stop - 1 of a request, computed in one step."""

    name: str
    start: int
    stop: int


def plan(requests: SequenceOf[Asked], places: int, budget: int) -> list[list[Work]]:
    """What the scheduler computes in each step until all requests have ended."""
    blocks = BlockManager(64, 4, enable_prefix_caching=False)
    scheduler = Scheduler(blocks, max_num_seqs=places, max_num_batched_tokens=budget)
    steps: list[list[Work]] = []
    coming = list(requests)
    while coming or any(scheduler.requests()):
        while coming and coming[0].arrives <= len(steps):
            scheduler.waiting.append(_request(blocks, coming.pop(0)))
        rows = scheduler.schedule().rows
        steps.append([Work(row.request.request_id, row.start, row.stop) for row in rows])
        for row in rows:
            blocks.publish(row.sequence, row.stop)
            if row.is_last_chunk:
                row.sequence.token_ids.append(0)
                if row.sequence.num_output_tokens == row.request.max_tokens:
                    scheduler.finish(row.request)
    return steps


def _request(blocks: BlockManager, asked: Asked) -> Request:
    tokens, no_text = [0] * asked.prompt, None
    sequence: Any = Sequence(tokens, blocks.new_chain(tokens, None), blocks.new_table(), no_text,  # type: ignore[arg-type]
                             num_prompt_tokens=asked.prompt, seed=0)  # fmt: skip
    params = SamplingParams(max_tokens=asked.answer)
    return Request(asked.name, None, list(tokens), params, asked.answer, [sequence], lambda: no_text)  # type: ignore[arg-type,return-value]


def both() -> tuple[list[list[str]], list[list[str]]]:
    """The names that run in each step: in batches that end together, and in continuous ones."""
    requests = [Asked(chr(65 + i), 1, length) for i, length in enumerate(LENGTHS)]
    static = [
        step
        for first in range(0, len(requests), PLACES)
        for step in plan(requests[first : first + PLACES], PLACES, PLACES)
    ]
    return (
        [[work.name for work in step] for step in steps] for steps in (static, plan(requests, PLACES, PLACES))
    )


def places(steps: SequenceOf[SequenceOf[str]]) -> dict[str, tuple[int, int, int]]:
    """For each request its place in the batch, its first step and the step after its last one."""
    held: dict[int, str] = {}
    spans: dict[str, tuple[int, int, int]] = {}
    for number, names in enumerate(steps):
        held = {place: name for place, name in held.items() if name in names}
        for name in names:
            if name not in spans:
                place = min(set(range(PLACES)) - held.keys())
                held[place], spans[name] = name, (place, number, number)
            place, first, _ = spans[name]
            spans[name] = (place, first, number + 1)
    return spans


def batches(drawing: Drawing) -> str:
    """Eight requests in static batches and in continuous ones, step by step."""
    static, continuous = both()
    tokens = sum(LENGTHS)
    names = (f"Static batches: {len(static)} steps", f"Continuous batching: {len(continuous)} steps")
    for heading, steps in zip(names, (static, continuous), strict=True):
        idle = len(steps) * PLACES - tokens
        y = drawing.height + (26 if drawing.height else 0)
        drawing.text((0, y + 10), heading, "bold")
        drawing.text(
            (drawing.width, y + 10), f"{idle} of {len(steps) * PLACES} cells idle", "quiet small", "end"
        )
        _lanes(drawing, y + 26, steps, len(static))
    at = drawing.height + 14
    drawing.text((0, at), "Each row is a place in the batch.", "quiet small")
    drawing.text((drawing.width, at), "steps →", "quiet small", "end")
    return (
        f"{PLACES} places, requests of {', '.join(map(str, LENGTHS[:-1]))} and {LENGTHS[-1]} tokens. "
        f"Static batches wait for their slowest member and take {len(static)} steps. With continuous "
        f"batching a new request takes a place as soon as it is free, and all end after "
        f"{len(continuous)} steps."
    )


def _lanes(drawing: Drawing, y: float, steps: SequenceOf[SequenceOf[str]], num_columns: int) -> None:
    """One lane per place; a cell per step, dashed where nothing runs."""
    pitch, height = (drawing.width - 2) / num_columns, 24
    spans = places(steps)
    for place in range(PLACES):
        busy = [range(first, end) for at, first, end in spans.values() if at == place]
        idle = [step for step in range(len(steps)) if not any(step in each for each in busy)]
        for first in (step for step in idle if step - 1 not in idle):
            end = next(step for step in range(first, len(steps) + 1) if step not in idle)
            drawing.box((1 + first * pitch, y + place * 28), (end - first) * pitch - 1.5, height, "idle")
    for number, (name, (place, first, end)) in enumerate(sorted(spans.items())):
        corner = (1 + first * pitch, y + place * 28)
        words = name if drawing.is_narrow else f"{name}: {end - first} tokens" if end - first > 2 else name
        drawing.label(corner, ((end - first) * pitch - 1.5, height), words, f"h{number}", "bold small")


CHUNKED = (Asked("A", 7, 8), Asked("B", 5, 6, 1), Asked("L", 38, 3, 3))


def chunks(drawing: Drawing) -> str:
    """A long prompt in chunks, beside the decodes of others."""
    steps = plan(CHUNKED, 8, BUDGET)
    wide = (drawing.width - 34) / len(steps)
    slot, top = (15, 40)
    floor = top + BUDGET * slot
    drawing.text((0, 10), f"tokens computed per step, at most {BUDGET}", "bold")
    for number in range(0, BUDGET + 1, 4):
        drawing.line([(30, floor - number * slot), (drawing.width, floor - number * slot)], "grid")
        drawing.text((24, floor - number * slot), str(number), "quiet small", "end")
    told = []
    for step, works in enumerate(steps):
        x, y = 34 + step * wide, float(floor)
        drawing.text((x + wide / 2 - 2, floor + 14), str(step), "quiet small", "middle")
        for work in works:
            size = (work.stop - work.start) * slot
            y -= size
            kind = {"A": "h0", "B": "h2", "L": "h1"}[work.name]
            words = [work.name] if size == slot else [work.name, *_range(work, drawing.is_narrow)]
            drawing.label(
                (x, y + 1),
                (wide - 2, size - 2),
                words,
                kind,
                "tiny" if drawing.is_narrow or size == slot else "small",
            )
            if work.name == "L" and work.stop - work.start > 1:
                told.append(f"in step {step} tokens {work.start} to {work.stop - 1}")
    drawing.text((drawing.width, floor + 34), "steps →", "quiet small", "end")
    drawing.text((0, floor + 34), "One token is a decode, more are a prompt.", "quiet small")
    return (
        f"A step computes at most {BUDGET} tokens. The decodes of A and B take one token each. The prompt of "
        f"L has {CHUNKED[2].prompt} tokens and gets what is left: {', '.join(told)}. Then L decodes, too."
    )


def _range(work: Work, narrow: bool) -> list[str]:
    first, last = work.start, work.stop - 1
    return [f"{first}–{last}"] if narrow else ["tokens", f"{first}–{last}"]
