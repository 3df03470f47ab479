"""Each thread copies a piece of its own, one word after the other.

Words: which thread has copied, neighbours copy neighbouring words
"""

EDITS = {
    "range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x)": "range(first * piece, end)",
    "    for word": """    piece = -(-source_words.shape[1] // (cuda.gridDim.y * cuda.blockDim.x))
    end = min(source_words.shape[1], first * piece + piece)
    for word""",
}
