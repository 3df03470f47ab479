"""`threadIdx.x` is taken for the number among all threads of the pair.

Words: threads of the parts before it
"""

EDITS = {
    """source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for word in range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):""": (
        """source, destination = pairs[cuda.blockIdx.x, 0], pairs[cuda.blockIdx.x, 1]
    for word in range(cuda.threadIdx.x, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):"""
    ),
}
