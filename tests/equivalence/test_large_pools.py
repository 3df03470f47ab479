"""Pools whose offsets pass 2^32 elements, which 32 bits would take for offset 0.

Address space alone: the system backs the few pages that are touched.
"""

import mmap
import os

import numpy as np
import pytest
import torch
from problems import means
from torch import Tensor

from minipaged.kernels import attention, attention_cpu
from minipaged.kernels.block_table import launch_write_kv, write_kv
from minipaged.kernels.copy_on_write import as_words, copy_blocks, launch_copy_blocks

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WRITES = [pytest.param(write_kv, "cpu", id="cpu"), pytest.param(launch_write_kv, DEVICE, id="triton")]
ATTENTION = [pytest.param(attention, DEVICE, id="triton"), pytest.param(attention_cpu, "cpu", id="numba")]

# Caches of 5 blocks, 5 slots and 5 heads of 16. Index 4 of the far dimension lies 2^32 elements in.
FAR = {
    "blocks": (2**30, 80, 16, 1),
    "slots": (80, 2**30, 16, 1),
    "heads": (80, 16, 2**30, 1),
}


def reserve(num_elements: int, dtype: torch.dtype, device: str) -> Tensor:
    """Zeros; on the CPU they take no memory until they are written."""
    if device == "cuda":
        return torch.zeros(num_elements, dtype=dtype, device=device)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    buffer = mmap.mmap(-1, num_elements * dtype.itemsize, flags=flags)
    return torch.from_numpy(np.frombuffer(buffer, dtype=np.uint8)).view(dtype)


def caches(far: str, device: str) -> tuple[Tensor, Tensor]:
    """float16 keys and values, [5, 5, 5, 16], the values 512 elements after the keys."""
    memory = reserve(4 * 2**30 + 1024, torch.float16, device)
    keys, values = (memory.as_strided((5, 5, 5, 16), FAR[far], first) for first in (0, 512))
    return keys, values


def tokens(device: str) -> Tensor:
    """Five tokens of five heads: token j's head h is full of 10 j + h."""
    numbers = 10 * torch.arange(5)[:, None] + torch.arange(5)
    return numbers.to(torch.float16).to(device)[:, :, None].expand(5, 5, 16)


@pytest.mark.parametrize(("write", "device"), WRITES)
@pytest.mark.parametrize("far", FAR)
def test_writes_reach_the_far_end(write, device, far):
    keys, values = caches(far, device)
    slots = torch.arange(20, 25, device=device)  # block 4
    write(-tokens(device), tokens(device), keys, values, slots)
    assert torch.equal(keys[4], -tokens(device))
    assert torch.equal(values[4], tokens(device))
    assert not keys[0].any() and not values[0].any()


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
@pytest.mark.parametrize("far", FAR)
def test_attention_reads_the_far_end(kernels, device, far):
    keys, values = caches(far, device)
    keys[4], values[4] = 1, tokens(device)
    table = torch.tensor([[4]], dtype=torch.int32, device=device)
    length = torch.tensor([5], dtype=torch.int32, device=device)
    queries = torch.zeros(2, 5, 16, dtype=torch.float16, device=device)
    decoded = kernels.decode_attention(queries[:1], keys, values, table, length, scale=1.0)
    starts = torch.tensor([0, 2], dtype=torch.int32, device=device)
    filled = kernels.prefill_attention(queries, keys, values, table, length, starts, scale=1.0)
    for head in range(5):
        assert means(decoded[:, head : head + 1]) == [20.0 + head]  # of 0, 10, 20, 30, 40
        assert means(filled[:, head : head + 1]) == [15.0 + head, 20.0 + head]


@pytest.mark.parametrize(("kernels", "device"), ATTENTION)
def test_attention_reads_far_queries(kernels, device):
    memory = reserve(4 * 2**30 + 1024, torch.float16, device)
    queries = memory.as_strided((5, 1, 16), (2**30, 16, 1))
    queries[4] = 10
    cache = torch.zeros(1, 2, 1, 16, dtype=torch.float16, device=device)
    cache[0, 0, 0] = 10  # a score of 1600 against 0: only token 0 weighs
    values = torch.tensor([3.0, 5.0], dtype=torch.float16, device=device).reshape(1, 2, 1, 1)
    table = torch.zeros(5, 1, dtype=torch.int32, device=device)
    lengths = torch.full((5,), 2, dtype=torch.int32, device=device)
    starts = torch.arange(6, dtype=torch.int32, device=device)
    arguments = (queries, cache, values.repeat(1, 1, 1, 16), table, lengths)
    expected = [4.0, 4.0, 4.0, 4.0, 3.0]
    assert means(kernels.decode_attention(*arguments, scale=1.0)) == expected
    assert means(kernels.prefill_attention(*arguments, starts, scale=1.0)) == expected


def copy_by_kernel(pool: Tensor, sources: list[int], destinations: list[int]) -> None:
    """The kernel on a GPU, or in Numba's simulator on the pool's own memory: it copies what it is handed."""
    if DEVICE == "cuda":
        copy_blocks(pool, sources, destinations)
        return
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    pairs = torch.tensor([sources, destinations]).T.contiguous()
    words = FakeCUDAArray(as_words(pool).numpy())
    launch_copy_blocks(words, words, pairs.numpy())


@pytest.mark.parametrize(
    ("copy", "device"),
    [pytest.param(copy_blocks, "cpu", id="cpu"), pytest.param(copy_by_kernel, DEVICE, id="kernel")],
)
def test_copies_to_and_from_the_far_end(copy, device):
    num_blocks = 2**30  # of 5 bytes, which only words of 1 byte divide
    pool = reserve(5 * num_blocks, torch.uint8, device).view(num_blocks, 5)
    pool[1], pool[num_blocks - 2] = 7, 9
    copy(pool, [1, num_blocks - 2], [num_blocks - 1, 2])
    assert pool[num_blocks - 1].tolist() == [7] * 5
    assert pool[2].tolist() == [9] * 5
    assert not pool[0].any() and not pool[num_blocks - 3].any()
