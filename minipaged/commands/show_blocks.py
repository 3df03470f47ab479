"""Draw block tables and the pool in the terminal, as they were while the engine ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from ..engine.engine import LLMEngine
from ..engine.scheduler import Schedule
from ..llm import LLM
from ..terminal.console import DataConsole

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red", "bright_cyan", "bright_magenta")
CELLS_A_LINE = 32
COLUMNS = 10  # of a block table; the middle of a longer one is left out
LINES_OF_HISTORY = 10


@dataclass(frozen=True)
class Snapshot:
    """The pool in one step: each request's table, and the blocks that nobody uses but a prefix may need."""

    step: int
    tables: dict[str, tuple[list[int], int]]  # request id, and number of the sequence -> (blocks, tokens)
    cached: frozenset[int]

    @property
    def users(self) -> dict[int, list[str]]:
        """Who names each block."""
        users: dict[int, list[str]] = {}
        for name, (blocks, _) in self.tables.items():
            for block in blocks:
                users.setdefault(block, []).append(name)
        return users


class BlockRecorder:
    """Watches an engine and remembers the pool at every step."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.snapshots: list[Snapshot] = []
        engine.observers.append(self._observe)

    def draw(self, console: DataConsole, labels: dict[str, str]) -> None:
        """The tables and the pool when most requests ran, and the pool over time."""
        if not self.snapshots:
            return
        peak = max(self.snapshots, key=lambda snapshot: (len(snapshot.tables), len(snapshot.users)))
        size = max((max(s.users, default=0) for s in self.snapshots), default=0) + 1
        colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(labels)}
        console.rule(f"step {peak.step} of {self.snapshots[-1].step}: the block tables")
        for name in peak.tables:
            owner = name.partition(".")[0]  # a request that has several sequences has numbered tables
            self._draw_table(console, peak, name, labels.get(owner, name), colours.get(owner, "white"))
        console.write(
            ("\nThe pool", "bold"),
            ": a letter is the owner, a digit the number of owners, "
            "· free, ○ cached for a prefix that may come again",
        )
        for start in range(0, size, CELLS_A_LINE):
            cells = _cells(peak, start, min(start + CELLS_A_LINE, size), colours)
            console.print(Text(f"{start:5d}  ") + cells)
        console.write(("\nOver time", "bold"), f", blocks 0 to {min(size, CELLS_A_LINE * 2) - 1}:")
        every = max(1, -(-len(self.snapshots) // LINES_OF_HISTORY))
        for index in sorted({*range(0, len(self.snapshots), every), len(self.snapshots) - 1}):
            snapshot = self.snapshots[index]
            cells = _cells(snapshot, 0, min(size, CELLS_A_LINE * 2), colours)
            console.print(Text(f"step {snapshot.step:3d}  ") + cells)

    def _observe(self, step: Schedule) -> None:
        blocks = self.engine.blocks
        tables = {}
        for request in self.engine.scheduler.running:
            for sequence in request.unfinished:
                name = request.request_id
                name += f".{sequence.index}" if request.num_sequences > 1 else ""
                tables[name] = (list(sequence.table.blocks), sequence.table.num_tokens)
        cached = frozenset(
            block
            for block in range(min(blocks.num_blocks, 4096))
            if blocks.cache.is_findable(block) and blocks.cache.reference_count(block) == 0
        )
        self.snapshots.append(Snapshot(len(self.snapshots) + 1, tables, cached))

    def _draw_table(self, console: DataConsole, peak: Snapshot, name: str, label: str, colour: str) -> None:
        """One request's block table: logical block, physical block, slots filled."""
        blocks, num_tokens = peak.tables[name]
        size = self.engine.config.block_size
        counts = Counter(block for table, _ in peak.tables.values() for block in table)
        facts = f"{num_tokens} tokens in {len(blocks)} blocks"
        console.write("\n", (name, f"bold {colour}"), f"  {label}  ", (facts, "dim"))
        logical, physical, filled = ["  logical"], ["  physical"], ["  filled"]
        for i, block in enumerate(blocks):
            if len(blocks) > COLUMNS and COLUMNS // 2 <= i < len(blocks) - COLUMNS // 2:
                cells = ("…", "…", "") if i == COLUMNS // 2 else ()
            else:
                owners = f"×{counts[block]}" if counts[block] > 1 else ""
                cells = (f"{i}", f"{block}{owners}", f"{min(size, num_tokens - i * size)}/{size}")
            for row, cell in zip((logical, physical, filled), cells, strict=False):
                row.append(cell)
        table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
        table.add_row(*logical, style="dim")
        table.add_row(*physical)
        table.add_row(*filled, style="dim")
        console.print(table)


def print_summary(console: DataConsole, llm: LLM, seconds: float) -> None:
    """Blocks, sharing, waste and speed of everything the engine has run, in a few lines."""
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
    table = Table(box=None, show_header=False, padding=(0, 1))
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), value)
    console.print(table)


def _cells(snapshot: Snapshot, start: int, stop: int, colours: dict[str, str]) -> Text:
    """Blocks start to stop - 1, one character each."""
    text = Text()
    for block in range(start, stop):
        users = snapshot.users.get(block, [])
        if len(users) == 1:
            text.append(users[0][0], style=colours.get(users[0].partition(".")[0], "white"))
        elif users:
            text.append(str(min(len(users), 9)), style="bold reverse")
        else:
            text.append("○" if block in snapshot.cached else "·", style="dim")
    return text
