"""A block is a row of its pool, and there are len(pairs) pairs."""

EDITS = {
    "destination_words[destination, word] = source_words[source, word]": (
        "destination_words[destination][word] = source_words[source][word]"
    ),
    "source = pairs[cuda.blockIdx.x, 0]": "source = pairs[cuda.blockIdx.x][0]",
    "_copy_kernel[(pairs.shape[0], parts)": "_copy_kernel[(len(pairs), parts)",
}
