"""A picture of several GPUs that keep the same blocks, each for its own heads."""

from __future__ import annotations

from minipaged.reference.kv_cache_size import blocks_that_fit, bytes_per_token

from .svg import Drawing, Point
from .tables import sides

GPUS, LAYERS, QUERY_HEADS, KV_HEADS, DIM = 4, 80, 64, 8, 128  # Llama 3 70B in 16 bits
WEIGHTS, MEMORY, SHARE = 141e9, 80 * 2**30, 0.9  # bytes, bytes of one GPU, how much of these is used


def tensor_parallelism(drawing: Drawing) -> str:
    """Four GPUs: one scheduler, one set of block tables, and each GPU's own heads."""
    blocks = sides()[1].table.blocks
    token = bytes_per_token(LAYERS, KV_HEADS // GPUS, DIM, 2)
    pool = blocks_that_fit(int(SHARE * MEMORY - WEIGHTS / GPUS), 16, token)
    middle = drawing.width / 2
    drawing.label((middle - 130, 0), (260, 54), ["scheduler", f"block table {blocks}"], "h1", "bold")
    columns = 2 if drawing.is_narrow else 4
    pitch = (drawing.width + 14) / columns
    rows = GPUS // columns
    for gpu in range(GPUS):
        corner = (gpu % columns * pitch, 96.0 + gpu // columns * 222)
        _gpu(drawing, corner, pitch - 14, gpu, [f"{pool:,} blocks", f"{token // 1024} KiB per token"])
        top = corner[0] + (pitch - 14) / 2
        if gpu < columns:
            drawing.arrow([(middle, 54), (middle, 74), (top, 74), (top, 94)], "h1")
    bottom = 96.0 + rows * 222
    drawing.label(
        (0, bottom), (drawing.width, 34), "all-reduce, after attention and after the MLP", "h2", "small"
    )
    return (
        f"Llama 3 70B on {GPUS} GPUs. One scheduler sends the block table {blocks} to all. GPU 0 has query "
        f"heads 0 to {QUERY_HEADS // GPUS - 1} and KV heads 0 to {KV_HEADS // GPUS - 1}, and so on. On each "
        f"GPU physical block {blocks[0]} holds the keys and values of that GPU's own heads. A token takes "
        f"{token // 1024} KiB per GPU, and a pool has {pool:,} blocks. The GPUs add up their results twice "
        "per layer."
    )


def _gpu(drawing: Drawing, corner: Point, width: float, gpu: int, words: list[str]) -> None:
    """One GPU: its heads, and the pool with the blocks of the table."""
    x, y = corner
    drawing.box(corner, width, 204, "plate")
    drawing.text((x + width / 2, y + 18), f"GPU {gpu}", "bold", "middle")
    for row, (name, heads) in enumerate((("query heads", QUERY_HEADS), ("KV heads", KV_HEADS))):
        first, last = gpu * heads // GPUS, (gpu + 1) * heads // GPUS - 1
        drawing.label(
            (x + 10, y + 34 + row * 32), (width - 20, 28), f"{name} {first}–{last}", f"h{gpu + 3}", "small"
        )
    drawing.text((x + width / 2, y + 112), "pool: K, V of these heads", "quiet tiny", "middle")
    table = sides()[1].table.blocks
    pitch = (width - 18) / 8
    for block in range(8):
        mine = block in table
        size = (pitch - 2, 28)
        drawing.label(
            (x + 10 + block * pitch, y + 124), size, str(block), f"h{gpu + 3}" if mine else "", "tiny"
        )
    for number, line in enumerate(words):
        drawing.text((x + width / 2, y + 168 + 18 * number), line, "small", "middle")
