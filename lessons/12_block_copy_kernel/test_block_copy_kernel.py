"""Grades lesson 12. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda

from minipaged.course.checks import check, check_true, only_for, trying
from minipaged.course.memory_map import can_record, recording

Pairs = list[tuple[int, int]]


def words_of(num_blocks: int, num_words: int, first: int) -> Any:
    """A pool in which no two words are alike: word w of block b is first + 10 b + w."""
    return np.array([[first + 10 * b + w for w in range(num_words)] for b in range(num_blocks)])


def copied(source: Any, destination: Any, pairs: Pairs) -> Any:
    """What the destination pool must be afterwards, a word at a time."""
    result = destination.copy()
    for block, onto in pairs:
        for word in range(source.shape[1]):
            result[onto, word] = source[block, word]
    return result


def check_kernel(
    exercise: ModuleType, num_blocks: int, num_words: int, pairs: Pairs, parts: int, threads: int
) -> None:
    """Launch the kernel on two pools, and compare every word of both."""
    source, destination = words_of(num_blocks, num_words, 0), words_of(num_blocks, num_words, 500)
    before, expected = source.copy(), copied(source, destination, pairs)
    tried = (
        f"pairs {list(map(list, pairs))}, {num_words} words a block, grid [{len(pairs)}, {parts}], "
        f"{threads} thread{'s' if threads > 1 else ''} a thread block"
    )
    start = destination.copy()
    watched = recording() if can_record() else nullcontext()  # names the thread of an access out of bounds
    with trying(tried, lambda error: outside(error, parts * threads, num_words)), watched:
        exercise._copy_kernel[(len(pairs), parts), threads](source, destination, np.array(pairs))
    check(
        f"the source pool after {tried}",
        source.tolist(),
        before.tolist(),
        "the kernel wrote to the pool that it reads from: source and destination are swapped",
    )
    check(
        f"the destination pool (its words began at 500, the source's at 0) after {tried}",
        destination.tolist(),
        expected.tolist(),
        lambda got: reason(np.array(got), before, start, pairs, parts, threads),
    )


def _why_launched(got: Any, first: Any, pairs: Pairs) -> str:
    """Why a launch left words out. `first` is the pool if only the first pair is copied."""
    if len(pairs) > 1 and (got == first).all():
        return (
            "only the first pair was copied: the grid is (number of pairs, parts), the pairs along its x axis"
        )
    return "the grid needs a thread block for each pair, and at least one part"


def outside(error: BaseException, num_threads: int, num_words: int) -> str:
    """Why a kernel may reach past its arrays, for an IndexError."""
    if not isinstance(error, IndexError):
        return ""
    if re.search(rf"_words\[\d+, {num_words}\]", str(error)):
        return (
            f"none may reach past the last word: a block has the words 0 to {num_words - 1}, and the loop "
            f"ends before source_words.shape[1], also if {num_threads} threads do not divide it evenly"
        )
    if num_words % num_threads:
        return (
            f"{num_threads} threads, {num_words} words: it isn't even, and none may reach past the last word"
        )
    return "an index is outside its array: pairs is [n, 2], one row a pair; the pools are [num_blocks, words]"


def reason(got: Any, source: Any, start: Any, pairs: Pairs, parts: int, threads: int) -> str:
    """The misconception that gives this very pool."""
    if (got == start).all():
        return "nothing was written: one word goes from source_words[source, word] to destination_words"
    if len(pairs) > 1 and (got == copied(source, start, pairs[:1])).all():
        return "only the first pair was copied: cuda.blockIdx.x says which pair a thread block works on"
    num_words = source.shape[1]
    for block, onto in pairs:
        done = [word for word in range(num_words) if got[onto, word] == source[block, word]]
        if len(done) == num_words:
            continue
        missing = [word for word in range(num_words) if word not in done]
        if parts > 1 and set(done) <= {t + k * parts * threads for t in range(threads) for k in range(99)}:
            return (
                f"words {missing} were left out: threadIdx.x counts within one thread block, and each of "
                f"the {parts} parts has the same numbers: add the threads of the parts before it"
            )
        if done == list(range(min(parts * threads, num_words))):
            return (
                f"words {missing} were left out: each of the {parts * threads} threads copied one word and "
                f"stopped. With a step of T it goes on to the end (a grid-stride loop)"
            )
        if not done:
            return f"block {onto} is no copy of block {block}: pairs[x] is (source, destination), x the pair"
        return (
            f"words {missing} of the copy of block {block} were left out: the loop ends where the words end, "
            f"and {parts * threads} threads need not divide {num_words} words evenly"
        )
    return "a block that is in no pair was written"


def test_one_pair_and_a_thread_for_each_word(exercise: ModuleType) -> None:
    """Thread t copies word t of the source block onto word t of the destination block."""
    check_kernel(exercise, 2, 1, [(0, 1)], parts=1, threads=1)
    check_kernel(exercise, 4, 3, [(1, 2)], parts=1, threads=3)
    check_kernel(exercise, 4, 3, [(3, 0)], parts=1, threads=3)


def test_each_pair_has_its_own_thread_blocks(exercise: ModuleType) -> None:
    """cuda.blockIdx.x is the pair: many pairs are copied in one launch."""
    check_kernel(exercise, 4, 2, [(0, 1), (2, 3)], parts=1, threads=2)
    check_kernel(exercise, 6, 2, [(5, 0), (1, 4), (3, 2)], parts=1, threads=2)


def test_one_source_may_serve_several_destinations(exercise: ModuleType) -> None:
    """A block that three sequences share is copied twice."""
    check_kernel(exercise, 4, 2, [(2, 0), (2, 3)], parts=1, threads=2)


def test_fewer_threads_than_words(exercise: ModuleType) -> None:
    """A thread goes on with every T-th word until the words end."""
    check_kernel(exercise, 2, 4, [(0, 1)], parts=1, threads=2)
    check_kernel(exercise, 2, 5, [(1, 0)], parts=1, threads=2)
    check_kernel(exercise, 2, 3, [(1, 0)], parts=1, threads=1)


def test_several_parts_share_a_pair(exercise: ModuleType) -> None:
    """The threads of all parts are counted in one row: those of the parts before come first."""
    check_kernel(exercise, 2, 4, [(0, 1)], parts=2, threads=2)
    check_kernel(exercise, 3, 3, [(2, 0)], parts=3, threads=1)
    check_kernel(exercise, 4, 7, [(3, 1), (0, 2)], parts=2, threads=2)


def test_more_threads_than_words(exercise: ModuleType) -> None:
    """A thread whose number is past the last word touches nothing."""
    check_kernel(exercise, 3, 2, [(0, 1)], parts=1, threads=3)
    check_kernel(exercise, 3, 3, [(2, 1)], parts=2, threads=2)
    check_kernel(exercise, 3, 1, [(2, 0)], parts=3, threads=2)


def test_words_are_moved_as_they_are(exercise: ModuleType) -> None:
    """A word is 8 bytes of anything: none of its bits may change."""
    words = [2**53 + 1, -(2**53) - 1, 2**62 + 1]
    source, destination = np.array([[0, 0, 0], words]), np.zeros((2, 3), dtype=np.int64)
    tried = f"pairs [[1, 0]], words {words}, grid [1, 1], 3 threads a thread block"
    with trying(tried):
        exercise._copy_kernel[(1, 1), 3](source, destination, np.array([[1, 0]]))
    check(
        f"the destination block after {tried}",
        destination[0].tolist(),
        words,
        "a word is no number to compute with, and a float has 53 bits for its 64: move it as it is",
    )


def test_each_word_is_copied_once_by_its_thread(exercise: ModuleType) -> None:
    """Thread t copies the words t, t + T, t + 2T, where T is the number of threads that share the pair."""
    for num_words, parts, threads in ((4, 2, 1), (6, 2, 2), (7, 3, 2), (20, 1, 1)):
        noted = note_threads(exercise, num_words, parts, threads)
        tried = f"{num_words} words and {parts} parts of {threads} threads"
        check(
            f"blocks that the threads of pair [0, 1] have written, and not those of [0, 2], with {tried}",
            sorted({1, *noted.other_blocks}),
            [1],
            "cuda.blockIdx.x is the one pair of a thread: one that goes through all pairs copies again what "
            "the other thread blocks copy",
        )
        check(
            f"how often each word was written, with {tried}",
            list(map(len, noted.writers)),
            [1] * num_words,
            wrong_count,
        )
        check(
            f"which thread has copied each word, with {tried}",
            [writer for (writer,) in noted.writers],
            [word % (parts * threads) for word in range(num_words)],
            "thread t, the threads of the parts before it counted first, has the words t, t + T, t + 2T: "
            "then neighbours copy neighbouring words, which a GPU moves in one go. A thread with a piece of "
            "its own, or numbered across the parts, is slower",
        )
        turns = [noted.waits.count(thread) for thread in range(parts * threads)]
        check(
            f"cuda.syncthreads() by each thread, with {tried}",
            turns,
            [turns[0]] * len(turns),
            "no thread needs what another has copied, so none has to wait. In a loop whose turns differ from "
            "thread to thread, a GPU may wait forever for one that has ended",
        )


def wrong_count(counts: list[int]) -> str:
    """Why words were written more or less often than once."""
    if 0 in counts:
        return (
            f"words {[word for word, count in enumerate(counts) if not count]} were left out: the loop ends "
            f"where the words end, and not after some number of turns"
        )
    return (
        "the step of the loop is T = cuda.gridDim.y * cuda.blockDim.x: with less, several threads copy "
        "the same word, which a GPU pays for in time"
    )


class Pool:
    """Three blocks of words, indexed as an array is, which notes the writers of the words of block 1."""

    ndim = 2

    def __init__(self, num_words: int) -> None:
        self.shape = (3, num_words)
        self.size = 3 * num_words
        self.writers: list[list[int]] = [[] for _ in range(num_words)]
        self.other_blocks: set[int] = set()  # that were written too
        self.waits: list[int] = []  # the threads that called cuda.syncthreads
        self.thread = 0  # that runs now

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: Any) -> Any:
        return 0 if isinstance(place, tuple) else Block(self, place)

    def __setitem__(self, place: Any, value: int) -> None:
        block, words = place
        if block != 1:
            self.other_blocks.add(int(block))
            return
        for writers in self.writers[words] if isinstance(words, slice) else [self.writers[words]]:
            writers.append(self.thread)


class Block:
    """One block of a pool: pool[block][word] is pool[block, word]."""

    ndim = 1

    def __init__(self, pool: Pool, block: int) -> None:
        self.pool, self.block = pool, block
        self.shape, self.size = pool.shape[1:], pool.shape[1]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, word: Any) -> int:
        return 0

    def __setitem__(self, word: Any, value: int) -> None:
        self.pool[self.block, word] = value


def note_threads(exercise: ModuleType, num_words: int, parts: int, threads: int) -> Pool:
    """What the threads of the first of two pairs have done: the kernel's body is called for one at a time."""
    pool = Pool(num_words)
    body = getattr(exercise._copy_kernel, "py_func", None) or exercise._copy_kernel.fn
    cuda = body.__globals__["cuda"]
    for y in range(parts):
        for t in range(threads):
            pool.thread = y * threads + t
            body.__globals__["cuda"] = SimpleNamespace(
                blockIdx=SimpleNamespace(x=0, y=y, z=0),
                blockDim=SimpleNamespace(x=threads, y=1, z=1),
                gridDim=SimpleNamespace(x=2, y=parts, z=1),
                threadIdx=SimpleNamespace(x=t, y=0, z=0),
                grid=lambda axes, t=t, y=y: t if axes == 1 else (t, y),
                gridsize=lambda axes: 2 * threads if axes == 1 else (2 * threads, parts),
                syncthreads=lambda: pool.waits.append(pool.thread),
            )
            try:
                with trying(f"thread {t} of part {y} of a grid [2, {parts}], {threads} threads each"):
                    body(Pool(num_words), pool, np.array([[0, 1], [0, 2]]))
            finally:
                body.__globals__["cuda"] = cuda
    return pool


def test_the_launch_copies_whole_blocks(exercise: ModuleType) -> None:
    """`launch_copy_blocks` copies all words of all pairs, within one pool or between two."""
    why_launch = (
        "the launch is kernel[grid, threads, stream](arguments), and the grid (number of pairs, parts): a "
        "thread block whose blockIdx.x is no row of pairs has nothing to copy"
    )
    for num_words, pairs in ((1, [(0, 1)]), (3, [(0, 1), (4, 2), (4, 3)]), (37, [(1, 3), (0, 4)])):
        pool, before = words_of(5, num_words, 0), words_of(5, num_words, 0)
        expected = copied(pool, pool, pairs)
        tried = f"launch_copy_blocks within one pool of 5 blocks of {num_words} words, pairs {pairs}"
        with trying(tried, only_for(IndexError, why_launch)):
            exercise.launch_copy_blocks(pool, pool, np.array(pairs))
        check(
            f"the pool after {tried}",
            pool.tolist(),
            expected.tolist(),
            _why_launched(pool, copied(before, before, pairs[:1]), pairs),
        )
    source, destination = words_of(2, 3, 0), words_of(4, 3, 500)
    expected = copied(source, destination, [(1, 3)])
    with trying("launch_copy_blocks from a pool of 2 blocks into one of 4, pairs [(1, 3)]"):
        exercise.launch_copy_blocks(source, destination, np.array([(1, 3)]))
    check(
        "the second pool after launch_copy_blocks from a pool of 2 blocks into one of 4, pairs [(1, 3)]",
        destination.tolist(),
        expected.tolist(),
        "the first pool is read and the second one written, each with its own number of blocks",
    )


class OnDevice:
    """An array in a GPU's memory, of which the host knows the shape; a slice of its rows is another one."""

    dtype = np.dtype(np.int64)

    def __init__(self, name: str, *shape: int) -> None:
        self.name = name
        self.shape = shape
        self.ndim = len(shape)
        self.size = shape[0] * shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> OnDevice:
        if not isinstance(rows, slice):
            self.touched()
        return OnDevice(self.name, len(range(*rows.indices(len(self)))), *self.shape[1:])

    def __setitem__(self, place: Any, value: Any) -> None:
        self.touched()

    def copy_to_host(self, *arguments: Any) -> None:
        self.touched()

    def touched(self) -> None:
        check_true(
            "launch_copy_blocks, which runs on the host",
            False,
            "all arrays left to the kernel",
            f"{self.name} read or written on the host",
            "the arrays lie in a GPU's memory: for each item that the host wants, it must wait until the GPU "
            "has done all its work. A launch needs their shapes only; the kernel copies",
        )


class Stream:
    """A stream, which notes whether somebody waits for it."""

    waited = False

    def __repr__(self) -> str:
        return "the stream that was given"

    def synchronize(self) -> None:
        self.waited = True


@contextmanager
def noted_launches(exercise: ModuleType, stream: Stream) -> Iterator[list[tuple[Any, ...]]]:
    """The configurations with which the kernel is launched in here; nothing runs."""
    launches: list[tuple[Any, ...]] = []

    class Noting:
        def __getitem__(self, configuration: Any) -> Any:
            launches.append(configuration if isinstance(configuration, tuple) else (configuration,))
            return lambda *arguments: None

        def configure(self, *configuration: Any) -> Any:
            return self[configuration]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exercise, "_copy_kernel", Noting())
        patch.setattr(cuda, "synchronize", stream.synchronize)
        yield launches


def configuration(exercise: ModuleType, num_pairs: int, num_words: int, stream: Stream) -> tuple[Any, ...]:
    """Grid, threads and stream of a launch for so many pairs and words."""
    pools = [OnDevice(name, 4, num_words) for name in ("source_words", "destination_words")]
    tried = f"a launch for {num_pairs:,} pairs of {num_words:,} words"
    with noted_launches(exercise, stream) as launches, trying(tried):
        exercise.launch_copy_blocks(*pools, OnDevice("pairs", num_pairs, 2), stream)
    check(
        f"launches for {num_pairs:,} pairs of {num_words:,} words",
        len(launches),
        1,
        "one launch copies all pairs: starting a kernel costs more than a small copy",
    )
    return launches[0]


def test_the_launch_fits_what_a_gpu_takes(exercise: ModuleType) -> None:
    """A grid of one column a pair, 1 to 65535 parts, at most 256 threads and no more than there are words."""
    for num_words in (1, 3, 255, 256, 257, 1000, 4096, 10**6, 10**9):
        tried = f"the launch for 5 pairs of {num_words:,} words"
        grid, threads, *_ = configuration(exercise, 5, num_words, Stream())
        parts = grid[1] if isinstance(grid, tuple) and len(grid) > 1 else None
        check(f"grid[0] of {tried}", grid[0] if isinstance(grid, tuple) else grid, 5, "grid[0]: the pairs")
        check_true(
            f"grid[1] of {tried}",
            isinstance(parts, int) and 1 <= parts <= 65535,
            "an integer from 1 to 65535",
            repr(parts),
            "a grid has at least one part, and at most 65535 in its second axis: the stride does the rest",
        )
        threads = threads[0] if isinstance(threads, tuple) else threads
        check_true(
            f"threads of {tried}",
            isinstance(threads, int) and 1 <= threads <= min(256, num_words),
            f"1 to {min(256, num_words)}",
            repr(threads),
            "at most _THREADS, and a thread without a word has no work",
        )
        check_true(
            f"threads that share a pair in {tried}",
            threads * parts >= min(num_words // 64, 65535 * 32),
            "about one for every few words",
            str(threads * parts),
            "one thread block for a large block leaves most of a GPU idle: parts grows with the words",
        )
        check_true(
            f"threads that share a pair in {tried}",
            threads * parts <= max(num_words, 1),
            f"at most {num_words:,}",
            str(threads * parts),
            "more threads than words: most have no work",
        )


def test_the_launch_takes_any_number_of_pairs(exercise: ModuleType) -> None:
    """The first axis of a grid has room for more pairs than a pool has blocks."""
    grid, *_ = configuration(exercise, 65_536, 1, Stream())
    check(
        "grid[0] of the launch for 65,536 pairs",
        grid[0],
        65_536,
        "the second axis of a grid ends at 65535, its first one at 2147483647: a pair without a thread block "
        "is not copied",
    )


def test_the_launch_is_on_the_stream_it_is_given(exercise: ModuleType) -> None:
    """The copies must come before the writes that follow on the same stream, and the host waits for none."""
    stream = Stream()
    launch = configuration(exercise, 1, 8, stream)
    check(
        "the third part of kernel[grid, threads, stream]",
        launch[2] if len(launch) > 2 else None,
        stream,
        "the fourth part of a launch is its shared memory, the stream is the third one"
        if stream in launch[3:]
        else "without the stream the copy is not in order with what torch launches: a block is written "
        "before it was copied",
    )
    check_true(
        "launch_copy_blocks on a stream",
        not stream.waited,
        "a launch, which the stream puts in order",
        "a launch, and the host waits until it has run",
        "what comes after the copy is on the same stream, and runs after it. The host has the next step to "
        "prepare, and must not wait for a GPU",
    )
