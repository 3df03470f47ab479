"""The eight cards of the guided tour, each with the step of the recording that it explains.

tour.toml holds their texts, and no number is written there. This file finds steps and numbers in the trace.
If the trace has no such step, the build fails.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from minipaged.view.replay import State, Table, replay

Line = dict[str, Any]
TEXTS = Path(__file__).with_suffix(".toml")


class Moment(NamedTuple):
    """A step of the recording: the line of the trace, the state before it and the state after."""

    line: Line
    before: State
    after: State

    def table(self, name: str) -> Table:
        """Return the block table of a sequence after the step."""
        return next(table for table in self.after.tables if table.name == name)

    def new_blocks(self, name: str) -> list[int]:
        """Return the blocks that the step added to a table."""
        old = next((table.blocks for table in self.before.tables if table.name == name), [])
        return self.table(name).blocks[len(old) :]


def cards(trace: str) -> list[dict[str, Any]]:
    """Return the cards: title, text, step, the table to open, and blocks or parts to point at."""
    lines = trace.strip().split("\n")
    run, states = replay(lines)
    moments = list(map(Moment, map(json.loads, lines[1:]), [State(), *states], states))
    found = _moments(moments, run["block_size"])
    facts = _facts(found, run["block_size"])
    return [
        {
            "title": card["title"],
            "step": found[card["step"]].line["step"],
            "table": card["table"].format(**facts),
            "points": [each for name in card["points"] for each in _points(facts.get(name, name))],
            "text": " ".join(card["text"].format(**facts).split()),
        }
        for card in tomllib.loads(TEXTS.read_text(encoding="utf-8"))["card"]
    ]


def _moments(moments: list[Moment], size: int) -> dict[str, Moment]:
    """Return the steps of the cards."""

    def find(is_it: Callable[[Moment], bool]) -> Moment:
        return next(moment for moment in moments if is_it(moment))

    return {
        "first": find(lambda m: "A" in m.line.get("admitted", ())),
        "ninth": find(lambda m: m.table("A").num_tokens == 2 * size + 1),
        "second": find(lambda m: "B" in m.line.get("admitted", ())),
        "grown": find(lambda m: len(m.after.tables) == 2 and bool(m.new_blocks("A"))),
        "fork": find(lambda m: bool(m.line.get("moves"))),
        "hit": find(lambda m: "D" in m.line.get("admitted", ())),
        "preemption": find(lambda m: bool(m.line.get("preempted"))),
    }


def _facts(at: dict[str, Moment], size: int) -> dict[str, Any]:
    """Return the numbers and names of the texts."""
    arrival, table = at["first"].line["arrived"][0], at["first"].table("A").blocks
    _, source, copy, _ = at["fork"].line["moves"][0]
    named = {block: t for t in at["fork"].after.tables for block in t.blocks}
    (start, stop) = next(row[1:] for row in at["hit"].line["rows"] if row[0] == "D")
    (loser,) = at["preemption"].line["preempted"]
    lost = next(t.blocks for t in at["preemption"].before.tables if t.name == loser)
    winner = next(t.name for t in at["preemption"].after.tables if at["preemption"].new_blocks(t.name))
    return {
        "prompt": arrival["prompt"], "tokens": arrival["prompt_tokens"], "size": size, "needed": len(table),
        "head": table[0], "tail": table[1], "full": 2 * size, "most": size - 1,
        "third": at["ninth"].new_blocks("A")[0], "others": _blocks(at["second"].table("B").blocks),
        "fourth": at["grown"].new_blocks("A")[0], "copier": named[copy].name, "keeper": named[source].name,
        "shared": named[copy].blocks[0], "source": source, "copy": copy,
        "found": at["hit"].table("D").blocks[0], "num_found": start, "rest": stop - start,
        "winner": winner, "loser": loser, "lost": _blocks(lost),
        "last": at["preemption"].new_blocks(winner)[0],
    }  # fmt: skip


def _points(fact: Any) -> list[str]:
    """Return the blocks of a fact, or the name of a part."""
    return re.findall(r"\d+", f"{fact}") or [fact]


def _blocks(blocks: list[int]) -> str:
    *others, last = [f"@{block}" for block in blocks]
    return f"{', '.join(others)} and {last}" if others else last
