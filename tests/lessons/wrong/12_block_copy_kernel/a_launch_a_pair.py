"""One launch for each pair.

Words: one launch copies all pairs
"""

EDITS = {
    "_copy_kernel[(pairs.shape[0], parts), threads, stream](source_words, destination_words, pairs)": (
        """for i in range(pairs.shape[0]):
        _copy_kernel[(1, parts), threads, stream](source_words, destination_words, pairs[i : i + 1])"""
    ),
}
