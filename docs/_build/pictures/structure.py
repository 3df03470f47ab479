"""A picture of the engine: the parts that one step passes through."""

from __future__ import annotations

from textwrap import wrap

from .svg import Drawing

# Name, files in minipaged/engine/, what it does.
PARTS = [
    ("request", "request.py, intake.py", "a prompt is checked and waits in the inbox"),
    ("scheduler", "scheduler.py, policies.py", "chooses who computes which tokens"),
    ("block manager", "block_manager.py", "gives blocks, shares them, lists the copies"),
    ("batch", "batch.py", "integer tensors: tokens, positions, slots, tables"),
    ("model", "model_runner.py, model_hook.py", "moves blocks, runs the model's forward"),
    ("sampler", "sampler.py, logits.py", "one token for each sequence"),
    ("decoding", "decoding.py, endings.py", "appends the token, ends what is done"),
]
HELPERS = {"block manager": ("reference/", "block table, allocator", "prefix cache, CoW"),
           "model": ("kernels/", "write K and V,", "attend through tables")}  # fmt: skip


def step(drawing: Drawing) -> str:
    """One step of the engine, from a request to a longer request."""
    narrow, pitch = drawing.is_narrow, 58
    for row, (name, files, what) in enumerate(PARTS):
        y = float(row * pitch)
        drawing.label((34, y), (126, 36), name, "h0", "bold")
        if row:
            drawing.arrow([(97, y - pitch + 36), (97, y - 2)], "h0")
        if narrow:
            for number, line in enumerate(wrap(what, 28)):
                drawing.text((172, y + 10 + 16 * number), line, "tiny")
            continue
        drawing.text((372, y + 8), what, "small")
        drawing.text((372, y + 28), files, "quiet code")
        if name in HELPERS:
            drawing.arrow([(194, y + 18), (162, y + 18)], "h1")
            drawing.label((194, y - 8), (158, 52), HELPERS[name], "h1", "tiny small")
    last = (len(PARTS) - 1) * pitch + 18
    drawing.arrow([(34, last), (12, last), (12, 18), (32, 18)], "h0")
    drawing.text((97, last + 34), "and the next step", "quiet small", "middle")
    chain = ", ".join(name for name, _, _ in PARTS)
    return (
        f"From top to bottom: {chain}. The block manager uses reference/, the model uses kernels/. "
        "Then the next step begins."
    )
