"""`minipaged simulate`: plan a server before you rent it.

How many requests fit at once? What rate is sustained at a latency? How much memory is wasted? Which block
size is best? Would prefix caching or swap pay? The answers come from the engine's own scheduler and block
manager, with a cost model in place of the GPU.
Page: docs/paper.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from ..terminal.console import DataConsole
from ..terminal.results import empty_table, output_file, write_results
from . import plots
from .cost_model import GIB
from .options import Options, setting_from, swap_space_from
from .processes import processes
from .systems import PAGED, SYSTEM_NAMES, SYSTEMS, Point, Setting, saturated, sustained_rate
from .workload import MOST_REQUESTS, Traffic

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


class Question(NamedTuple):
    """The work of one process: a system in one setting, under one workload, within one latency."""

    system: str
    setting: Setting
    traffic: Traffic
    target: float


class Answer(NamedTuple):
    """The rate that is sustained and the requests that then run; the same for a full server."""

    rate: float
    running: float
    full_rate: float
    full_running: float
    waste: float | None  # share of the pool that is taken and holds no token while requests wait
    num_preemptions: int
    least_latency: float  # seconds per token at the lowest rate tried
    cached: float  # share of prompt tokens found in the prefix cache
    points: list[Point]


def simulate(options: Options) -> None:
    """Simulate what the command line asks for, and print tables."""
    output = None if options.output is None else output_file(options.output)
    plot = plots.plot_file(options.plot)
    setting = setting_from(options)
    swap_space = swap_space_from(options, setting)
    traffic = Traffic(options.workload, options.minutes, setting.max_model_len)
    console = DataConsole()
    _print_server(console, setting, traffic)
    cases = _cases(setting, traffic.shares_prefixes, swap_space)
    questions = [Question(*case, traffic, options.latency_target) for case in cases.values()]
    with (
        processes(min(options.processes, len(cases))) as pool,
        console.status(f"simulating {len(cases)} settings ..."),
    ):
        answers = dict(zip(cases, pool(find_answer, questions), strict=True))
    _print_systems(console, answers, options.latency_target)
    _print_choices(console, answers)
    if output is not None:
        results = {
            "settings": asdict(options),
            "num_slots": setting.num_slots,
            "bytes_per_token": setting.shape.bytes_per_token,
            "answers": {name: answer._asdict() for name, answer in answers.items()},
        }
        write_results(console, output, results)
    if plot is not None:
        curves = {system: answers[system].points for system in SYSTEMS}
        title = f"{setting.shape.name}, {options.workload}"
        plots.draw_rates(plot, {title: curves}, options.latency_target)
        console.write((f"The picture is in {plot}.", "dim"))


def find_answer(question: Question) -> Answer:
    """Fill the pool, then search for the rate."""
    system, setting, traffic, target = question
    room = int(setting.num_slots / sum(traffic.mean_lengths))
    full = saturated(system, traffic.draw(min(max(1000, 4 * room), MOST_REQUESTS)), setting)
    full_rate = _steady_rate(full.latencies)
    sustained = sustained_rate(system, traffic.requests, setting, target, highest=2 * full_rate)
    return Answer(
        rate=min(sustained.rate, full_rate),
        running=sustained.mean_running,
        full_rate=full_rate,
        full_running=full.mean_running,
        waste=full.wasted,
        num_preemptions=full.num_preemptions,
        least_latency=sustained.points[0].latency,
        cached=full.num_cached_tokens / full.num_prompt_tokens if full.num_prompt_tokens else 0.0,
        points=sustained.points,
    )


def _steady_rate(ends: Sequence[float]) -> float:
    """Return the requests per second from the end of the first tenth to the last: no server sustains more.

    A queue may grow to the end of a short trace, which is no sustained rate. ends: in seconds, in order.
    """
    first, last = len(ends) // 10, len(ends) * 9 // 10
    if ends[first] == ends[last]:  # all in one step
        return len(ends) / ends[-1]
    return (last - first) / (ends[last] - ends[first])


def _cases(setting: Setting, shares_prefixes: bool, swap_space: int) -> dict[str, tuple[str, Setting]]:
    """Return each system and setting to simulate, by name."""
    cases = {system: (system, setting) for system in SYSTEMS}
    for size in sorted({*BLOCK_SIZES, setting.block_size}):
        if setting.num_slots // size * size >= setting.max_model_len:
            cases[f"block_size={size}"] = (PAGED, replace(setting, block_size=size))
    if shares_prefixes:
        cases["prefix caching"] = (PAGED, replace(setting, enable_prefix_caching=True))
    if swap_space:
        cases["swap"] = (PAGED, replace(setting, host_bytes=swap_space))
    return cases


# ------------------------------------------------------------------ what is printed


def _print_server(console: DataConsole, setting: Setting, traffic: Traffic) -> None:
    shape, server = setting.shape, setting.server
    prompt, output = traffic.mean_lengths
    console.print(
        f"{shape.name}: {shape.num_parameters / 1e9:.1f} billion parameters, "
        f"{shape.weight_bytes / GIB:.1f} GiB of weights in 16 bits; "
        f"{shape.bytes_per_token:,} bytes of KV cache a token.\n"
        f"{server.num_gpus} x {server.gpu.name}, {server.gpu.memory / GIB:.0f} GiB each: "
        f"{server.kv_bytes / GIB:.1f} GiB for the KV cache hold {setting.num_slots:,} tokens, "
        f"{setting.num_blocks:,} blocks of {setting.block_size}.\n"
        f"Requests of {traffic.workload}: {prompt:.1f} tokens in, {output:.1f} out on average; traces of "
        f"{traffic.minutes:g} minutes.\n"
    )


def _print_systems(console: DataConsole, answers: dict[str, Answer], target: float) -> None:
    columns = ("req/s", "at once", "at once, full", "wasted, full")
    table = empty_table("What each way to keep the cache carries", columns, label="")
    for system in SYSTEMS:
        answer = answers[system]
        name = "paged" if system == PAGED else SYSTEM_NAMES[system]
        shown = f"{answer.rate:.2f}", f"{answer.running:.1f}", f"{answer.full_running:.1f}"
        table.add_row(name, *shown, _share(answer.waste))
    console.print(table)
    console.print(
        f"req/s: the highest rate at which a request takes at most {target:g} s a token on average, and "
        "how many run at once then; never more than a full server ends. Full: all requests come at once. "
        "Wasted: what of the pool is taken and holds no token.\n",
        style="dim",
    )


def _print_choices(console: DataConsole, answers: dict[str, Answer]) -> None:
    columns = ("req/s", "req/s, full", "at once, full", "wasted, full", "preempted")
    table = empty_table("What the settings of paging change", columns, label="")
    for name, answer in answers.items():
        if name not in SYSTEMS:
            shown = f"{answer.rate:.2f}", f"{answer.full_rate:.2f}", f"{answer.full_running:.1f}"
            table.add_row(name, *shown, _share(answer.waste), str(answer.num_preemptions))
    console.print(table)
    for line in advice(answers):
        console.print(f"- {line}")


def advice(answers: dict[str, Answer]) -> list[str]:
    """Return what follows from the figures, in sentences."""
    paged = answers[PAGED]
    if not paged.rate:
        return [f"No rate will do: even alone, a request takes {paged.least_latency:.4f} s a token."]
    sizes = {name: answer.rate for name, answer in answers.items() if name.startswith("block_size=")}
    best = max(sizes.values())
    good = [name.partition("=")[2] for name, rate in sizes.items() if rate >= 0.98 * best]
    lines = [
        f"Block sizes within 2 % of the best: {', '.join(good)}. Kernels are not in this: on a GPU they may "
        "read blocks of less than 16 tokens more slowly."
    ]
    if "prefix caching" in answers:
        lines.append(_compare("Prefix caching", answers["prefix caching"], paged))
    else:
        lines.append("Prefix caching: no prompt of this workload is said to share a prefix with another.")
    if not paged.num_preemptions:
        lines.append("Swap: nothing was ever preempted, so there is nothing to swap.")
    elif "swap" in answers:
        lines.append(_compare("Swap", answers["swap"], paged))
    else:
        lines.append(f"Swap: {paged.num_preemptions} preemptions with a full pool; try --swap-space.")
    return lines


def _share(waste: float | None) -> str:
    return "–" if waste is None else f"{waste:.1%}"


def _compare(setting: str, with_it: Answer, without: Answer) -> str:
    gain = with_it.rate / without.rate - 1 if without.rate else 0.0
    verdict = f"{'worth it' if gain > 0 else 'not worth it'}, {gain:+.0%}"
    if abs(gain) < 0.02:
        verdict = "no difference"
    rates = f"({with_it.rate:.2f} against {without.rate:.2f} requests/s)"
    cached = f", {with_it.cached:.0%} of prompt tokens are found" if with_it.cached else ""
    return f"{setting}: {verdict} {rates}{cached}."
