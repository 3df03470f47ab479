"""What `minipaged bench` prints: the machine, the table of systems, and where a step's time goes."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from minipaged.terminal.console import DataConsole
from minipaged.terminal.results import empty_table

from ..shared.report import mebibytes
from .workload import ENGINE, MOVED, PROFILE

TITLES = {
    ENGINE: "minipaged",
    PROFILE: "minipaged, profiled",
    "hf-1": "HF, one at a time",
    "hf-8": "HF, batches of 8",
    "hf-32": "HF, batches of 32",
    MOVED: "the same, moved",
}


def print_head(console: DataConsole, results: dict[str, Any]) -> None:
    """The machine, the date and the requests, before anything runs."""
    machine, versions, settings = results["machine"], results["versions"], results["settings"]
    gpu = machine["gpu"] or "no GPU"
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['instructions']}, {gpu}; {results['date']}"
    )
    shown = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    console.print(shown, style="dim")
    console.print(
        f"{settings['model']}, {settings['dtype']}, greedy: {settings['num_requests']} requests, "
        f"prompts of {settings['min_prompt']} to {settings['max_prompt']} tokens, outputs of exactly "
        f"{settings['min_output']} to {settings['max_output']}, seed {settings['seed']}"
    )


def print_results(console: DataConsole, results: dict[str, Any]) -> None:
    """All that was measured, for people."""
    console.print(_systems_table(results))
    _print_notes(console, results)
    _print_agreement(console, results)
    console.print(_step_table(results["engine_step"]))


def _systems_table(results: dict[str, Any]) -> Table:
    columns = ("tokens/s", "seconds", "× HF", "peak\nMiB", "KV\nMiB", "KV\nwaste", "same")
    table = empty_table("One run: same requests, same threads", columns, label="system")
    for name, figures in results["systems"].items():
        compared = results["same_tokens_as_hf_1"].get(name)
        table.add_row(
            TITLES[name],
            f"{figures['tokens_per_second']:.1f}",
            f"{figures['seconds']:.1f}",
            f"{figures['ratio_to_best_hf']:.2f}",
            mebibytes(figures["memory"]["run_bytes"]),
            mebibytes(figures["kv_cache"]["reserved_bytes"]),
            f"{figures['kv_cache']['waste']:.1%}",
            str(len(compared["same"])) if compared else "–",
            style="bold" if name == ENGINE else None,
        )
    return table


def _print_notes(console: DataConsole, results: dict[str, Any]) -> None:
    """How to read the table."""
    workload, systems = results["workload"], results["systems"]
    engine, fastest = systems[ENGINE], systems[results["best_hf"]]
    cache = engine["kv_cache"]
    num_requests = len(workload["output_lengths"])
    notes = [
        f"tokens/s counts the {workload['num_output_tokens']} tokens asked for. HF is transformers' generate "
        "with its default cache. Its batches are formed in order of arrival, padded on the left, and run to "
        "the longest of their outputs.",
        f"× HF is the ratio to the fastest of the HF runs ({TITLES[results['best_hf']]}) as "
        "transformers loads it. The last row has its weights moved into huge pages, as minipaged does on "
        "a CPU.",
        "peak MiB is above what was in use before the run: "
        f"{mebibytes(engine['memory']['before_bytes'])} MiB for minipaged, "
        f"{mebibytes(fastest['memory']['before_bytes'])} MiB for HF, with weights of "
        f"{mebibytes(engine['weight_bytes'])} MiB.",
        "KV MiB is the most that was reserved: for minipaged the blocks in use (of a pool of "
        f"{mebibytes(cache['pool_bytes'])} MiB, whose unused blocks take no memory on a CPU), for HF the "
        "largest cache of a batch.",
        "KV waste is the share of reserved slots, over all steps, that hold no token, padding, or a token "
        "past the request's end. Had each request reserved the model's longest sequence, minipaged would "
        f"waste {cache['waste_if_reserved']:.1%}.",
        f"same counts the requests, of {num_requests}, whose tokens are those of HF one at a time.",
    ]
    for note in notes:
        console.print(note, style="dim")


def _print_agreement(console: DataConsole, results: dict[str, Any], most: int = 5) -> None:
    """Print where tokens differ from those of one request at a time, and how near the two choices were."""
    for name, compared in results["same_tokens_as_hf_1"].items():
        different = compared["different"]
        for case in different[:most]:
            console.print(
                f"{TITLES[name]}: request {case['request']} differs from output token {case['position']} on. "
                f"There the logits of the two choices are {case['logit_gap']:.1e} apart, the top two "
                f"{case['top2_gap']:.1e}."
            )
        if len(different) > most:
            console.print(f"{TITLES[name]}: {len(different) - most} more differ.")


def _step_table(profile: dict[str, Any]) -> Table:
    title = "Where minipaged's time goes (a run of its own, with stopwatches)"
    table = empty_table(title, ("seconds", "ms/step", "share"), label="part of a step")
    total = profile["step_seconds"]
    for name, seconds in profile["parts"].items():
        table.add_row(
            name, f"{seconds:.2f}", f"{1000 * seconds / profile['num_steps']:.2f}", f"{seconds / total:.1%}"
        )
    return table
