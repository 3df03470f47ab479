"""A picture of waste: a strip of slots under one piece per request, and the same requests in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.block_table import BlockTable
from minipaged.reference.contiguous import ContiguousCache, maximum
from minipaged.reference.slot_allocator import FirstFitAllocator

from .svg import Drawing, Point

NUM_SLOTS, BLOCK_SIZE, WAITING = 64, 4, 16


class Run(NamedTuple):
    """Slots side by side of which the same is to be said."""

    num_slots: int
    kind: str
    words: str


def contiguous_runs() -> tuple[list[Run], tuple[int, ...]]:
    """A pool in which B has ended between A and C, as runs, and the library's account of it."""
    cache = ContiguousCache(FirstFitAllocator(NUM_SLOTS), maximum)
    lengths = {"A": (8, 14, 22), "B": (5, 10, 10), "C": (7, 13, 20)}  # tokens now, at the end, at most
    pieces = {name: cache.admit(name, *each) for name, each in lengths.items()}
    cache.free("B")
    runs = {}
    for name, (now, final, most) in lengths.items():
        if name in cache:
            runs[pieces[name].start] = [
                Run(now, "h0" if name == "A" else "h2", f"{name}: {now} tokens"),
                Run(final - now, "reserved", f"{final - now} reserved"),
                Run(most - final, "internal", f"{most - final} internal"),
            ]
    for gap in cache.allocator.free_pieces():
        runs[gap.start] = [Run(gap.num_slots, "external", f"{gap.num_slots} external")]
    return [run for start in sorted(runs) for run in runs[start]], tuple(cache.usage(waiting_for=WAITING))


def paged_runs() -> tuple[list[Run], int]:
    """The same requests in blocks, D among them, as runs, and how many blocks stay free."""
    pool = BlockAllocator(NUM_SLOTS // BLOCK_SIZE)
    tables = {"A": BlockTable(BLOCK_SIZE), "C": BlockTable(BLOCK_SIZE), "D": BlockTable(BLOCK_SIZE)}
    tables["A"].append(4, pool.allocate(1))
    gone = pool.allocate(2)  # B's
    tables["C"].append(7, pool.allocate(2))
    tables["A"].append(4, pool.allocate(1))
    pool.free(gone)
    tables["D"].append(9, pool.allocate(3))
    owners = {block: (name, i) for name, table in tables.items() for i, block in enumerate(table.blocks)}
    runs = []
    for block in range(pool.num_blocks):
        name, index = owners.get(block, ("", 0))
        filled = min(BLOCK_SIZE, tables[name].num_tokens - index * BLOCK_SIZE) if name else 0
        kind = {"A": "h0", "C": "h2", "D": "h1"}.get(name, "")
        runs += [Run(filled, kind, name)] if filled else []
        runs += [Run(BLOCK_SIZE - filled, "internal" if name else "", "")] if filled < BLOCK_SIZE else []
    return runs, pool.num_free


def waste_strip(drawing: Drawing) -> str:
    """Three kinds of waste in one strip of slots, and the same requests in blocks."""
    runs, (tokens, reserved, internal, external, free) = contiguous_runs()
    paged, free_blocks = paged_runs()
    drawing.text((0, 10), f"One piece per request: {NUM_SLOTS} slots", "bold")
    _strip(drawing, 28, runs, 0)
    y = drawing.height + 14
    lines = [f"D asks for a piece of {WAITING} slots: {external} are free, but no gap is that large."]
    if drawing.is_narrow:
        lines = lines[0].replace("slots: ", "slots:|").split("|")
    for line in lines:
        drawing.text((0, y), line, "accent")
        y += 20
    drawing.text((0, y + 22), f"The same {NUM_SLOTS} slots in blocks of {BLOCK_SIZE}", "bold")
    _strip(drawing, y + 40, paged, 3)
    y = drawing.height + 14
    empty = sum(run.num_slots for run in paged if run.kind == "internal")
    drawing.text((0, y), f"D runs. {empty} slots are empty, {free_blocks} blocks are free.", "accent")
    _key(drawing, y + 30)
    return (
        f"In one piece per request: {tokens} slots hold tokens, {reserved} are reserved for tokens to come, "
        f"{internal} are internal fragmentation, {external} are external fragmentation, {free} are free. "
        f"In blocks of {BLOCK_SIZE} all three fit: {empty} slots are empty, {free_blocks} blocks are free."
    )


def _strip(drawing: Drawing, y: float, runs: Sequence[Run], gap: float) -> None:
    """A row of slots, two on a phone, with a gap after each block, and below each run what it is."""
    per_row = NUM_SLOTS // 2 if drawing.is_narrow else NUM_SLOTS
    pitch, slot = (drawing.width - 2 - gap * per_row / BLOCK_SIZE) / per_row, 0
    for run in runs:
        for number in range(slot, slot + run.num_slots):
            column = number % per_row
            x, row = 1 + column * pitch + column // BLOCK_SIZE * gap, y + number // per_row * 56
            drawing.box((x, row), pitch - 1.5, 22, run.kind)
            _mark(drawing, (x, row), pitch - 1.5, run.kind)
        middle = (slot % per_row + run.num_slots / 2) * (pitch + gap / BLOCK_SIZE)
        at = (middle, y + slot // per_row * 56 + 34)
        if run.words:
            drawing.text(at, run.words, "small", "middle")
        slot += run.num_slots


def _mark(drawing: Drawing, corner: Point, width: float, kind: str) -> None:
    """A sign in a slot that says what its colour says: a dot, a cross, a stroke."""
    (x, y), middle = corner, width / 2
    if kind == "reserved":
        drawing.line([(x + middle - 1.5, y + 11), (x + middle + 1.5, y + 11)], "mark")
    if kind in ("internal", "external"):
        drawing.line([(x + 2, y + 17), (x + width - 2, y + 5)], "mark")
    if kind == "internal":
        drawing.line([(x + 2, y + 5), (x + width - 2, y + 17)], "mark")


def _key(drawing: Drawing, y: float) -> None:
    """What the signs mean."""
    kinds = {
        "reserved": "reserved: for tokens to come",
        "internal": "internal: never filled",
        "external": "external: too small for the next",
    }
    for number, (kind, words) in enumerate(kinds.items()):
        x, row = (0.0, y + 26 * number) if drawing.is_narrow else (number * 236.0, y)
        drawing.box((x, row - 11), 9.5, 22, kind)
        _mark(drawing, (x, row - 11), 9.5, kind)
        drawing.text((x + 18, row), words, "small quiet")
