"""Tables of what the benchmarks measured, made of the files in benchmarks/results/: no figure is typed in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = {
    "minipaged": "minipaged",
    "hf-1": "Hugging Face, one at a time",
    "hf-8": "Hugging Face, batches of 8",
    "hf-32": "Hugging Face, batches of 32",
    "hf-32-moved": "the same, weights in huge pages",
}


def table(path: Path, part: str = "") -> str:
    """The table of one file, and below it where and when. Raises LookupError for a file of unknown kind.

    part: of the paper's figures, which.
    """
    results = json.loads(path.read_text(encoding="utf-8"))
    if part:
        return _paper(results, part)
    make = MAKERS[path.stem.partition("-")[2]]
    return f"{make(results)}\n\n{_where(results)}"


def _paper(results: dict[str, Any], part: str) -> str:
    """All tables of one figure, the paper's numbers beside ours."""
    tables = [_figure(figure) for figure in results["figures"] if figure["name"] == part]
    if not tables:
        raise LookupError(f"no figure {part} was measured")
    date = next(figure["date"] for figure in results["figures"] if figure["name"] == part)
    return "\n\n".join([*tables, _where(results | {"date": date})])


def _figure(figure: dict[str, Any]) -> str:
    rows = [[row["what"], row["paper"], row["ours"]] for row in figure["rows"]]
    remark = f"\n\n*{figure['remark']}*" if figure["remark"] else ""
    return f"**{figure['title']}**\n\n{_rows(['', 'paper', 'here'], rows)}{remark}"


def _huggingface(results: dict[str, Any]) -> str:
    rows = [
        [
            NAMES.get(name, name),
            f"{each['tokens_per_second']:.1f}",
            f"{each['ratio_to_best_hf']:.2f}",
            f"{each['memory']['run_bytes'] / 2**20:,.0f}",
            f"{each['kv_cache']['waste']:.1%}",
        ]
        for name, each in results["systems"].items()
    ]
    return _rows(["", "tokens/s", "× best Hugging Face", "memory of the run, MiB", "KV slots wasted"], rows)


def _prefix(results: dict[str, Any]) -> str:
    first = results["first_token"]
    row = [
        f"{1000 * first['seconds_with_cache']:.0f} ms",
        f"{1000 * first['seconds_without']:.0f} ms",
        f"{first['ratio']:.1f} ×",
        f"{first['same_tokens']} of {first['num_requests']}",
    ]
    return _rows(["first token, cached prefix", "without", "faster", "answers the same"], [row])


def _bookkeeping(results: dict[str, Any]) -> str:
    rows = [
        [
            f"{each['num_sequences']:,}",
            f"{1e6 * each['bookkeeping']:,.0f}",
            f"{1e6 * each['bookkeeping'] / each['num_sequences']:.1f}",
            f"{each['calls_per_sequence']:.0f}",
        ]
        for each in results["steps"]
    ]
    head = ["running sequences", "bookkeeping of a step, µs", "each, µs", "function calls each"]
    return _rows(head, rows)


def _preemption(results: dict[str, Any]) -> str:
    rows = [
        [
            str(each["block_size"]),
            str(each["num_copies"]),
            f"{1e3 * each['out']:.1f}",
            f"{1e3 * each['in']:.1f}",
            f"{1e3 * each['recompute']:.0f}",
        ]
        for each in results["sequence"]
    ]
    return _rows(["block size", "copies", "swap out, ms", "swap in, ms", "recompute, ms"], rows)


def _peers(results: dict[str, Any]) -> str:
    loads = results["loads"]
    names = next(iter(loads.values()))
    rows = [[name, *(_speed(loads[load][name]) for load in loads)] for name in names]
    return _rows(["output tokens/s, median (lowest to highest)", *loads], rows)


def _speed(row: dict[str, Any]) -> str:
    if "reason" in row:
        return str(row["reason"])
    if row.get("runs") == 1:
        return f"{row['tokens_per_second']:.1f} (one run)"
    return f"{row['tokens_per_second']:.1f} ({row['lowest']:.1f} to {row['highest']:.1f})"


def _step(results: dict[str, Any]) -> str:
    rows = [
        [
            f"{each['dtype']}, {each['weights']}",
            str(each["sequences"]),
            f"{each['step_ms']:.1f}",
            f"{each['linear_ms']:.1f}",
            f"{each['limit_ms']:.1f}",
            f"{each['step_ms'] / each['limit_ms']:.1f}",
        ]
        for each in results["steps"]
    ]
    limits = ", ".join(f"{name}: {value:.1f}" for name, value in results["limits"].items())
    head = ["weights", "sequences", "step, ms", "linear layers, ms", "limit, ms", "step / limit"]
    return f"{_rows(head, rows)}\n\nWhat the machine can do at most, as measured in the same run: {limits}."


MAKERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "huggingface": _huggingface,
    "prefix": _prefix,
    "preemption": _preemption,
    "bookkeeping": _bookkeeping,
    "peers": _peers,
    "step": _step,
}


def _rows(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _where(results: dict[str, Any]) -> str:
    machine = results["machine"]
    gpu = machine["gpu"] or "no GPU"
    return f"*{machine['cpu']}, {machine['cores']} cores, {gpu}; {results['date'][:10]}.*"
