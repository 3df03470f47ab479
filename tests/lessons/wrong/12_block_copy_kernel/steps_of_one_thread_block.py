"""The step is the size of one thread block, so the parts copy the same words again.

Words: several threads copy the same word
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
    for word in range(first, source_words.shape[1], cuda.blockDim.x):
        destination_words[destination, word] = source_words[source, word]
