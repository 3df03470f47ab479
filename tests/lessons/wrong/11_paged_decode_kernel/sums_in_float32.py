"""float32 is enough for every sum.

Words: float64 for float64
"""

EDITS = {
    "wide: tl.constexpr = tl.float64 if queries.dtype == tl.float64 else tl.float32": (
        "wide: tl.constexpr = tl.float32"
    ),
    "total = total * rescale + tl.sum(weights, 1)": (
        "total = total * rescale + tl.sum(weights, 1).to(tl.float32)"
    ),
    """best = new_best
    return output, best, total""": """best = new_best.to(tl.float32)
    return output.to(tl.float32), best.to(tl.float32), total.to(tl.float32)""",
}
