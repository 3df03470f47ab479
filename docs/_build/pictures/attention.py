"""Pictures of attention: a softmax folded block by block, and a long context spread over programs."""

from __future__ import annotations

import random
import re
from math import exp, inf
from pathlib import Path

from minipaged.reference.attention import Partial, fold_block, merge_partials

from .svg import Drawing

BLOCKS = (5, 2, 7)  # the block table: physical blocks, each of two slots here
SCORES = ((1.0, 3.0), (2.0, 5.0), (0.0,))
VALUES = ((1.0, 2.0), (3.0, 4.0), (5.0,))
ROOT = Path(__file__).parents[3]


def folds() -> list[Partial]:
    """The running softmax after each block."""
    partial, after = Partial(-inf, 0.0, [0.0]), []
    for scores, values in zip(SCORES, VALUES, strict=True):
        partial = fold_block(partial, scores, [[value] for value in values])
        after.append(partial)
    return after


def fold(drawing: Drawing) -> str:
    """The online softmax folds three blocks into one state."""
    after, told = folds(), []
    for number, (block, partial) in enumerate(zip(BLOCKS, after, strict=True)):
        before = after[number - 1].maximum if number else -inf
        _one_fold(drawing, number, block, partial, exp(before - partial.maximum))
        told.append(
            f"After logical block {number}, physical block {block}: maximum {partial.maximum:g}, "
            f"sum {partial.total:.3f}, weighted sum {partial.weighted[0]:.3f}."
        )
    last = after[-1]
    result = f"a ÷ ℓ = {last.weighted[0]:.3f} ÷ {last.total:.3f} = {last.weighted[0] / last.total:.3f}"
    lines = [f"divided once, at the end: {result}"]
    y = drawing.height + 30
    middle = 254.0 if drawing.is_narrow else 632.0
    drawing.arrow([(middle, y - 30), (middle, y - 5)], "h0")
    if drawing.is_narrow:
        lines = ["divided once, at the end:", result]
    for line, text in enumerate(lines):
        drawing.text((drawing.width, y + 8 + 20 * line), text, "accent", "end")
    drawing.text((0, y + (56 if drawing.is_narrow else 8)), "s = query · key, v = value", "quiet small")
    return f"{' '.join(told)} Divided once, at the end: {last.weighted[0] / last.total:.3f}."


def _one_fold(drawing: Drawing, number: int, block: int, partial: Partial, rescale: float) -> None:
    """A block with its scores, and the state after it: side by side on a phone, else one above the other."""
    wide = not drawing.is_narrow
    x, y = (number * 270.0, 0.0) if wide else (0.0, number * 164.0)
    scores, values = SCORES[number], VALUES[number]
    drawing.text((x, y + 10), f"logical block {number}" if wide else f"block {number}", "bold")
    drawing.text((x, y + 30), f"in physical block {block}" if wide else f"physical {block}", "quiet small")
    for slot in range(2):
        corner = (x + slot * (90 if wide else 58), y + 44)
        seen = slot < len(scores)
        words = [f"s = {scores[slot]:g}", f"v = {values[slot]:g}"] if seen else ["empty"]
        size = (86, 44) if wide else (54, 44)
        drawing.label(corner, size, words, "h0" if seen else "idle", "small" if seen else "quiet small")
    state = (x, y + 132) if wide else (166.0, y + 20)
    lines = [
        f"maximum m = {partial.maximum:g}",
        f"sum ℓ = {partial.total:.3f}",
        f"weighted a = {partial.weighted[0]:.3f}",
    ]
    drawing.label(state, (176, 72), lines, "h1")
    if wide:
        drawing.arrow([(x + 88, y + 90), (x + 88, y + 130)], "h0")
        drawing.text((x + 96, y + 108), "fold in", "quiet small")
    else:
        drawing.arrow([(114, y + 66), (164, y + 66)], "h0")
        drawing.text((137, y + 54), "fold in", "quiet tiny", "middle")
    if not number:
        return
    words = f"× exp({folds()[number - 1].maximum:g} − {partial.maximum:g})", f"= {rescale:.3f}"
    if wide:
        drawing.arrow([(x - 92, y + 168), (x - 2, y + 168)], "h1")
        for line, text in enumerate(words):
            drawing.text((x - 48, y + (154, 184)[line]), text, "small", "middle")
    else:
        drawing.arrow([(254, y - 70), (254, y + 18)], "h1")
        drawing.text((264, y - 34), words[0], "small")
        drawing.text((264, y - 16), words[1], "small")


LENGTHS, CAPACITY, KV_HEADS = (90, 700, 3), 1024, 3  # of the sequences; the grid's room in tokens


def split_length() -> int:
    """Tokens that one program reads, from the kernel's source: importing it would load Triton."""
    source = (ROOT / "kernels" / "attention.py").read_text(encoding="utf-8")
    found = re.search(r"^SPLIT_LENGTH = (\d+)$", source, re.MULTILINE)
    if found is None:
        raise LookupError("kernels/attention.py has no SPLIT_LENGTH")
    return int(found[1])


def scores_of(sequence: int) -> list[tuple[float, float]]:
    """A score and a value for each token of a sequence, the same in every build."""
    chance = random.Random(sequence)
    return [(chance.gauss(0, 1.5), chance.gauss(0, 1)) for _ in range(LENGTHS[sequence])]


def parts(sequence: int, length: int) -> list[Partial]:
    """What each program of a sequence finds in its own part of the context."""
    pairs = scores_of(sequence)
    return [
        fold_block(Partial(-inf, 0.0, [0.0]), [s for s, _ in part], [[v] for _, v in part])
        for part in (pairs[first : first + length] for first in range(0, len(pairs), length))
    ]


def signed(number: float) -> str:
    """Three decimals, with a minus sign that is as long as a plus sign."""
    return f"{number:.3f}".replace("-", "−")


def splits(drawing: Drawing) -> str:
    """The programs of a decode launch, each with its part of a context, and their merge."""
    length = split_length()
    told, y = [], 0.0
    for sequence, num_tokens in enumerate(LENGTHS):
        drawing.text((0, y + 10), f"sequence {sequence}: {num_tokens} tokens", "bold")
        found = parts(sequence, length)
        _programs(drawing, y + 24, sequence, found, length)
        output = merge_partials(found)[0]
        total = max(part.maximum for part in found)
        told.append(f"Sequence {sequence} has {num_tokens} tokens, read by {len(found)} programs.")
        if drawing.is_narrow:
            drawing.label((100, y + 124), (150, 24), f"merge: o {signed(output)}", "h1", "small")
        else:
            drawing.label(
                (590, y + 32), (130, 56), ["merge", f"m {total:.2f}", f"o {signed(output)}"], "h1", "small"
            )
        y = drawing.height + 24
    busy = sum(-(-each // length) for each in LENGTHS) * KV_HEADS
    programs = len(LENGTHS) * KV_HEADS * -(-CAPACITY // length)
    last = f"{programs} programs for {KV_HEADS} KV heads, {busy} with work."
    drawing.text((0, y), last, "accent")
    keys = [f"(sequence, KV head, part of {length} tokens)", "m maximum, ℓ sum, o a number of the output"]
    for number, line in enumerate(keys if drawing.is_narrow else [f"{keys[0]}: {keys[1]}"]):
        drawing.text((0, y + 24 + 20 * number), line, "quiet small")
    return f"{' '.join(told)} A merge rescales and adds up what the programs of a sequence found. {last}"


def _programs(drawing: Drawing, y: float, sequence: int, found: list[Partial], length: int) -> None:
    """A program per part of the context; arrows lead from those with work to the merge."""
    narrow = drawing.is_narrow
    pitch, height = (87.0, 72.0) if narrow else (138.0, 72.0)
    bus = y + height + 10
    for split in range(-(-CAPACITY // length)):
        corner = (split * pitch, y)
        first, last = split * length, min((split + 1) * length, LENGTHS[sequence]) - 1
        name = f"({sequence}, 0, {split})"
        if split >= len(found):
            drawing.label(corner, (pitch - 6, height), [name, "ends", "at once"], "idle", "quiet small")
            continue
        part = found[split]
        drawing.box(corner, pitch - 6, height, "plate")
        drawing.box(corner, (pitch - 6) * (last + 1 - first) / length, height, "h0")
        drawing.label(corner, (pitch - 6, height), [
            name, f"{'' if narrow else 'tokens '}{first}–{last}",
            f"m {part.maximum:.2f}", f"ℓ {part.total:.2f}",
        ], "outline", "small")  # fmt: skip
        middle = corner[0] + (pitch - 6) / 2
        drawing.line([(middle, y + height), (middle, bus)], "h0")
    if narrow:
        far = (len(found) - 1) * pitch + 40.5
        drawing.line([(40.5, bus), (max(far, 175.0), bus)], "h0")
        drawing.arrow([(175, bus), (175, y + 100)], "h0")
    else:
        drawing.line([(66, bus), (655, bus)], "h0")
        drawing.arrow([(655, bus), (655, y + 65)], "h0")
