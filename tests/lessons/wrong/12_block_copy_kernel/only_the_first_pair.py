"""Every thread block copies the first pair.

Words: only the first pair, blockIdx.x
"""

from numba import cuda

from minipaged.kernels.copy_on_write import _THREADS


def launch_copy_blocks(source_words, destination_words, pairs, stream=0):
    num_words = source_words.shape[1]
    threads = min(_THREADS, num_words)
    parts = min(max(1, num_words // (threads * 4)), 65535)
    _copy_kernel[(pairs.shape[0], parts), threads, stream](source_words, destination_words, pairs)


@cuda.jit
def _copy_kernel(source_words, destination_words, pairs):
    source, destination = pairs[0, 0], pairs[0, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for word in range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):
        destination_words[destination, word] = source_words[source, word]
