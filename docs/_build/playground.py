"""Serve a few prompts twice at once, in one piece and in blocks, and note every step for Home to draw.

The engine's own scheduler serves both: once over the engine's block manager, once over the simulator's
ReservedMemory, which keeps each request in one piece of slots. The model is a fake: a word is a token, and
the answers stand below. The build runs this file to record the scenes, and the browser to serve what
readers type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, cycle, islice
from typing import Any, NamedTuple

from minipaged.engine.block_manager import BlockManager
from minipaged.engine.request import Request, Sequence
from minipaged.engine.schedule import Schedule
from minipaged.engine.scheduler import Scheduler
from minipaged.reference import contiguous
from minipaged.reference.block_table import num_blocks_for
from minipaged.reference.slot_allocator import FirstFitAllocator
from minipaged.sampling_params import SamplingParams
from minipaged.simulator.reserved_memory import ReservedMemory

MOST_TOKENS = 32  # of a request, prompt and answer: the server's max_model_len
NAMES = "ABC"
BLOCK_SIZES = (1, 2, 4, 8, 16, 32)
POOLS = (32, 64, 96, 128)  # slots: any request fits into any of them
POLICIES = {
    "maximum": (contiguous.maximum, "the most that a request may need"),
    "power of two": (contiguous.power_of_two, "the prompt, and a power of two for the answer"),
    "exact": (contiguous.oracle, "exactly what it will fill, which no server can know"),
}
ANSWERS = (
    "Air sends blue light all over the sky , red less so .",
    "Write on it , wrap a gift or fold a boat .",
    "They read the sun , and remember the way back home .",
)


@dataclass(frozen=True)
class Settings:
    """What the reader chooses. A prompt goes with the number of tokens of its answer."""

    prompts: tuple[tuple[str, int], ...]
    block_size: int = 4
    num_slots: int = 64
    policy: str = "maximum"
    sharing: bool = False


QUESTIONS = (("Why is the sky so blue", 6), ("Name three uses of paper", 7), ("How do bees find home", 5))
BEGINNING = "Be kind and answer in one short line"
SCENES = {
    "Three short requests": Settings(QUESTIONS),
    "One beginning, stored once": Settings(
        tuple((f"{BEGINNING} {words}", length) for words, length in QUESTIONS), sharing=True
    ),
    "A pool too small": Settings(
        tuple((words, length + 5) for words, length in QUESTIONS), num_slots=32, policy="exact"
    ),
}


class Ask(NamedTuple):
    """A request to come, with the words that the fake model will answer."""

    name: str
    prompt: list[str]
    answer: list[str]


class OnePiece(ReservedMemory):
    """Reserved memory that rounds nothing up: a piece is as large as its policy asks, in the first gap."""

    def __init__(self, num_slots: int, policy: contiguous.Policy) -> None:
        super().__init__(num_slots, MOST_TOKENS, policy)
        self.pieces = contiguous.ContiguousCache(FirstFitAllocator(num_slots), policy)


class Side:
    """One memory, the engine's scheduler over it, and the requests that come, one per step."""

    def __init__(self, blocks: BlockManager, settings: Settings) -> None:
        self.blocks = blocks
        self.settings = settings
        self.scheduler = Scheduler(blocks, max_num_seqs=len(NAMES), max_num_batched_tokens=1024)
        self.asks = asks_of(settings)
        self.vocabulary: dict[str, int] = {}
        self.requests: dict[str, Request] = {}
        self.states = {ask.name: "later" for ask in self.asks}
        self.tokens = {ask.name: (0, 0) for ask in self.asks}  # in slots, and of them new in this step

    def frames(self) -> Iterator[dict[str, Any]]:
        """Serve everything, and yield the memory as each step leaves it; the last frame is after the end."""
        events: list[str] = []
        for step in count():
            if step < len(self.asks):
                self._arrive(self.asks[step])
            elif not any(self.scheduler.requests()):
                yield self._frame(events)
                return
            held = {name: self.place(request) for name, request in self.requests.items()}
            plan = self.scheduler.schedule()
            events += self._plan_events(plan, held)
            yield self._frame(events)
            events = self._compute(plan)

    def _arrive(self, ask: Ask) -> None:
        token_ids = [self._token(word) for word in ask.prompt]
        chain = self.blocks.new_chain(token_ids, None)
        table = self.blocks.new_table()
        sequence = Sequence(token_ids, chain, table, None, num_prompt_tokens=len(token_ids), seed=0)
        prompt = list(token_ids)
        request = Request(ask.name, None, prompt, SamplingParams(), len(ask.answer), [sequence], no_text)
        if isinstance(self.blocks, OnePiece):
            self.blocks.expect(sequence, len(ask.answer))
        self.scheduler.waiting.append(request)
        self.requests[ask.name] = request
        self.states[ask.name] = "arrived"

    def _token(self, word: str) -> int:
        return self.vocabulary.setdefault(word, len(self.vocabulary))

    def _plan_events(self, plan: Schedule, held: dict[str, list[int]]) -> list[str]:
        """What the step does, in words, and with it each request's state."""
        events = []
        for request in plan.preempted:
            self.states[request.request_id] = "waiting"
            self.tokens[request.request_id] = (0, 0)
            events.append(self.words("gives way", request, held[request.request_id]))
        for row in plan.rows:
            name, was = row.request.request_id, self.states[row.request.request_id]
            self.states[name], self.tokens[name] = "running", (row.stop, row.stop - row.start)
            if was != "running":
                verb = "arrives with" if was == "arrived" else "starts with"
                events.append(f"{name} {verb} {row.stop} tokens, {self.words('takes', row.request)}.")
            elif len(self.place(row.request)) > len(held[name]):
                events.append(self.words("grows", row.request, held[name]))
        for request in self.scheduler.waiting:
            if self.states[request.request_id] == "arrived":
                self.states[request.request_id] = "waiting"
                events.append(f"{request.request_id} arrives, and {self.words('waits', request)}.")
        return events

    def _compute(self, plan: Schedule) -> list[str]:
        """Let the fake model answer every row with its next word. Returns who has ended, in words."""
        events = []
        for row in plan.rows:
            request, sequence = row.request, row.sequence
            self.blocks.publish(sequence, row.stop)
            ask = next(ask for ask in self.asks if ask.name == request.request_id)
            sequence.token_ids.append(self._token(ask.answer[sequence.num_output_tokens]))
            if sequence.num_output_tokens == request.max_tokens:
                events.append(self.words("ends", request))
                self.scheduler.finish(request)
                self.states[ask.name], self.tokens[ask.name] = "ended", (0, 0)
        return events

    def _frame(self, events: list[str]) -> dict[str, Any]:
        rows = []
        for ask in self.asks:
            state = self.states[ask.name]
            request = self.requests.get(ask.name)
            note = self.words("waits", request) if request and state == "waiting" else ""
            place = self.place(request) if request and state == "running" else []
            rows.append([state, *self.tokens[ask.name], place, note])
        return {"requests": rows, "events": list(events), **self.counts()}

    def place(self, request: Request) -> list[int]:
        """Where a request's tokens are: nothing, if they are nowhere."""
        raise NotImplementedError

    def counts(self) -> dict[str, Any]:
        """Slots that hold a token, that are taken and empty, and that are free."""
        raise NotImplementedError

    def words(self, event: str, request: Request, held: list[int] | None = None) -> str:
        """An event of this memory in words; held: where the request's tokens were before the step."""
        raise NotImplementedError


class InOnePiece(Side):
    """Every request reserves slots side by side before it starts. Its place is [start, number of slots]."""

    blocks: OnePiece

    def __init__(self, settings: Settings) -> None:
        super().__init__(OnePiece(settings.num_slots, POLICIES[settings.policy][0]), settings)

    def place(self, request: Request) -> list[int]:
        """The piece of a request."""
        sequence = request.sequences[0]
        return list(self.blocks.pieces.piece(sequence)) if sequence in self.blocks.pieces else []

    def counts(self) -> dict[str, Any]:
        """As reference/contiguous.py counts them; gaps too small for the next in line are free here."""
        usage = self.blocks.usage(None)
        empty = usage.reserved + usage.internal
        return {"filled": usage.tokens, "empty": empty, "free": usage.free, "saved": 0, "cached": []}

    def words(self, event: str, request: Request, held: list[int] | None = None) -> str:
        """An event in words."""
        name, pieces = request.request_id, self.blocks.pieces
        if event == "takes":
            return f"and takes {self.place(request)[1]} slots: {POLICIES[self.settings.policy][1]}"
        if event == "ends":
            return f"{name} has ended, and gives its {self.place(request)[1]} slots back."
        sequence = request.sequences[0]
        final = sequence.num_prompt_tokens + request.max_tokens - 1
        needed = pieces.policy(sequence.num_tokens, final, MOST_TOKENS)
        gap = pieces.allocator.largest_free
        return f"waits for {needed} free slots side by side: the largest gap has {gap}"


class InBlocks(Side):
    """Every request has a block table, which is its place, and takes a block when it has a token for it."""

    def __init__(self, settings: Settings) -> None:
        num_blocks = settings.num_slots // settings.block_size
        super().__init__(
            BlockManager(num_blocks, settings.block_size, enable_prefix_caching=settings.sharing), settings
        )
        # Others were here before: the free blocks lie in no order.
        for block in sorted(self.blocks.allocator.allocate(num_blocks), key=lambda b: (b * 7 + 4) % 17):
            self.blocks.allocator.free([block])

    def place(self, request: Request) -> list[int]:
        """The block table of a request."""
        return list(request.sequences[0].table.blocks)

    def counts(self) -> dict[str, Any]:
        """Count the slots. Without sharing, `saved` more of them would be taken."""
        running = [request.sequences[0] for request in self.scheduler.running]
        entries = sum(len(sequence.table) for sequence in running)
        size, in_use = self.settings.block_size, self.blocks.allocator.num_in_use
        empty = sum(sequence.table.num_empty_slots for sequence in running)  # never in a shared block
        return {
            "filled": in_use * size - empty,
            "empty": empty,
            "free": self.blocks.num_available * size,
            "saved": (entries - in_use) * size,
            "cached": self.blocks.cache.cached_blocks,
        }

    def words(self, event: str, request: Request, held: list[int] | None = None) -> str:
        """An event in words."""
        name, table = request.request_id, self.place(request)
        num_held = _blocks(len(held or table))
        if event == "takes":
            num_shared = sum(self.blocks.allocator.reference_count(block) > 1 for block in table)
            if num_shared:
                return f"shares {_blocks(num_shared)} and takes {len(table) - num_shared} of its own"
            return f"and takes {_blocks(len(table))}"
        if event == "grows":
            token = request.sequences[0].table.num_tokens
            return f"Token {token} of {name} finds {num_held} full, and takes block {table[-1]}."
        if event == "gives way":
            return f"No block is free: {name} gives its {num_held} up, and will compute them again."
        if event == "ends":
            kept = " Its full blocks can still be found." if self.settings.sharing else ""
            return f"{name} has ended, and gives its {num_held} back.{kept}"
        needed = num_blocks_for(request.sequences[0].num_tokens, self.settings.block_size)
        needed -= len(self.blocks.cache.lookup(request.sequences[0].chain))
        spare = self.scheduler.num_spare_blocks
        return f"waits for {_blocks(needed)} and {spare} to spare: {self.blocks.num_available} free"


def no_text() -> Any:
    """Stand in for a detokenizer: the words are known."""


def _blocks(number: int) -> str:
    return _number_of(number, "block")


def _number_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def asks_of(settings: Settings) -> list[Ask]:
    """The requests to come. Raises ValueError, in words for the reader, for settings that make no sense."""
    asks = []
    for name, (text, length), answer in zip(NAMES, settings.prompts, ANSWERS, strict=False):
        words = text.split()
        if words:
            check_lengths(name, len(words), length)
            asks.append(Ask(name, words, list(islice(cycle(answer.split()), length))))
    if not asks:
        raise ValueError("Write a prompt: one word is enough.")
    return asks


def check_lengths(name: str, num_words: int, length: int) -> None:
    """Raise ValueError, in words for the reader, for an answer that is too short or too long."""
    if length < 1:
        raise ValueError(f"{name}: an answer of {length} tokens. An answer has at least 1 token.")
    if num_words + length > MOST_TOKENS:
        raise ValueError(
            f"{name}: {_number_of(num_words, 'word')} and an answer of {_number_of(length, 'token')} are "
            f"{num_words + length} tokens. The limit for both together is {MOST_TOKENS} tokens."
        )


def record(settings: Settings) -> dict[str, Any]:
    """Serve the requests on both sides. The shorter run stays as it ended until the longer one has ended."""
    one_piece, in_blocks = (list(side(settings).frames()) for side in (InOnePiece, InBlocks))
    length = max(len(one_piece), len(in_blocks))
    for frames in (one_piece, in_blocks):
        ended = {**frames[-1], "events": [f"All have ended, {len(frames) - 1} steps after the first came."]}
        frames += [ended] * (length - len(frames))
    gains = [_running(after) - _running(before) for before, after in zip(one_piece, in_blocks, strict=True)]
    return {
        "settings": asdict(settings),
        "asks": [[ask.name, ask.prompt + ask.answer] for ask in asks_of(settings)],
        "one_piece": one_piece,
        "in_blocks": in_blocks,
        "telling": gains.index(max(gains)),  # the step to open at: blocks serve the most more
    }


def _running(frame: dict[str, Any]) -> int:
    return sum(state == "running" for state, *_ in frame["requests"])


def recordings() -> str:
    """What the page needs before Python has arrived: the scenes by their names, and what can be chosen."""
    choices = {"block_size": BLOCK_SIZES, "num_slots": POOLS, "policy": [*POLICIES]}
    scenes = {name: record(settings) for name, settings in SCENES.items()}
    return json.dumps({"choices": choices, "scenes": scenes}, separators=(",", ":"))


def answer(chosen: str) -> str:
    """Serve what a reader chose: JSON in and out, {"error": in words} where it makes no sense."""
    try:
        settings = json.loads(chosen)
        settings["prompts"] = tuple((text, length) for text, length in settings["prompts"])
        return json.dumps(record(Settings(**settings)), separators=(",", ":"))
    except ValueError as error:
        return json.dumps({"error": str(error)})
