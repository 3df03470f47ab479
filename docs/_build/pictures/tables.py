"""A picture of two tables: what an operating system does for a process, and an engine for a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.block_table import BlockTable

from .svg import Drawing, Point


class Side(NamedTuple):
    """One half of the picture of tables: an operating system, or an engine."""

    names: tuple[str, str, str, str]  # who, its logical units, the table, the physical units
    unit: tuple[str, str]  # one logical, one physical
    address: tuple[str, str]  # what a position is called, before and after
    table: BlockTable
    free: Sequence[int]
    position: int


def scattered(
    block_size: int, blocks: Sequence[int], num_tokens: int, left: int
) -> tuple[BlockTable, list[int]]:
    """A table in a pool of eight that others have used: each block is free just when it is needed."""
    pool = BlockAllocator(8)
    pool.allocate(8)
    table = BlockTable(block_size)
    for block in blocks:
        pool.free([block])
        table.append(min(block_size, num_tokens - table.num_tokens), pool.allocate(1))
    pool.free([left])
    return table, pool.free_order()


def sides() -> list[Side]:
    """A process with pages of 4,096 bytes, and a sequence with blocks of four tokens."""
    pages, free_frames = scattered(4096, (6, 3, 1), 10_000, 4)
    blocks, free_blocks = scattered(4, (5, 2, 7), 9, 3)
    return [
        Side(("a process", "virtual pages", "page table", "physical memory"), ("page", "frame"),
             ("virtual address", "physical address"), pages, free_frames, 4500),
        Side(("a sequence", "logical blocks", "block table", "pool"), ("logical block", "physical block"),
             ("position", "slot"), blocks, free_blocks, 5),
    ]  # fmt: skip


def page_tables(drawing: Drawing) -> str:
    """An operating system's page table beside a sequence's block table."""
    words = []
    for number, side in enumerate(sides()):
        corner = (0.0, drawing.height + 30 if number else 0.0) if drawing.is_narrow else (number * 376.0, 0.0)
        _half(drawing, corner, side)
        entries = ", ".join(f"{side.unit[0]} {i} in {b}" for i, b in enumerate(side.table.blocks))
        words.append(f"The {side.names[2]} has {entries}. {'. '.join(translation(side))}.")
    return " ".join(words)


def translation(side: Side) -> list[str]:
    """How a position becomes a place in memory, in three lines."""
    size, position = side.table.block_size, side.position
    index, offset = divmod(position, size)
    block = side.table.blocks[index]
    return [
        f"{side.address[0]} {position:,} = {index} × {size:,} + {offset}",
        f"entry {index} names {side.unit[1]} {block}",
        f"{side.address[1]} {block} × {size:,} + {offset} = {side.table.slot(position):,}",
    ]


def _half(drawing: Drawing, corner: Point, side: Side) -> None:
    """Logical units, the table, and physical units, with arrows from left to right."""
    x, y = corner
    blocks, wanted = side.table.blocks, side.position // side.table.block_size
    top = y + 52
    for at, name, anchor in ((x + 16, side.names[0], "start"), (x + 340, side.names[3], "end")):
        drawing.text((at, y + 10), name, "bold", anchor)
    drawing.text((x + 16, y + 30), side.names[1], "quiet small")
    drawing.text((x + 340, y + 30), f"{side.unit[1]}s", "quiet small", "end")
    drawing.text((x + 165, top + 62), side.names[2], "bold", "middle")
    for index, block in enumerate(blocks):
        row, at = top + 82 + index * 34, top + block * 34
        lit = "lit" if index == wanted else "h0"
        drawing.text((x, row + 15), str(index), "quiet small")
        _unit(drawing, (x + 16, row), side, index)
        drawing.label((x + 142, row), (46, 30), str(block), lit, "bold")
        drawing.arrow([(x + 112, row + 15), (x + 140, row + 15)], lit)
        drawing.curve((x + 188, row + 15), (x + 230, at + 15), lit)
        _unit(drawing, (x + 232, at), side, index)
    for block in set(range(8)) - set(blocks):
        drawing.label((x + 232, top + block * 34), (92, 30), "free" if block in side.free else "others",
                      "idle" if block in side.free else "plate", "quiet small")  # fmt: skip
    for block in range(8):
        drawing.text((x + 340, top + block * 34 + 15), str(block), "quiet small", "end")
    for number, line in enumerate(translation(side)):
        drawing.text((x + 16, top + 292 + number * 20), line, "small accent" if number == 2 else "small")


def _unit(drawing: Drawing, corner: Point, side: Side, index: int) -> None:
    """A page in one piece, or a block with its slots; where the position lies is marked."""
    x, y = corner
    size = side.table.block_size
    if size > 4:
        drawing.label(corner, (92, 30), f"{side.unit[0]} {index}", "h0", "small")
        if index == side.position // size:
            mark = x + 92 * (side.position % size) / size
            drawing.line([(mark, y), (mark, y + 30)], "lit thick")
        return
    for position in range(index * size, (index + 1) * size):
        kind = "lit" if position == side.position else "h0" if position < side.table.num_tokens else "idle"
        words = str(position) if position < side.table.num_tokens else ""
        drawing.label((x + 23 * (position % size), y), (23, 30), words, kind, "small")
