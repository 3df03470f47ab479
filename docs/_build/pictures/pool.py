"""A picture of the pool: one tensor, magnified step by step until single numbers are seen."""

from __future__ import annotations

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token, token_address

from .svg import Drawing

LAYERS, HEADS, DIM, BYTES, SLOTS = 30, 3, 64, 4, 16  # SmolLM2-135M in float32, blocks of 16
AT = {"block": 11, "layer": 7, "kv": 0, "offset": 5}


def pool_tensor(drawing: Drawing) -> str:
    """The pool in memory, from its blocks down to the numbers of one key."""
    sizes = {
        "num_layers": LAYERS,
        "block_size": SLOTS,
        "num_kv_heads": HEADS,
        "head_dim": DIM,
        "bytes_per_value": BYTES,
    }
    block = token_address(1, 0, 0, 0, **sizes)
    layer, half, slot = (token_address(0, *each, **sizes) for each in ((1, 0, 0), (0, 1, 0), (0, 0, 1)))
    total = blocks_that_fit(2**30, SLOTS, bytes_per_token(LAYERS, HEADS, DIM, BYTES))
    rows = [
        (f"the pool, 1 GiB: {total:,} blocks", total, AT["block"], ""),
        (f"block {AT['block']}, {block:,} bytes: {LAYERS} layers", LAYERS, AT["layer"], ""),
        (f"layer {AT['layer']}, {layer:,} bytes: keys, then values", 2, AT["kv"], "KV"),
        (f"keys, {half:,} bytes: {SLOTS} slots", SLOTS, AT["offset"], ""),
        (f"slot {AT['offset']}, {slot:,} bytes: {HEADS} KV heads", HEADS, 0, ""),
        (f"KV head 0, {slot // HEADS:,} bytes: {DIM} numbers of {BYTES} bytes", DIM, -1, ""),
    ]
    for number, (words, count, lit, names) in enumerate(rows):
        _level(drawing, 66.0 * number, words, (count, lit), names)
    address = token_address(*AT.values(), **sizes)
    drawing.text((0, 66 * len(rows) + 10), f"This key begins at byte {address:,} of the pool.", "accent")
    return f"{'. '.join(row[0] for row in rows)}. This key begins at byte {address:,} of the pool."


def _level(drawing: Drawing, y: float, words: str, cells: tuple[int, int], names: str) -> None:
    """A bar of equal cells, of which one is magnified below."""
    count, lit = cells
    shown = count if count in (DIM, LAYERS) else min(count, 20)
    pitch = (drawing.width - 2) / shown
    drawing.text((0, y + 8), words)
    for cell in range(shown):
        drawing.box(
            (1 + cell * pitch, y + 20), pitch - min(1.5, pitch / 6), 22, "lit" if cell == lit else "h0"
        )
        number = names[cell] if names else str(cell)
        last = cell == shown - 1 and shown < count
        if pitch > 21 or cell == lit or last:
            drawing.text((1 + (cell + 0.5) * pitch - 0.7, y + 31), "…" if last else number, "tiny", "middle")
    if lit >= 0:
        left, right = 1 + lit * pitch, 1 + (lit + 1) * pitch - 1.5
        drawing.area([(left, y + 43), (right, y + 43), (drawing.width - 1, y + 85), (1, y + 85)], "zoom")
