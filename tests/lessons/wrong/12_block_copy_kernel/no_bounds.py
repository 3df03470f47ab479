"""As many rounds for every thread: the last ones reach past the block.

Words: past the last word
"""

EDITS = {
    """source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for word in range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):""": (
        """source, destination = pairs[cuda.blockIdx.x, 0], pairs[cuda.blockIdx.x, 1]
    num_threads = cuda.gridDim.y * cuda.blockDim.x
    word = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for _ in range(-(-source_words.shape[1] // num_threads)):"""
    ),
    "destination_words[destination, word] = source_words[source, word]": (
        """destination_words[destination, word] = source_words[source, word]
        word += num_threads"""
    ),
}
