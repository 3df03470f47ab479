"""Copy-on-write in both worlds; and block copies: torch's path, and the Numba kernel, maybe simulated."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import KernelWorld, ReferenceWorld

from minipaged.kernels import copy_on_write
from minipaged.kernels.copy_on_write import _check_numba_device, as_words, copy_blocks, launch_copy_blocks
from minipaged.reference.block_table import BlockTable

HAS_GPU = torch.cuda.is_available()
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def copy_by_kernel(pool: Tensor, sources: list[int], destinations: list[int]) -> None:
    """The kernel on a CPU pool: in the simulator on its memory, or through a GPU and back."""
    if HAS_GPU:
        on_device = pool.cuda()
        copy_blocks(on_device, sources, destinations)
        pool.copy_(on_device)
        return
    assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    pairs = torch.tensor([sources, destinations]).T.contiguous()
    words = as_words(pool).numpy()
    launch_copy_blocks(words, words, pairs.numpy())


COPIES = [pytest.param(copy_blocks, id="cpu"), pytest.param(copy_by_kernel, id="kernel")]


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_pair_is_copied_and_nothing_else(copy, dtype):
    pool = torch.randn(7, 2, 2, 3, 1, 5).to(dtype)
    pool[4] = float("nan")  # stale slots may hold anything, and bytes are bytes
    blocks = [pool[index].clone() for index in range(7)]
    copy(pool, [1, 4, 1], [6, 0, 2])
    for index, block in enumerate([4, 1, 1, 3, 4, 5, 1]):
        assert torch.equal(pool[index].view(torch.uint8), blocks[block].view(torch.uint8))


@pytest.mark.parametrize("copy", COPIES)
def test_blocks_of_an_odd_number_of_bytes(copy):
    pool = torch.arange(5 * 3, dtype=torch.uint8).reshape(5, 3)
    copy(pool, [0, 3], [4, 1])
    assert pool[:, 0].tolist() == [0, 9, 6, 9, 0]


@pytest.mark.parametrize("copy", COPIES)
def test_a_block_of_more_words_than_threads(copy):
    pool = torch.arange(3 * 2100, dtype=torch.int64).reshape(3, 2100)
    copy(pool, [0], [2])
    assert torch.equal(pool[2], torch.arange(2100))
    assert torch.equal(pool[1], torch.arange(2100, 4200))


@pytest.mark.parametrize(
    ("shape", "first", "words"),
    [
        ((4, 16), 0, torch.int64),
        ((4, 6), 0, torch.int32),
        ((4, 3), 0, torch.int16),
        ((4, 16), 1, torch.int16),
        ((4, 16), 2, torch.int32),
    ],
)
def test_words_are_as_wide_as_size_and_address_allow(shape, first, words):
    memory = torch.zeros(shape[0] * shape[1] + first, dtype=torch.float16)
    view = as_words(memory[first:].view(shape))
    assert view.dtype == words
    assert view.shape == (shape[0], shape[1] * 2 // words.itemsize)
    assert view.data_ptr() == memory.data_ptr() + 2 * first


def test_words_may_be_made_narrower_than_they_need_be():
    pool = torch.zeros(4, 16, dtype=torch.float64)
    assert [as_words(pool, widest).dtype.itemsize for widest in (8, 4, 2, 1)] == [8, 4, 2, 1]


def test_ids_may_be_tensors_and_none_at_all():
    pool = torch.arange(4.0).repeat(2, 1).T.contiguous()
    copy_blocks(pool, torch.tensor([3]), torch.tensor([0], dtype=torch.int32))
    copy_blocks(pool, [], [])
    assert pool[:, 0].tolist() == [3.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        ([1, 2], [2, 3], "destinations: block 2 is a source too"),
        ([1], [1], "destinations: block 1 is a source too"),
        ([0, 1], [3, 3], "destinations: block 3 is named twice"),
        ([0, 4], [2, 3], "sources: block 4, its pool has blocks 0 to 3"),
        ([0, 1], [2, -1], "destinations: block -1, its pool has blocks 0 to 3"),
        ([0, 1], [2], "sources, destinations: 2 and 1 blocks"),
    ],
)
def test_a_bad_pair_is_named_and_nothing_is_copied(sources, destinations, message):
    pool = torch.arange(4.0).repeat(2, 1).T.contiguous()
    before = pool.clone()
    with pytest.raises(ValueError, match=message):
        copy_blocks(pool, sources, destinations)
    assert torch.equal(pool, before)


def test_a_pool_that_is_not_contiguous_is_refused():
    with pytest.raises(ValueError, match="pool: strides"):
        copy_blocks(torch.zeros(4, 6)[:, ::2], [0], [1])


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")
def test_copies_keep_their_place_in_the_current_stream():
    pool = torch.zeros(3, 1 << 22, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for step in range(20):
            pool[0] = step
            copy_blocks(pool, [0], [1])
            copy_blocks(pool, [1], [2])
            assert pool[2].eq(step).all()


@pytest.mark.parametrize("num_tokens", [5, 6, 7, 8])
def test_sequences_that_part_within_a_block_keep_their_own_tokens_in_both_worlds(num_tokens):
    """Three sequences share a prompt and go their own ways: who copies, what each reads, and attends to."""
    generator = np.random.default_rng(num_tokens)
    prompt = generator.standard_normal((num_tokens, 2, 4))
    own = generator.standard_normal((3, 5, 2, 4))  # [sequence][step][K and V][head_dim]
    query = generator.standard_normal((2, 4))
    states = []
    for world in (ReferenceWorld(16, 1, 4, 4), KernelWorld(16, 1, 4, 4)):
        first = BlockTable(4, world.cache.allocate(2), num_tokens)
        world.write(first, range(num_tokens), prompt[:, 0].tolist(), prompt[:, 1].tolist())
        tables = [first, world.fork(first), world.fork(first)]
        for step in range(5):
            for table, tokens in zip(tables, own, strict=True):
                world.append_slot(table)
                world.write(table, [table.num_tokens - 1], *tokens[step, :, None].tolist())
        # The first two copy a last block that is not full, the third keeps it. At an edge nobody copies.
        assert world.copies == ([] if num_tokens == 8 else [(1, 2), (1, 3)])
        for table, tokens in zip(tables, own, strict=True):
            keys, values = np.concatenate([prompt, tokens]).transpose(1, 0, 2)
            assert world.read(table) == [keys.tolist(), values.tolist()]
            weights = np.exp(0.5 * query @ keys.T)
            output = world.attend(query.tolist(), table)
            expected = weights / weights.sum(axis=1, keepdims=True) @ values
            np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-14)
            in_order, plain = type(world)(4, 1, 4, 4), BlockTable(4, range(len(table)), table.num_tokens)
            in_order.write(plain, range(table.num_tokens), keys.tolist(), values.tolist())
            assert in_order.attend(query.tolist(), plain) == output
        for table in tables:
            world.free(table.blocks)
        assert world.allocator.num_free == 16
        states.append(world.state())
    assert states[0] == states[1]


@pytest.mark.parametrize("ids", [[0, 1.0], [0, "1"], torch.tensor([0.0, 1.0])])
def test_ids_that_are_no_integers_are_refused_and_nothing_is_copied(ids):
    pool = torch.arange(8.0).view(4, 2)
    before = pool.clone()
    with pytest.raises(TypeError):
        copy_blocks(pool, ids, [2, 3])
    assert torch.equal(pool, before)


def test_a_block_of_one_number_whatever_its_stride():
    pool = torch.arange(4).view(1, 4).t()
    assert pool.is_contiguous()
    assert as_words(pool).tolist() == [[0], [1], [2], [3]]


def test_numba_on_another_gpu_than_the_pool_is_refused(monkeypatch):
    monkeypatch.setattr(copy_on_write.cuda, "get_current_device", lambda: SimpleNamespace(id=0))
    _check_numba_device(torch.device("cuda:0"))
    with pytest.raises(RuntimeError, match="pool is on cuda:1, but Numba uses cuda:0"):
        _check_numba_device(torch.device("cuda:1"))
