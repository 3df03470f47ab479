"""The eight cards of the guided tour, each with the step of the recording that it explains.

Nothing here knows a number: each card looks for its step in the trace and takes its numbers from there. A
card that finds no such step fails the build.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from minipaged.view.replay import State, Table, replay

Line = dict[str, Any]


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
    """Return the cards: title, text, step, the table to open, and what to point at.

    "@11" in a text stands for block 11, "#A" for request A. `points` holds block numbers and the names of
    parts.
    """
    lines = trace.strip().split("\n")
    run, states = replay(lines)
    moments = list(map(Moment, map(json.loads, lines[1:]), [State(), *states], states))
    size = run["block_size"]
    first = _find(moments, lambda m: "A" in m.line.get("admitted", ()))
    prompt = first.line["arrived"][0]
    ninth = _find(moments, lambda m: m.table("A").num_tokens == 2 * size + 1)
    second = _find(moments, lambda m: "B" in m.line.get("admitted", ()))
    grown = _find(moments, lambda m: len(m.after.tables) == 2 and bool(m.new_blocks("A")))
    fork = _find(moments, lambda m: bool(m.line.get("moves")))
    hit = _find(moments, lambda m: "D" in m.line.get("admitted", ()))
    preemption = _find(moments, lambda m: bool(m.line.get("preempted")))

    table, tokens = first.table("A").blocks, prompt["prompt_tokens"]
    _, source, copy, _ = fork.line["moves"][0]
    copier, keeper = sorted(
        (table for table in fork.after.tables if {source, copy} & set(table.blocks)),
        key=lambda table: copy not in table.blocks,
    )
    shared = copier.blocks[0]
    found = hit.table("D").num_tokens - next(r[2] - r[1] for r in hit.line["rows"] if r[0] == "D")
    (loser,) = preemption.line["preempted"]
    lost = next(table.blocks for table in preemption.before.tables if table.name == loser)
    winner = next(table.name for table in preemption.after.tables if preemption.new_blocks(table.name))
    return [
        _card(
            "One request", first, "A", ["table"],
            f"#A asks “{prompt['prompt']}”: {tokens} tokens. The model keeps a key and a value of each "
            f"token, and a slot holds them. A block is {size} slots, so #A needs {len(table)} blocks.",
        ),
        _card(
            "Its block table", first, "A", table,
            f"To #A its blocks are numbered 0 and 1: these are logical blocks. The block table says where "
            f"they lie: logical block 0 is physical block @{table[0]}, and logical block 1 is @{table[1]}. "
            "Other requests have used this pool, so the first free block was not block @0.",
        ),
        _card(
            "The ninth token", ninth, "A", ninth.new_blocks("A"),
            f"{2 * size} tokens fill both blocks. The next token needs a slot, so the engine takes one more "
            f"block from the pool: @{ninth.new_blocks('A')[0]}. It reserved nothing before, so at most "
            f"{size - 1} slots of #A are empty.",
        ),
        _card(
            "A second request", grown, "A", [*second.table("B").blocks, *grown.new_blocks("A")],
            f"#B came and took blocks {_blocks(second.table('B').blocks)}. Now #A needs a block again and "
            f"gets @{grown.new_blocks('A')[0]}, far from its others. The pool is fragmented, and no memory "
            "is lost: the table keeps the order.",
        ),
        _card(
            "A fork", fork, copier.name, [shared],
            f"#C wants two answers to one prompt. The tables of {copier.name} and {keeper.name} both name "
            f"block @{shared}, so these {size} tokens are stored once. “C ×2” says that two tables of #C "
            "name this block.",
        ),
        _card(
            "A copy", fork, copier.name, [source, copy],
            f"Block @{source} was shared too, but it is not full, and each answer now writes its own token "
            f"into it. So {copier.name} first gets a copy, block @{copy}, and {keeper.name} keeps block "
            f"@{source}. This is copy-on-write.",
        ),
        _card(
            "A hit", hit, "D", hit.table("D").blocks[: found // size],
            f"#D begins with the same {found} tokens as #A. Their keys and values are in block "
            f"@{hit.table('D').blocks[0]} already. The table of #D names it, and the engine computes only "
            f"the other {hit.table('D').num_tokens - found} tokens of the prompt.",
        ),
        _card(
            "A preemption", preemption, winner, preemption.new_blocks(winner),
            f"#{winner} needs a block, and the pool has no free one. The youngest request, #{loser}, gives "
            f"up blocks {_blocks(lost)} and waits. Block @{lost[0]} stays with #A, which still uses it. "
            f"Later #{loser} is computed again.",
        ),
    ]  # fmt: skip


def _find(moments: list[Moment], is_it: Callable[[Moment], bool]) -> Moment:
    return next(moment for moment in moments if is_it(moment))


def _card(title: str, moment: Moment, table: str, points: list[Any], text: str) -> dict[str, Any]:
    return {
        "title": title, "step": moment.line["step"], "table": table, "points": [f"{p}" for p in points],
        "text": text,
    }  # fmt: skip


def _blocks(blocks: list[int]) -> str:
    *others, last = [f"@{block}" for block in blocks]
    return f"{', '.join(others)} and {last}" if others else last
