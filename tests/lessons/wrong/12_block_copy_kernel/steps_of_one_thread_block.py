"""The step is the size of one thread block, so the parts copy the same words again.

Words: several threads copy the same word
"""

EDITS = {
    "for word in range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):": (
        "for word in range(first, source_words.shape[1], cuda.blockDim.x):"
    ),
}
