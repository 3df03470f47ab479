"""Swapping in two worlds: plain Python lists with the reference, and torch pools with the kernels.

One scenario runs in both: three beams that share their prompt go to the host and come back to other blocks,
while everything they left behind is overwritten with NaN. Bookkeeping and caches must be equal, and attention
must give the very same bits as before the swap, within its bound of a dense computation.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from problems import assert_close, from_dense, oracle
from torch import Tensor

from minipaged.kernels import attention_cpu, copy_on_write
from minipaged.kernels.copy_on_write import as_words, launch_copy_blocks
from minipaged.kernels.swap import host_pool, swap_blocks
from minipaged.reference import attention as reference_attention
from minipaged.reference import swap as reference
from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.block_table import num_blocks_for

HAS_GPU = torch.cuda.is_available()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")

BLOCK_SIZE, KV_HEADS, HEAD_DIM = 2, 1, 2  # 64 bytes a block in float64: the simulator is slow
BLOCK_SHAPE = (1, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
NUM_HEADS, SCALE = 2, 0.7
NUM_BLOCKS, NUM_HOST_BLOCKS = 12, 9

Swap = Callable[[Any, Any, Sequence[int], Sequence[int]], None]


def swap_by_kernel(
    source_pool: Tensor, destination_pool: Tensor, sources: Sequence[int], destinations: Sequence[int]
) -> None:
    """The kernel on CPU pools: in the simulator on their memory, or with one of them on a GPU for a while."""
    if HAS_GPU:
        source = source_pool.cuda()
        destination = host_pool(source, len(destination_pool)).copy_(destination_pool)
        swap_blocks(source, destination, sources, destinations)
        torch.cuda.synchronize()
        destination_pool.copy_(destination)
        return
    assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    pairs = np.array([sources, destinations], dtype=np.int64).T
    widest = min(as_words(pool).element_size() for pool in (source_pool, destination_pool))
    words = [as_words(pool, widest).numpy() for pool in (source_pool, destination_pool)]
    launch_copy_blocks(*words, np.ascontiguousarray(pairs))


SWAPS = [pytest.param(swap_blocks, id="cpu"), pytest.param(swap_by_kernel, id="kernel")]


# ---- one scenario, two worlds --------------------------------------------------------------------------


class Plain:
    """Pools of nested lists, the reference's copies and its attention, one sequence after the other."""

    swap_blocks = staticmethod(reference.swap_blocks)

    def new_pool(self, num_blocks: int) -> Any:
        return torch.full((num_blocks, *BLOCK_SHAPE), torch.nan, dtype=torch.float64).tolist()

    def write(self, pool: Any, block: int, content: Tensor) -> None:
        pool[block] = content.tolist()

    def attend(self, queries: Tensor, pool: Any, tables: list[list[int]], lengths: list[int]) -> Tensor:
        keys, values = ([block[0][kv] for block in pool] for kv in (0, 1))
        rows = zip(queries.tolist(), tables, lengths, strict=True)
        return torch.tensor(
            [
                reference_attention.decode_attention(query, keys, values, table, length, scale=SCALE)
                for query, table, length in rows
            ],
            dtype=torch.float64,
        )


class Kernels:
    """Torch pools, the kernels' copies and their attention, all sequences in one call."""

    def __init__(self, swap: Swap) -> None:
        self.swap_blocks = swap

    def new_pool(self, num_blocks: int) -> Tensor:
        return torch.full((num_blocks, *BLOCK_SHAPE), torch.nan, dtype=torch.float64)

    def write(self, pool: Tensor, block: int, content: Tensor) -> None:
        pool[block] = content

    def attend(self, queries: Tensor, pool: Tensor, tables: list[list[int]], lengths: list[int]) -> Tensor:
        rows = [torch.tensor(table, dtype=torch.int32) for table in tables]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        context_lengths = torch.tensor(lengths, dtype=torch.int32)
        return attention_cpu.decode_attention(
            queries, pool[:, 0, 0], pool[:, 0, 1], padded, context_lengths, scale=SCALE
        )


class Trace(NamedTuple):
    """What a world has to show for the scenario."""

    pairs: list[list[tuple[int, int]]]
    tables: list[list[list[int]]]
    counts: list[list[int]]
    pools: list[Any]
    before: Tensor
    after: Tensor


NAN_BLOCK = torch.full(BLOCK_SHAPE, torch.nan, dtype=torch.float64)
LENGTHS = [7, 8, 5]  # 4 blocks each, and 3 for the last beam: the first two blocks are shared


@pytest.fixture(scope="module")
def contents() -> tuple[Tensor, list[Tensor]]:
    """The queries, and for each beam its K and V by position, [length, 2, KV_HEADS, HEAD_DIM]."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    prompt = normal(2 * BLOCK_SIZE, 2, KV_HEADS, HEAD_DIM)
    tails = [normal(length - len(prompt), 2, KV_HEADS, HEAD_DIM) for length in LENGTHS]
    return normal(len(LENGTHS), NUM_HEADS, HEAD_DIM), [torch.cat([prompt, tail]) for tail in tails]


def play(world: Plain | Kernels, queries: Tensor, beams: list[Tensor]) -> Trace:
    allocator, host_allocator = BlockAllocator(NUM_BLOCKS), BlockAllocator(NUM_HOST_BLOCKS)
    pool, host = world.new_pool(NUM_BLOCKS), world.new_pool(NUM_HOST_BLOCKS)
    pairs, table_history, counts = [], [], []

    def note(tables: list[list[int]]) -> None:
        table_history.append([list(table) for table in tables])
        for one in (allocator, host_allocator):
            counts.append([one.reference_count(block) for block in range(one.num_blocks)])

    prefix = allocator.allocate(2)
    allocator.share(prefix * 2)
    tables = [prefix + allocator.allocate(num_blocks_for(n, BLOCK_SIZE) - 2) for n in LENGTHS]
    outside = prefix[:1]  # a prefix hit of another request
    allocator.share(outside)
    for table, tokens in zip(tables, beams, strict=True):
        for index, block in enumerate(table):
            content = NAN_BLOCK.clone()
            rows = tokens[index * BLOCK_SIZE : (index + 1) * BLOCK_SIZE]
            content[0, :, : len(rows)] = rows.transpose(0, 1)
            world.write(pool, block, content)
    note(tables)
    before = world.attend(queries, pool, tables, LENGTHS)

    host_allocator.allocate(2)
    pairs.append(reference.swap_out(tables, allocator, host_allocator))
    world.swap_blocks(pool, host, *zip(*pairs[-1], strict=True))
    note(tables)
    for block in allocator.free_order():  # nothing that is needed may be left behind
        world.write(pool, block, NAN_BLOCK)
    allocator.allocate(5)

    pairs.append(reference.swap_in(tables, allocator, host_allocator, {2: outside[0]}))
    world.swap_blocks(host, pool, *zip(*pairs[-1], strict=True))
    note(tables)
    for block in host_allocator.free_order():
        world.write(host, block, NAN_BLOCK)
    after = world.attend(queries, pool, tables, LENGTHS)
    return Trace(pairs, table_history, counts, [pool, host], before, after)


@pytest.mark.parametrize("swap", SWAPS)
def test_both_worlds_agree_and_attention_keeps_its_bits(swap: Swap, contents: tuple[Tensor, list[Tensor]]):
    queries, beams = contents
    plain, kernels = play(Plain(), queries, beams), play(Kernels(swap), queries, beams)

    assert plain.pairs == kernels.pairs
    assert plain.pairs[0] == [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8)]
    assert [source for source, _ in plain.pairs[1]] == [3, 4, 5, 6, 7, 8]  # host block 2 was resident
    assert plain.tables == kernels.tables
    start, _, end = plain.tables
    assert start == [[0, 1, 2, 3], [0, 1, 4, 5], [0, 1, 6]]
    assert end == [[0, 3, 7, 8], [0, 3, 9, 10], [0, 3, 11]]  # all but the resident block are others
    assert plain.counts == kernels.counts

    for lists, tensor in zip(plain.pools, kernels.pools, strict=True):
        assert torch.equal(
            torch.tensor(lists, dtype=torch.float64).view(torch.int64), tensor.view(torch.int64)
        )

    keys, values = ([beam[:, kv] for beam in beams] for kv in (0, 1))
    expected = oracle(from_dense(queries, keys, values, scale=SCALE, block_size=BLOCK_SIZE))
    for trace in (plain, kernels):
        assert torch.equal(trace.before, trace.after)
        assert_close(trace.after, expected)


# ---- the copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_pair_is_copied_and_nothing_else(swap: Swap, dtype: torch.dtype):
    source = torch.randn(5, 2, 2, 3, 1, 5).to(dtype)
    source[3] = float("nan")  # stale slots may hold anything, and bytes are bytes
    destination = torch.randn(7, 2, 2, 3, 1, 5).to(dtype)
    source_before, before = source.clone(), destination.clone()
    swap(source, destination, [4, 0, 3, 4], [0, 4, 6, 3])
    expected = [source[4], before[1], before[2], source[4], source[0], before[5], source[3]]
    for block, wanted in zip(destination, expected, strict=True):
        assert torch.equal(block.view(torch.uint8), wanted.view(torch.uint8))
    assert torch.equal(source.view(torch.uint8), source_before.view(torch.uint8))


@pytest.mark.parametrize("swap", SWAPS)
def test_pools_whose_addresses_allow_words_of_unequal_width(swap: Swap):
    """Blocks of 64 bytes in both, but one pool starts 4 bytes off the address of an 8-byte word."""
    memory = torch.arange(16 * 3 + 1, dtype=torch.float32)
    source, destination = memory[1:].view(3, 16), torch.zeros(2, 16)
    assert (as_words(source).element_size(), as_words(destination).element_size()) == (4, 8)
    swap(source, destination, [2], [1])
    assert torch.equal(destination, torch.stack([torch.zeros(16), memory[33:]]))


def test_ids_may_be_tensors_and_none_at_all():
    source, destination = torch.arange(3.0)[:, None], torch.zeros(4, 1)
    swap_blocks(source, destination, torch.tensor([2, 1]), torch.tensor([3, 0], dtype=torch.int32))
    swap_blocks(source, destination, [], [])
    assert destination[:, 0].tolist() == [1.0, 0.0, 0.0, 2.0]


def test_a_host_pool_has_blocks_like_those_of_the_pool():
    host = host_pool(torch.empty(3, 2, 5, dtype=torch.bfloat16), 7)
    assert (host.shape, host.dtype, host.device.type) == ((7, 2, 5), torch.bfloat16, "cpu")
    assert not host.is_pinned()
    with pytest.raises(ValueError, match="num_blocks: 0, must be at least 1"):
        host_pool(host, 0)


# ---- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "destinations", "message"),
    [
        ([0, 1], [3, 3], "destinations: block 3 is named twice"),
        ([0, 2], [2, 3], "sources: block 2, its pool has blocks 0 to 1"),
        ([0, 1], [4, 0], "destinations: block 4, its pool has blocks 0 to 3"),
        ([0, -1], [1, 0], "sources: block -1, its pool"),
        ([0, 1], [1, -1], "destinations: block -1, its pool"),
        ([0, 1], [2], "sources, destinations: 2 and 1 blocks"),
    ],
)
def test_a_bad_pair_is_named_and_nothing_is_copied(sources: list[int], destinations: list[int], message: str):
    source, destination = torch.ones(2, 3), torch.zeros(4, 3)
    with pytest.raises(ValueError, match=message):
        swap_blocks(source, destination, sources, destinations)
    assert not destination.any()


POOL = torch.zeros(4, 6)


@pytest.mark.parametrize(
    ("source", "destination", "error", "message"),
    [
        (POOL, torch.ones(4, 6).half(), TypeError, "destination_pool: dtype torch.float16, but source_pool"),
        (POOL, torch.ones(4, 3), ValueError, r"destination_pool: blocks of shape \[3\], but .* \[6\]"),
        (POOL, torch.ones(4, 2, 3), ValueError, r"destination_pool: blocks of shape \[2, 3\]"),
        (POOL, torch.ones(6, 4).T, ValueError, "destination_pool: strides"),
        (POOL.T, torch.ones(6, 4), ValueError, "source_pool: strides"),
        (POOL, POOL, ValueError, "overlap"),
        (POOL[:3], POOL[2:], ValueError, "overlap"),
        (POOL[2:], POOL[:3], ValueError, "overlap"),
        (POOL, torch.ones(4, 6, device="meta"), ValueError, "on cpu and meta, must be"),
    ],
)
def test_pools_that_do_not_fit_are_named(
    source: Tensor, destination: Tensor, error: type[Exception], message: str
):
    before = destination.clone()
    with pytest.raises(error, match=message):
        swap_blocks(source, destination, [0], [1])
    assert destination.is_meta or torch.equal(destination, before)


def test_halves_of_one_tensor_are_two_pools():
    memory = torch.arange(4.0)[:, None]
    swap_blocks(memory[:2], memory[2:], [1], [0])
    assert memory[:, 0].tolist() == [0.0, 1.0, 1.0, 3.0]


class OnGpu(Tensor):
    """A CPU tensor that says it is on a GPU."""

    @property
    def is_cuda(self) -> bool:
        return True


class NamesGpu(OnGpu):
    """One that names the GPU too."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)


def test_a_gpu_needs_pinned_memory_on_the_other_side():
    on_gpu = torch.zeros(4, 6).as_subclass(NamesGpu)
    with pytest.raises(ValueError, match="destination_pool: must be pinned memory"):
        swap_blocks(on_gpu, torch.zeros(4, 6), [0], [1])
    with pytest.raises(ValueError, match="source_pool: must be pinned memory"):
        swap_blocks(torch.zeros(4, 6), on_gpu, [0], [1])
    with pytest.raises(ValueError, match="must be one on CUDA and one on the CPU"):
        swap_blocks(on_gpu, on_gpu, [0], [1])


# ---- the way to a GPU ----------------------------------------------------------------------------------


@pytest.mark.skipif(HAS_GPU, reason="the real thing is tested below")
@pytest.mark.parametrize("out", [True, False])
def test_one_launch_gets_the_addresses_of_both_pools(out: bool, monkeypatch: pytest.MonkeyPatch):
    """All that leads to the launch, without a GPU: torch and Numba are asked for what is faked here."""
    launches = []

    def from_interface(interface: dict[str, Any], owner: Tensor, sync: bool) -> np.ndarray:
        assert not sync
        return np.asarray(SimpleNamespace(__array_interface__=interface, owner=owner))

    def launch(sources: np.ndarray, destinations: np.ndarray, pairs: np.ndarray, stream: str) -> None:
        launches.append(stream)
        launch_copy_blocks(sources, destinations, pairs)

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(copy_on_write.cuda, "get_current_device", lambda: SimpleNamespace(id=None))
    monkeypatch.setattr(copy_on_write.cuda, "external_stream", "stream {}".format)
    monkeypatch.setattr(copy_on_write.cuda, "from_cuda_array_interface", from_interface, raising=False)
    monkeypatch.setattr(copy_on_write, "launch_copy_blocks", launch)
    source, destination = torch.arange(25.0)[1:].view(4, 6), torch.zeros(5, 6)  # words of 4 and 8 bytes
    pools = (source.as_subclass(OnGpu), destination) if out else (source, destination.as_subclass(OnGpu))
    copy_on_write.copy_pairs(*pools, [(3, 0), (1, 4)])
    assert launches == ["stream 7"]
    assert destination[:, 0].tolist() == [19.0, 0.0, 0.0, 0.0, 7.0]
    assert destination[0].tolist() == source[3].tolist()
    copy_on_write.copy_pairs(*pools, [])
    assert launches == ["stream 7"]


@pytest.fixture
def busy_stream() -> Iterator[torch.cuda.Stream]:
    """A stream with work of some milliseconds ahead of whatever a test launches on it."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        yield stream


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_round_trip_through_pinned_memory_keeps_every_byte(dtype: torch.dtype):
    pool = torch.randn(6, 3, 2, 4, 2, 5, device="cuda").to(dtype)
    before = pool.clone()
    host = host_pool(pool, 4)
    assert host.is_pinned()
    swap_blocks(pool, host, [5, 0, 2], [3, 1, 0])
    pool[[5, 0, 2]] = float("nan")
    swap_blocks(host, pool, [3, 1, 0], [2, 5, 0])
    torch.cuda.synchronize()
    for now, then in zip(range(6), [2, 1, 5, 3, 4, 0], strict=True):
        assert torch.equal(pool[now].view(torch.uint8), before[then].view(torch.uint8))
    for there, then in ((3, 5), (1, 0), (0, 2)):
        assert torch.equal(host[there].view(torch.uint8), before[then].cpu().view(torch.uint8))


@pytest.mark.gpu
@needs_gpu
def test_swaps_keep_their_place_in_the_current_stream(busy_stream: torch.cuda.Stream):
    pool, results = torch.zeros(2, 1 << 20, device="cuda"), []
    host = host_pool(pool, 1)
    for step in range(1, 11):
        pool[0] = step  # computed before the block goes out ...
        swap_blocks(pool, host, [0], [0])
        pool[0] = float("nan")  # ... written again after it went, and before it comes back elsewhere
        swap_blocks(host, pool, [0], [1])
        results.append(pool[1].clone())
    for step, result in enumerate(results, start=1):
        assert result.eq(step).all()


@pytest.mark.gpu
@needs_gpu
def test_a_swap_does_not_wait_for_the_stream(busy_stream: torch.cuda.Stream):
    pool = torch.ones(2, 64, device="cuda")
    host = host_pool(pool, 1).zero_()
    busy_stream.synchronize()
    swap_blocks(pool, host, [0], [0])  # compiled by now
    torch.cuda._sleep(200_000_000)
    swap_blocks(pool, host, [1], [0])
    assert not busy_stream.query()
    busy_stream.synchronize()
    assert host.eq(1).all()
