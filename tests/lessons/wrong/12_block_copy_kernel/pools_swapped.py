"""The copy goes the wrong way, from the second pool to the first.

Words: swapped, pool that it reads from
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
    source, destination = pairs[cuda.blockIdx.x, 0], pairs[cuda.blockIdx.x, 1]
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for word in range(first, source_words.shape[1], cuda.gridDim.y * cuda.blockDim.x):
        source_words[source, word] = destination_words[destination, word]
