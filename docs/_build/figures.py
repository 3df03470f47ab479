"""The site's pictures, each drawn from numbers that the project itself computes."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import outputs

if __name__ == "__main__":
    outputs.leave_if_fresh("figures", outputs.FIGURES, __file__)

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot

from minipaged.cli.bench import load_benchmarks
from minipaged.reference.contiguous import ContiguousCache, maximum, oracle, power_of_two
from minipaged.reference.kv_cache_size import bytes_per_token, share_wasted, slots_paged
from minipaged.reference.slot_allocator import BuddyAllocator, OutOfSlotsError
from minipaged.simulator.plots import draw_panel

load_benchmarks()
from benchmarks.paper.runs import TARGET  # noqa: E402

BLUE, ORANGE, GREY, GREEN = "#24506b", "#d07a2d", "#b9b9b4", "#3d8a5f"


def lengths(number: int, mean: float = 330, limit: int = 2048) -> list[int]:
    """Token counts of requests as a chat brings them: log-normal, cut at the limit."""
    chance = random.Random(0)
    return [max(8, min(limit, int(chance.lognormvariate(5.45, 0.9)))) for _ in range(number)]


def waste(axes: Any) -> None:
    """Share of reserved slots that hold no token, by block size."""
    sample = lengths(2000)
    sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
    shares = [100 * share_wasted(sample, slots_paged(sample, size)) for size in sizes]
    expected = [100 * (size - 1) / 2 / (sum(sample) / len(sample) + (size - 1) / 2) for size in sizes]
    axes.plot(sizes, shares, "o-", color=BLUE, label="measured on 2,000 lengths")
    axes.plot(sizes, expected, "--", color=ORANGE, label="(B − 1) / 2 slots a sequence")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="block size, tokens", ylabel="slots that hold no token, %")
    axes.legend(frameon=False)


def reservation(axes: Any) -> None:
    """What becomes of a pool under the policies before paging, and under paging."""
    names, parts = [], []
    policies = {"Orca (Max)": maximum, "Orca (Pow2)": power_of_two, "Orca (Oracle)": oracle}
    for name, policy in policies.items():
        cache = ContiguousCache(BuddyAllocator(16_384), policy)
        for number, length in enumerate(lengths(200)):
            done = max(1, length * 2 // 3)
            try:
                cache.admit(number, done, length, 2048)
            except OutOfSlotsError:
                break
        names.append(name)
        usage = cache.usage(waiting_for=2048)
        parts.append([usage.tokens, usage.reserved, usage.internal, usage.external])
    tokens = blocks = 0
    for length in lengths(2000):
        done = max(1, length * 2 // 3)
        if blocks + slots_paged([done], 16) > 16_384:
            break
        tokens, blocks = tokens + done, blocks + slots_paged([done], 16)
    names.append("paged, blocks of 16")
    parts.append([tokens, 0, blocks - tokens, 0])
    left = [0.0] * len(names)
    labels = ("tokens", "reserved", "internal fragmentation", "external fragmentation")
    for index, (label, colour) in enumerate(zip(labels, (BLUE, GREEN, ORANGE, GREY), strict=True)):
        shares = [100 * part[index] / 16_384 for part in parts]
        axes.barh(names, shares, left=left, color=colour, label=label)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="slots of the pool, %", xlim=(0, 100))
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.18), fontsize=8)


def cache_size(axes: Any) -> None:
    """KV cache of one request, by its length, for models of different shape."""
    shapes = {
        "OPT-13B (40 heads)": (40, 40, 128, 2),
        "Llama 2 7B (32 heads)": (32, 32, 128, 2),
        "Llama 3 8B (8 of 32 heads)": (32, 8, 128, 2),
        "SmolLM2-135M (3 of 9 heads)": (30, 3, 64, 2),
    }
    tokens = [128 * 2**i for i in range(7)]
    for (name, shape), colour in zip(shapes.items(), (ORANGE, GREEN, BLUE, GREY), strict=True):
        axes.plot(
            tokens, [bytes_per_token(*shape) * n / 2**30 for n in tokens], "o-", color=colour, label=name
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(tokens, [f"{n:,}" for n in tokens])
    axes.set(xlabel="tokens in one request", ylabel="KV cache, GiB, 16-bit values")
    axes.legend(frameon=False)


def rates(axes: Any) -> None:
    """The paper's Figure 12 for one model and data set: latency as requests come faster."""
    path = outputs.ROOT / "benchmarks" / "results" / "cpu-paper.json"
    measured = json.loads(path.read_text(encoding="utf-8"))
    figure = next(each for each in measured["figures"] if each["title"] == "Figure 12: sharegpt, opt-13b")
    draw_panel(axes, "OPT-13B on one A100, lengths of ShareGPT", figure["curves"], TARGET)


# What a step passes through: name, file of the engine's room, what it does.
STEP = [
    ("request", "request.py, intake.py", "a prompt is checked and waits in the inbox"),
    ("scheduler", "scheduler.py, policies.py", "chooses who computes which tokens"),
    ("block manager", "block_manager.py", "gives blocks, shares them, lists the copies"),
    ("batch", "batch.py", "integer tensors: tokens, positions, slots, tables"),
    ("model", "model_runner.py, model_hook.py", "moves blocks, runs the model's forward"),
    ("sampler", "sampler.py, logits.py", "one token for each sequence"),
    ("decoding", "decoding.py, endings.py", "appends the token, ends what is done"),
]
HELPERS = {
    2: ("reference/", "block table, allocator,\nprefix cache, copy-on-write"),
    4: ("kernels/", "write K and V,\nattend through the tables"),
}


def step(axes: Any) -> None:
    """One step of the engine, from a request to a longer request."""
    box = {"boxstyle": "round,pad=0.5", "facecolor": "#e8eef2", "edgecolor": BLUE}
    other = box | {"facecolor": "#f7ede2", "edgecolor": ORANGE}
    axes.set(xlim=(0, 12), ylim=(-len(STEP) + 0.4, 0.6))
    axes.axis("off")
    for row, (name, files, what) in enumerate(STEP):
        axes.text(1.9, -row, name, ha="center", va="center", bbox=box, weight="bold")
        axes.text(3.5, -row + 0.13, what, va="center")
        axes.text(3.5, -row - 0.2, files, va="center", color="#666666", fontsize=8, family="monospace")
        if row:
            axes.annotate(
                "", (1.9, -row + 0.3), (1.9, -row + 0.7), arrowprops={"arrowstyle": "->", "color": BLUE}
            )
    for row, (folder, what) in HELPERS.items():
        axes.text(10.7, -row, f"{folder}\n{what}", ha="center", va="center", bbox=other, fontsize=8)
    back = {"arrowstyle": "->", "color": BLUE, "connectionstyle": "arc3"}
    axes.annotate("", (0.35, 0), (0.35, -len(STEP) + 1), arrowprops=back)
    axes.text(0.12, -len(STEP) / 2 + 0.5, "the next step", rotation=90, ha="center", va="center", fontsize=8)


def card(axes: Any) -> None:
    """What a shared link shows: the name, and a block table that points into a pool."""
    axes.set(xlim=(0, 12), ylim=(0, 6.3))
    axes.axis("off")
    axes.text(0.7, 5.2, "minipaged", size=44, weight="bold", color=BLUE)
    axes.text(0.7, 4.45, "PagedAttention you can run", size=22, color="#444444")
    blocks = {4: 0, 0: 1, 7: 2}  # physical: logical
    for block in range(8):
        colour = ORANGE if block in blocks else GREY
        axes.add_patch(pyplot.Rectangle((0.7 + 1.35 * block, 0.6), 1.2, 0.9, color=colour, alpha=0.85))
        axes.text(1.3 + 1.35 * block, 1.05, str(block), size=16, ha="center", va="center", color="white")
    for block, logical in blocks.items():
        axes.add_patch(pyplot.Rectangle((4.4 + 1.1 * logical, 2.9), 1, 0.8, color=BLUE))
        axes.text(4.9 + 1.1 * logical, 3.3, str(block), size=16, ha="center", va="center", color="white")
        start, end = (4.9 + 1.1 * logical, 2.85), (1.3 + 1.35 * block, 1.55)
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": BLUE, "lw": 2})
    axes.text(0.7, 3.2, "a block table", size=18, color="#444444")
    axes.text(0.7, 0.1, "a pool of blocks", size=18, color="#444444")


def draw_card() -> None:
    """Draw the card, 1,200 by 630 pixels."""
    figure = pyplot.figure(figsize=(12, 6.3), dpi=100)
    card(figure.add_axes((0, 0, 1, 1)))
    figure.savefig(outputs.CARD, facecolor="white", metadata={"Software": None})
    pyplot.close(figure)


FIGURES: list[Callable[[Any], None]] = [waste, reservation, cache_size, rates, step]
HEIGHTS = {step: 4.6}  # inches, where it is another than 3.4


def main() -> None:
    """Draw all figures, unless they are there and the sources the same."""
    paths = {draw: outputs.FIGURES / f"{draw.__name__}.svg" for draw in FIGURES}
    if outputs.is_fresh(outputs.FIGURES, __file__) and all(
        path.is_file() for path in [*paths.values(), outputs.CARD]
    ):
        return
    matplotlib.rcParams.update({"font.family": "sans-serif", "font.size": 10, "svg.hashsalt": "minipaged",
                                "axes.spines.top": False, "axes.spines.right": False})  # fmt: skip
    outputs.FIGURES.mkdir(parents=True, exist_ok=True)
    for draw, path in paths.items():
        figure, axes = pyplot.subplots(figsize=(7, HEIGHTS.get(draw, 3.4)), layout="constrained")
        draw(axes)
        figure.savefig(path, metadata={"Date": None}, transparent=True)
        pyplot.close(figure)
    draw_card()
    outputs.made(outputs.FIGURES, __file__)


if __name__ == "__main__":
    sys.exit(main())
