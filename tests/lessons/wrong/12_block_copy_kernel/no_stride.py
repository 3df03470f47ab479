"""Each thread copies one word: a block that has more words than there are threads is copied in part.

Words: copied one word, stopped
"""

EDITS = {
    """source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for word in range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):""": (
        """source, destination = pairs[cuda.blockIdx.x, 0], pairs[cuda.blockIdx.x, 1]
    word = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    if word < source_words.shape[1]:"""
    ),
}
