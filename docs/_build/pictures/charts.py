"""The site's charts: waste, what becomes of a pool, the size of a cache, and latency over the rate."""

from __future__ import annotations

import json
import random
from pathlib import Path

from minipaged.reference.contiguous import ContiguousCache, maximum, oracle, power_of_two
from minipaged.reference.kv_cache_size import bytes_per_token, share_wasted, slots_paged
from minipaged.reference.slot_allocator import BuddyAllocator, OutOfSlotsError
from minipaged.simulator.systems import SYSTEM_NAMES

from .axes import Axes, Curve, Scale, legend
from .svg import Drawing

ROOT = Path(__file__).parents[3]
POOL = 16_384  # slots
SIZES = [2**bit for bit in range(12)]


def lengths(number: int) -> list[int]:
    """Token counts of requests as a chat brings them: log-normal, cut at 2,048."""
    chance = random.Random(0)
    return [max(8, min(2048, int(chance.lognormvariate(5.45, 0.9)))) for _ in range(number)]


def waste(drawing: Drawing) -> str:
    """Slots that hold no token, by block size."""
    sample = lengths(2000)
    mean = sum(sample) / len(sample)
    shares = [100 * share_wasted(sample, slots_paged(sample, size)) for size in SIZES]
    expected = [100 * (size - 1) / 2 / (mean + (size - 1) / 2) for size in SIZES]
    axes = Axes(
        drawing,
        Scale(1, 2048, [(size, f"{size:,}") for size in SIZES], "block size, tokens", log=True),
        Scale(0, 100, [(tick, str(tick)) for tick in range(0, 101, 20)], "slots that hold no token, %"),
    )
    measured = list(zip(SIZES, shares, strict=True))
    formula = list(zip(SIZES, expected, strict=True))
    axes.draw(
        [
            Curve("measured on 2,000 lengths", measured),
            Curve("(B − 1) / 2 slots per sequence", formula, dashed=True),
        ]
    )
    return (
        f"On 2,000 lengths, {mean:.0f} tokens on average, blocks of 16 leave {shares[4]:.1f} % of the slots "
        f"without a token. The formula says {expected[4]:.1f} %. Blocks of 256 leave {shares[8]:.1f} %, "
        f"blocks of 2,048 {shares[-1]:.1f} %."
    )


def usages() -> dict[str, tuple[int, ...]]:
    """Of a pool's slots under each policy: tokens, reserved, internal, external, free."""
    found = {}
    for name, policy in {"Orca (Max)": maximum, "Orca (Pow2)": power_of_two, "Orca (Oracle)": oracle}.items():
        cache = ContiguousCache(BuddyAllocator(POOL), policy)
        for number, length in enumerate(lengths(200)):
            try:
                cache.admit(number, max(1, length * 2 // 3), length, 2048)
            except OutOfSlotsError:
                break
        found[name] = tuple(cache.usage(waiting_for=2048))
    tokens = slots = 0
    for length in lengths(2000):
        done = max(1, length * 2 // 3)
        if slots + slots_paged([done], 16) > POOL:
            break
        tokens, slots = tokens + done, slots + slots_paged([done], 16)
    found["paged, blocks of 16"] = (tokens, 0, slots - tokens, 0, POOL - slots)
    return found


def reservation(drawing: Drawing) -> str:
    """What becomes of a pool's slots under four policies."""
    kinds = {"tokens": "h0", "reserved": "reserved", "internal": "internal", "external": "external"}
    y = legend(drawing, [(words, kind) for words, kind in kinds.items()])
    left = 0.0 if drawing.is_narrow else 150.0
    wide = drawing.width - left - 2
    told = []
    for name, usage in usages().items():
        drawing.text((0, y + 14), name)
        row = y + 26 if drawing.is_narrow else y
        x = left
        for count, kind in zip(usage, kinds.values(), strict=False):
            share = wide * count / POOL
            if share >= 1:
                drawing.box((x, row), share, 28, kind)
            words = f"{100 * count / POOL:.1f} %"
            if share >= 8 * len(words):
                drawing.text(
                    (x + share / 2, row + 14), words, "bold small" if kind == "h0" else "small", "middle"
                )
            x += share
        shares = [f"{100 * count / POOL:.1f} % {kind}" for count, kind in zip(usage, kinds, strict=False)]
        told.append(f"{name}: {', '.join(shares)}.")
        y = row + 40
    drawing.text((left, y + 6), "0 slots", "quiet small")
    drawing.text((drawing.width, y + 6), f"{POOL:,} slots", "quiet small", "end")
    return " ".join(told)


SHAPES = {
    "OPT-13B (40 heads)": (40, 40, 128, 2),
    "Llama 2 7B (32)": (32, 32, 128, 2),
    "Llama 3 8B (8)": (32, 8, 128, 2),
    "SmolLM2-135M (3 KV heads)": (30, 3, 64, 2),
}


def cache_size(drawing: Drawing) -> str:
    """The KV cache of one request grows in proportion to its tokens."""
    tokens = range(0, 2049, 256)
    curves = [
        Curve(name, [(n, bytes_per_token(*shape) * n / 2**30) for n in tokens])
        for name, shape in SHAPES.items()
    ]
    axes = Axes(
        drawing,
        Scale(0, 2048, [(n, f"{n:,}") for n in range(0, 2049, 512)], "tokens in one request"),
        Scale(
            0,
            1.6,
            [(tick / 10, f"{tick / 10:.1f}") for tick in range(0, 17, 4)],
            "KV cache, GiB, 16-bit values",
        ),
    )
    axes.draw(curves)
    ends = [f"{curve.points[-1][1]:.3g} GiB for {curve.name}" for curve in curves]
    return f"Straight lines through zero. At 2,048 tokens: {', '.join(ends)}."


def rates(drawing: Drawing) -> str:
    """Latency as requests come faster: OPT-13B on one A100, lengths of ShareGPT."""
    path = ROOT / "benchmarks" / "results" / "cpu-paper.json"
    measured = json.loads(path.read_text(encoding="utf-8"))
    figure = next(each for each in measured["figures"] if each["title"] == "Figure 12: sharegpt, opt-13b")
    target = 0.25
    curves = [
        Curve(SYSTEM_NAMES[name], [(rate, seconds) for rate, seconds in sorted(points) if seconds <= target])
        for name, points in figure["curves"].items()
    ]
    axes = Axes(
        drawing,
        Scale(0, 2.5, [(tick / 2, f"{tick / 2:.1f}") for tick in range(6)], "requests per second"),
        Scale(0, 0.3, [(tick / 20, f"{tick / 20:.2f}") for tick in range(0, 7)], "seconds per token"),
    )
    axes.draw(curves)
    axes.level(target, "a system sustains a rate up to here")
    ends = [f"{curve.name} up to {curve.points[-1][0]:.2f}" for curve in curves]
    return f"Requests per second that each system sustains at {target} seconds per token: {', '.join(ends)}."
