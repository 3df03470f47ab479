"""A pair is read as (destination, source).

Words: source, destination, no copy of block
"""

EDITS = {
    """source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]""": (
        "destination, source = pairs[cuda.blockIdx.x, 0], pairs[cuda.blockIdx.x, 1]"
    ),
}
