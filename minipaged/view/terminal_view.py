"""Draw block tables and the pool in the terminal, from the lines of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table as Grid
from rich.text import Text

from ..llm import LLM
from .replay import State, Table, replay

if TYPE_CHECKING:
    from ..terminal.console import DataConsole

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
CELLS_A_LINE = 32
COLUMNS = 10  # of a block table; the middle of a longer one is left out
LINES_OF_HISTORY = 10
KEY = (
    ": a letter is the owner, a digit the number of owners, · free, ○ cached for a prefix that may come again"
)


def draw_blocks(console: DataConsole, trace: str, labels: dict[str, str]) -> None:
    """Draw the tables and the pool at the step with most tables, and the pool over time.

    labels: the text to write beside the tables of a request, by its id.
    """
    run, states = replay(trace.strip().split("\n"))
    steps = [state for state in states if state.step is not None]
    if not steps:
        return
    peak = max(steps, key=lambda state: (len(state.in_pool), len(state.users)))
    size = max(max(state.users, default=0) for state in steps) + 1
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(labels)}
    console.rule(f"step {peak.step} of {steps[-1].step}: the block tables")
    for table in peak.in_pool:
        facts = f"{table.num_tokens} tokens in {len(table.blocks)} blocks"
        style = f"bold {colours.get(table.request, 'white')}"
        label = labels.get(table.request, table.name)
        console.write("\n", (table.name, style), f"  {label}  ", (facts, "dim"))
        console.print(_table_cells(peak, table, run["block_size"]))
    console.write(("\nThe pool", "bold"), KEY)
    for start in range(0, size, CELLS_A_LINE):
        cells = _pool_cells(peak, range(start, min(start + CELLS_A_LINE, size)), colours)
        console.print(Text(f"{start:5d}  ") + cells)
    blocks = range(min(size, CELLS_A_LINE * 2))
    console.write(("\nOver time", "bold"), f", blocks 0 to {blocks[-1]}:")
    every = -(-len(steps) // LINES_OF_HISTORY)
    for index in sorted({*range(0, len(steps), every), len(steps) - 1}):
        state = steps[index]
        console.print(Text(f"step {state.step:3d}  ") + _pool_cells(state, blocks, colours))


def print_summary(console: DataConsole, llm: LLM, seconds: float) -> None:
    """Print blocks, sharing, waste and speed of all that the engine has run, in a few lines."""
    stats = llm.stats()
    peak = llm.engine.usage.peak
    console.rule("summary")
    rows = {
        "blocks used": f"{peak.used} of {stats.num_blocks} at the fullest, {stats.block_size} tokens each "
        f"({peak.used * stats.bytes_per_block / 2**20:.1f} MiB)",
        "blocks shared": f"{peak.shared}, which saved {peak.saved} blocks",
        "waste": f"{stats.waste:.1%} of reserved slots held no token; reserving max_model_len="
        f"{llm.engine.max_model_len} for each request would have wasted {stats.waste_if_reserved:.1%}",
        "speed": f"{stats.num_generated_tokens / seconds:.0f} tokens/s: {stats.num_generated_tokens} tokens "
        f"in {seconds:.2f} s, {stats.num_steps} steps, {stats.num_preemptions} preemptions",
    }
    table = Grid(box=None, show_header=False, padding=(0, 1))
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), value)
    console.print(table)


def _table_cells(state: State, table: Table, block_size: int) -> Grid:
    """Return one sequence's block table: logical block, physical block, filled slots."""
    logical, physical, filled = ["  logical"], ["  physical"], ["  filled"]
    for i, block in enumerate(table.blocks):
        if len(table.blocks) > COLUMNS and COLUMNS // 2 <= i < len(table.blocks) - COLUMNS // 2:
            cells = ("…", "…", "") if i == COLUMNS // 2 else ()
        else:
            _, count = state.block_state(block)
            num_filled = max(0, min(block_size, table.num_tokens - i * block_size))
            cells = (f"{i}", f"{block}×{count}" if count > 1 else f"{block}", f"{num_filled}/{block_size}")
        for row, cell in zip((logical, physical, filled), cells, strict=False):
            row.append(cell)
    grid = Grid(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    grid.add_row(*logical, style="dim")
    grid.add_row(*physical)
    grid.add_row(*filled, style="dim")
    return grid


def _pool_cells(state: State, blocks: range, colours: dict[str, str]) -> Text:
    """Return some blocks of the pool, one character per block."""
    text = Text()
    for block in blocks:
        kind, count = state.block_state(block)
        if count == 1:
            (owner,) = state.users[block]
            text.append(owner.name[0], style=colours.get(owner.request, "white"))
        elif count:
            text.append(str(min(count, 9)), style="bold reverse")
        else:
            text.append("○" if kind == "cached" else "·", style="dim")
    return text
