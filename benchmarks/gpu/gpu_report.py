"""What the GPU check computes and writes: floors, the table, the outcomes of the tests, and the JSON file.

Nothing here needs a GPU.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Timing:
    """One thing that was timed, in microseconds; None where there is nothing to compare with."""

    group: str = ""
    case: str = ""
    ours_us: float | None = None  # on the device, launch to end
    torch_us: float | None = None  # torch's own way to the same result, in the same rounds
    floor_us: float | None = None  # what the device's own measured rates allow
    host_us: float | None = None  # until the call returns
    failure: str = ""  # why there is no time

    @property
    def to_torch(self) -> float | None:
        """torch's time over ours: above 1 we are faster."""
        return self.torch_us / self.ours_us if self.torch_us and self.ours_us else None

    @property
    def of_floor(self) -> float | None:
        """The floor over our time: 1 is as fast as the device can be."""
        return self.floor_us / self.ours_us if self.floor_us and self.ours_us else None


def kv_bytes(batch: int, context: int, num_kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Bytes of K and V that a decode step can't avoid to read."""
    return 2 * batch * context * num_kv_heads * head_dim * itemsize


def causal_flops(batch: int, length: int, num_heads: int, head_dim: int) -> int:
    """Operations of causal attention: for each visible pair, head_dim products and sums for K, and for V."""
    return batch * num_heads * 4 * head_dim * (length * (length + 1) // 2)


def floor_us(amount: float, rate: float) -> float:
    """Microseconds that an amount (bytes, operations) takes at a rate a second."""
    return 1e6 * amount / rate


def table(rows: Sequence[Timing]) -> str:
    """The rows for people, a section for each group; a loss to torch is called slower, a win faster."""
    head = ["", "ours µs", "torch µs", "torch/ours", "", "floor µs", "floor/ours", "host µs"]
    lines = []
    for group in dict.fromkeys(row.group for row in rows):
        cells = [head] + [_cells(row) for row in rows if row.group == group]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines += ["", group]
        for line in cells:
            first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            lines.append("  ".join(["  " + line[0].ljust(len(first)), *rest]).rstrip())
        lines += [f"  {row.case}: {row.failure}" for row in rows if row.group == group and row.failure]
    return "\n".join(lines)


def _cells(row: Timing) -> list[str]:
    verdict = "" if row.to_torch is None else "faster" if row.to_torch > 1 else "slower"
    return [
        row.case,
        _number(row.ours_us, 1),
        _number(row.torch_us, 1),
        _number(row.to_torch, 2),
        verdict,
        _number(row.floor_us, 1),
        _number(row.of_floor, 2),
        _number(row.host_us, 1),
    ]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def read_outcomes(lines: Iterable[str]) -> dict[str, Any]:
    """Counts, and the tests that failed, from what the plugin gpu_outcomes noted. A failure stays one."""
    outcomes: dict[str, tuple[str, str]] = {}
    for line in lines:
        test, outcome, why = json.loads(line)
        if outcomes.get(test, ("", ""))[0] != "failed":
            outcomes[test] = (outcome, why)
    counts = Counter(outcome for outcome, _ in outcomes.values())
    by_outcome = {
        kind: {test: why for test, (outcome, why) in outcomes.items() if outcome == kind}
        for kind in ("failed", "skipped")
    }
    return {kind: counts[kind] for kind in ("passed", "failed", "skipped")} | {
        "failures": by_outcome["failed"],
        "skips": dict(Counter(_skip_reason(why) for why in by_outcome["skipped"].values())),
    }


def _skip_reason(why: str) -> str:
    return why.removeprefix("Skipped: ") or "no reason given"


def print_outcomes(tests: dict[str, Any]) -> None:
    """The tests for people: counts, whether all came to an end, what failed and what was skipped."""
    ended = "" if tests["ended"] else f"; they ended early, after {tests['seconds']:.0f} s: not all have run"
    print(f"tests: {tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped{ended}")
    for name, why in tests["failures"].items():
        last = why.strip().splitlines()[-1] if why.strip() else "no reason given"
        print(f"  failed: {name}: {last}")
    for reason, times in tests["skips"].items():
        print(f"  skipped, {times}: {reason}")
    if tests["complaint"]:
        print(f"  pytest said: {tests['complaint']}")


def file_name(gpu: str) -> str:
    """gpu-<name>.json, the name in lower case with dashes: NVIDIA H200 is gpu-nvidia-h200.json."""
    slug = re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")
    return f"gpu-{slug or 'unknown'}.json"


def write(path: Path, machine: dict[str, Any], tests: dict[str, Any] | None, rates: dict[str, float],
          rows: Sequence[Timing]) -> None:  # fmt: skip
    """All of it as JSON; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    timings = [asdict(row) | {"to_torch": row.to_torch, "of_floor": row.of_floor} for row in rows]
    results = {"machine": machine, "tests": tests, "rates": rates, "timings": timings}
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
