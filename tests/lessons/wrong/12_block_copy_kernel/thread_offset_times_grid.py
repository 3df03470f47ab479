"""The parts before are counted with the size of the grid instead of that of a thread block.

Words: left out
"""

EDITS = {
    """source = pairs[cuda.blockIdx.x, 0]
    destination = pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x""": (
        """source, destination = pairs[cuda.blockIdx.x, 0], pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.gridDim.y + cuda.threadIdx.x"""
    ),
}
