"""The first threads of all parts come first, then the second ones.

Words: which thread has copied, numbered across the parts
"""

EDITS = {
    "first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x": (
        "first = cuda.threadIdx.x * cuda.gridDim.y + cuda.blockIdx.y"
    ),
}
