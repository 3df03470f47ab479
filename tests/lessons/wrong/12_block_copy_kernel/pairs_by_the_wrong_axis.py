"""`pairs` is read as [2, n]: a row of sources and a row of destinations.

Words: one row a pair, outside its array
"""

EDITS = {
    """source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]""": (
        "source, destination = pairs[0, cuda.blockIdx.x], pairs[1, cuda.blockIdx.x]"
    ),
}
