"""A trace says the text of each token whose K and V are in a slot."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.engine.schedule import Schedule
from minipaged.view.token_texts import TokenTexts
from minipaged.view.trace import Trace


class Numbers:
    """A tokenizer whose tokens are their numbers."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        """Return the text of some tokens."""
        return "".join(f"<{token_id}>" for token_id in token_ids)

    def convert_ids_to_tokens(self, token_id: int) -> str:
        """Return the piece that stands for a token."""
        return f"<{token_id}>"


def ask(engine: Any, request_id: str, rng: random.Random) -> None:
    """Add a request of one, two or three sequences, or a beam search; prompts begin alike."""
    prompt = [*range(10, 10 + rng.choice([0, 4, 9])), *(rng.randrange(3, 128) for _ in range(5))]
    params: Any = BeamSearchParams(beam_width=3, max_tokens=9)
    if rng.random() < 0.7:
        params = SamplingParams(n=rng.choice([1, 1, 2, 3]), max_tokens=rng.randrange(2, 24), seed=1)
    engine.add_request(request_id, prompt, params)


@pytest.mark.parametrize("swap", [True, False])
def test_the_texts_are_those_of_the_tokens_in_the_slots(swap: bool, start: Callable[..., LLM]) -> None:
    """Of requests that come, fork, are preempted and end, and whose ids are used again."""
    settings = {"preemption_mode": "swap", "swap_space": 65536} if swap else {}
    llm = start(max_num_batched_tokens=24, num_blocks=18, **settings)
    engine, file, rng, truth = llm.engine, io.StringIO(), random.Random(11), list[dict[str, list[str]]]()

    def note(step: Schedule) -> None:
        names = {row: row.request.request_id for row in step.rows}
        truth.append(
            {
                name + (f".{row.sequence.index}" if row.request.num_sequences > 1 else ""): [
                    f"<{token_id}>" for token_id in row.sequence.token_ids[: row.stop]
                ]
                for row, name in names.items()
            }
        )

    with Trace(engine, file) as trace:
        trace._token_texts = TokenTexts(Numbers())
        engine.observers.append(note)
        for _ in range(90):
            request_id = rng.choice("abcd")
            if request_id not in {request.request_id for request in engine.scheduler.requests()}:
                ask(engine, request_id, rng)
            engine.step()
    lines = [json.loads(line) for line in file.getvalue().splitlines()[1:]]
    texts: dict[str, list[str]] = {}
    for line, expected in zip(lines, truth, strict=False):
        for name in line.get("dropped", []):
            texts.pop(name, None)
        for name, (first, *added) in line.get("texts", {}).items():
            texts[name] = texts.get(name, [])[:first] + added
        assert {name: texts[name] for name in expected} == expected
    assert any("preempted" in line for line in lines) and any("moves" in line for line in lines)


def test_a_character_of_several_tokens_belongs_to_the_last() -> None:
    class Bytes(Numbers):
        def convert_ids_to_tokens(self, token_id: int) -> str:
            return f"<0x{token_id:02X}>"

        def decode(self, token_ids: list[int], **options: Any) -> str:
            return bytes(token_ids).decode("utf-8", "replace")

    class Sequence:
        token_ids = tuple("a안b".encode())

    texts, sequence = TokenTexts(Bytes()), Sequence()
    assert texts.of(sequence, 0, 2) == ["a", ""]  # type: ignore[arg-type]
    assert texts.of(sequence, 2, 5) == ["", "안", "b"]  # type: ignore[arg-type]
    assert TokenTexts(None).of(sequence, 0, 5) == []  # type: ignore[arg-type]
