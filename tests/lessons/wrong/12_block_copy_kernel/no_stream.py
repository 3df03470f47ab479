"""The launch goes to Numba's own stream.

Words: stream, in order
"""

EDITS = {
    "_copy_kernel[(pairs.shape[0], parts), threads, stream](source_words, destination_words, pairs)": (
        "_copy_kernel[(pairs.shape[0], parts), threads](source_words, destination_words, pairs)"
    ),
}
