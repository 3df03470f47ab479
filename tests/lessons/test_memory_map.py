"""Toy launches whose accesses are known by hand: what is recorded, what is drawn, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from numba import cuda

from minipaged.course import memory_map
from minipaged.course.checks import WrongAnswerError, last_attempt
from minipaged.course.memory_drawing import draw, try_launch
from minipaged.course.memory_map import OutOfBoundsError, can_record, recording
from minipaged.kernels.attention import decode_attention

pytestmark = pytest.mark.skipif(not can_record(), reason="kernels are compiled here")


@triton.jit
def _move_kernel(source_ptr, target_ptr, num_elements, row_stride, TILE: tl.constexpr):
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    elements = tl.program_id(0) * row_stride + columns
    values = tl.load(source_ptr + elements, mask=columns < num_elements, other=0)
    tl.store(target_ptr + elements, values, mask=columns < num_elements)


@triton.jit
def _count_kernel(count_ptr, seen_ptr):
    before = tl.atomic_add(count_ptr, 1)
    tl.store(seen_ptr + before, tl.program_id(0))


@triton.jit
def _far_kernel(source_ptr, target_ptr, offset):
    tl.store(target_ptr, tl.load(source_ptr + offset))


@triton.jit
def _two_sources_kernel(key_ptr, value_ptr, target_ptr, offset):
    tl.store(target_ptr, tl.load(value_ptr + offset) + tl.load(key_ptr))


@cuda.jit
def _move_threads(source, target):
    row, column = cuda.blockIdx.x, cuda.threadIdx.x
    target[row, column] = source[row, column + cuda.blockIdx.y]


@cuda.jit
def _move_row(source, target, shift):
    target[cuda.threadIdx.x - shift] = source[cuda.threadIdx.x]


@cuda.jit
def _count_threads(counts):
    cuda.atomic.add(counts, cuda.threadIdx.x // 2, 1)


def innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def failed(launch, **arrays) -> tuple[str, memory_map.Recording]:
    """What the launch is refused for."""
    with recording(**arrays) as recorded, pytest.raises(Exception, match=r"read|wrote") as error:
        launch()
    cause = innermost(error.value)
    assert isinstance(cause, OutOfBoundsError)
    return str(cause), recorded


def test_each_element_that_a_program_reads_and_writes_is_recorded():
    source = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    target = torch.zeros(2, 3, dtype=torch.int32)
    with recording(table=source) as recorded:
        _move_kernel[(2, 2)](source, target, 3, 3, TILE=2)
    assert target.tolist() == source.tolist()
    by_program = {}
    for access in recorded.accesses:
        by_program.setdefault((access.program, access.kind, access.array), []).append(access.index)
    assert by_program == {
        ("program (0, 0)", "read", "table"): [(0, 0), (0, 1)],
        ("program (0, 0)", "wrote", "target"): [(0, 0), (0, 1)],
        ("program (0, 1)", "read", "table"): [(0, 2)],
        ("program (0, 1)", "wrote", "target"): [(0, 2)],
        ("program (1, 0)", "read", "table"): [(1, 0), (1, 1)],
        ("program (1, 0)", "wrote", "target"): [(1, 0), (1, 1)],
        ("program (1, 1)", "read", "table"): [(1, 2)],
        ("program (1, 1)", "wrote", "target"): [(1, 2)],
    }
    assert {access.kernel for access in recorded.accesses} == {"_move_kernel"}
    assert recorded.read("table") == {(i, j) for i in range(2) for j in range(3)}
    assert recorded.read("target") == set() and len(recorded.written("target")) == 6


def test_afterwards_launches_are_not_recorded_and_nothing_is_left_changed():
    source, target = torch.ones(4), torch.zeros(4)
    with recording() as recorded:
        _move_kernel[(1, 1)](source, target, 4, 0, TILE=4)
    num_accesses = len(recorded.accesses)
    assert num_accesses == 8
    _move_kernel[(1, 1)](source, target, 4, 0, TILE=4)
    assert len(recorded.accesses) == num_accesses
    with pytest.raises(ZeroDivisionError), recording():
        raise ZeroDivisionError
    with recording() as again:
        _move_kernel[(1, 1)](source, target, 4, 0, TILE=4)
    assert len(again.accesses) == num_accesses == len(recorded.accesses)


def test_an_access_past_the_end_names_program_array_and_index_and_touches_nothing():
    memory = torch.zeros(100, dtype=torch.int32)
    source, target = torch.ones(6, dtype=torch.int32), memory[:6]
    text, recorded = failed(lambda: _move_kernel[(3, 1)](source, target, 4, 2, TILE=4), table=source)
    assert text == "program (2, 0) read table[6], which has 6 entries"
    source = torch.ones(100, dtype=torch.int32)[:64]
    text, recorded = failed(lambda: _move_kernel[(3, 1)](source, target, 4, 2, TILE=4))
    assert text == "program (2, 0) wrote target[6], which has 6 entries"
    assert memory.tolist() == [1] * 6 + [0] * 94
    assert ("program (2, 0)", "wrote") not in {(a.program, a.kind) for a in recorded.accesses}


@pytest.mark.parametrize(
    ("offset", "told"),
    [
        (-1, "source[-1, 7], which has shape [3, 4]"),  # 8 from row to row
        (20, "source[2, 4], which has shape [3, 4]"),
        (24, "source[3, 0], which has shape [3, 4]"),
        (2**40, "source[137438953472, 0], which has shape [3, 4]"),
        (4, "what lies 4 elements past the start of source, between its rows"),
    ],
)
def test_an_index_outside_is_told_by_axes(offset, told):
    source, target = torch.ones(5, 8)[1:4, :4], torch.zeros(1, dtype=torch.float64)
    if offset in (-1, 20):  # what lies between rows counts as past the row
        told = {-1: "source[-1, 7], which has shape [3, 4]", 20: "source[2, 4], which has shape [3, 4]"}[
            offset
        ]
    text, _ = failed(lambda: _far_kernel[(1,)](source, target, offset))
    assert text.startswith(f"program (0) read {told}")


def test_where_two_arrays_lie_in_each_other_both_are_named():
    """K and V are slices of one projection: an element between their rows may have been meant as either's."""
    both, target = torch.ones(4, 12), torch.zeros(1)
    keys, values = both[:, :4], both[:, 4:8]
    with recording(keys=keys, values=values), pytest.raises(Exception, match="keys") as error:
        _two_sources_kernel[(1,)](keys, values, target, 16)
    assert str(innermost(error.value)) == (
        "program (0) read what lies 20 elements past the start of keys, between its rows: "
        "shape [4, 4], strides [12, 1]; values may be meant as well"
    )


def test_what_belongs_to_another_kind_of_array_is_not_taken_for_it():
    """Memory of another dtype, right behind, is out of bounds all the same."""
    memory = torch.zeros(16, dtype=torch.int32)
    source, target = memory[:4], memory[4:].view(torch.float32)
    text, _ = failed(lambda: _far_kernel[(1,)](source, target, 5))
    assert text == "program (0) read source[5], which has 4 entries"


def test_atomics_read_and_write():
    count, seen = torch.zeros(1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    with recording() as recorded:
        _count_kernel[(3,)](count, seen)
    assert [(a.kind, a.program) for a in recorded.accesses if a.array == "count"] == [
        (kind, f"program ({i})") for i in range(3) for kind in ("read", "wrote")
    ]
    assert recorded.written("seen") == [(0,), (1,), (2,)]
    assert count.item() == 3


def test_decode_reads_the_blocks_of_its_row_and_no_slot_past_the_context():
    """Block size 4, lengths 6 and 3: two blocks, the second one half, and one block of three slots."""
    tables = torch.tensor([[5, 2], [7, 0]], dtype=torch.int32)
    lengths = torch.tensor([6, 3], dtype=torch.int32)
    pool = torch.randn(8, 2, 4, 2, 16)  # K and V of a block lie side by side
    keys, values = pool[:, 0], pool[:, 1]
    with recording(key_cache=keys, value_cache=values, block_tables=tables) as recorded:
        decode_attention(torch.randn(2, 4, 16), keys, values, tables, lengths, scale=0.25)
    slots = {(5, 0), (5, 1), (5, 2), (5, 3), (2, 0), (2, 1), (7, 0), (7, 1), (7, 2)}
    assert {index[:2] for index in recorded.read("key_cache")} == slots
    assert {index[:2] for index in recorded.read("value_cache")} == slots
    assert recorded.read("block_tables") == {(0, 0), (0, 1), (1, 0)}
    assert draw(recorded, "key_cache") == "\n".join(
        [
            "_decode_kernel: which program used which block of key_cache [8, 4, 2, 16]",
            "            block  0  1  2  3  4  5  6  7",
            "program (0, 0, 0)  ·  · r2  ·  ·  r  ·  ·",
            "program (0, 1, 0)  ·  · r2  ·  ·  r  ·  ·",
            "program (1, 0, 0)  ·  ·  ·  ·  ·  ·  · r3",
            "program (1, 1, 0)  ·  ·  ·  ·  ·  ·  · r3",
            "r2: 2 of the block's 4 entries; r: all of them",
        ]
    )


def test_a_toy_launch_returns_its_drawing_and_its_recording():
    source, target = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    drawing, recorded = try_launch(
        "a move", "", lambda: _move_kernel[(1, 1)](source, target, 4, 0, TILE=4), ["to"], to=target
    )
    assert drawing == draw(recorded, "to") and "of to [4]" in drawing
    assert recorded.read("source") == {(0,), (1,), (2,), (3,)}


def test_a_toy_launch_outside_of_its_arrays_is_told_with_what_was_touched():
    source, target = torch.ones(64)[:4], torch.zeros(1)
    with pytest.raises(WrongAnswerError) as error:
        try_launch(
            "far", lambda outside: f"why: {outside}", lambda: _far_kernel[(1,)](source, target, 5), ["source"]
        )
    assert error.value.tried == "far" and error.value.got == "program (0) read source[5], which has 4 entries"
    assert error.value.why == f"why: {error.value.got}"
    tried, why = last_attempt()
    assert tried == "far" and callable(why)
    assert why(ValueError("another error")) == "", "`why` is told for an access outside of the arrays only"
    assert "single boolean" in why(ValueError("mask has unsupported dtype"))


def test_a_drawing_fits_its_width_and_leaves_nothing_out():
    source, target = torch.zeros(64, 4), torch.zeros(64, 4)
    with recording() as recorded:
        _move_kernel[(64, 1)](source, target, 4, 4, TILE=4)
    lines = draw(recorded, "target").splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "and 52 more programs"
    row = next(line for line in lines if line.startswith(" program (3, 0)"))
    assert row.split()[3:].index("w") == 3
    everything = draw(recorded)
    assert "of source [64, 4]" in everything and "of target [64, 4]" in everything
    with recording(unused=source) as nothing:
        pass
    assert draw(nothing, "unused") == "no program touched unused"


def test_many_columns_are_cut_to_those_that_were_touched():
    source, target = torch.zeros(1000, 2), torch.zeros(1000, 2)
    with recording() as recorded:
        _move_kernel[(3, 1)](source, target, 2, 400, TILE=2)
    assert draw(recorded, "target").splitlines()[1:] == [
        "           row   0 200 400",
        "program (0, 0)   w   ·   ·",
        "program (1, 0)   ·   w   ·",
        "program (2, 0)   ·   ·   w",
    ]


def test_threads_of_a_simulated_kernel_are_recorded_by_block_and_thread():
    source, target = np.arange(6).reshape(2, 3), np.zeros((2, 3), dtype=np.int64)
    with recording(pool=source) as recorded:
        _move_threads[(2, 1), 3](source, target)
    assert (target == source).all()
    assert {(a.program, a.kind, a.array, a.index) for a in recorded.accesses} == {
        (f"block {block}, thread {thread}", kind, array, (block, thread))
        for block in range(2)
        for thread in range(3)
        for kind, array in (("read", "pool"), ("wrote", "target"))
    }
    assert draw(recorded, "target").splitlines()[1:] == [
        "              row  0  1",
        *(f"block 0, thread {t} w1  ·" for t in range(3)),
        *(f"block 1, thread {t}  · w1" for t in range(3)),
        "w1: 1 of the row's 3 entries; w: all of them",
    ]


def test_threads_are_drawn_by_number_in_whatever_order_they_ran():
    recorded = memory_map.Recording()
    recorded.begin("_move_row")
    recorded.add_argument("target", np.zeros(3))
    for thread in (10, 2, 0):
        recorded.note(f"block 0, thread {thread}", "wrote", "target", [(thread % 3,)])
    rows = draw(recorded, "target").splitlines()[2:]
    assert [row[:19].split()[3] for row in rows] == ["0", "2", "10"]


def test_a_simulated_thread_outside_is_named_and_a_negative_index_does_not_wrap():
    source, target = np.arange(6).reshape(2, 3), np.zeros((2, 3), dtype=np.int64)
    text, _ = failed(lambda: _move_threads[(2, 2), 3](source, target), pool=source)
    assert text == "block (0, 1), thread 2 read pool[0, 3], which has shape [2, 3]"
    line, copy = np.arange(4), np.zeros(4, dtype=np.int64)
    text, recorded = failed(lambda: _move_row[1, 1](line, copy, 1))
    assert text == "block 0, thread 0 wrote target[-1], which has 4 entries"
    assert not copy.any() and recorded.written("target") == []


def test_rows_and_atomics_of_simulated_kernels():
    source, target = np.arange(6).reshape(2, 3), np.zeros((2, 3), dtype=np.int64)
    with recording() as recorded:
        _move_row[1, 2](source, target, 0)
    assert (target == source).all()
    assert (
        recorded.read("source")
        == set(recorded.written("target"))
        == {(i, j) for i in (0, 1) for j in (0, 1, 2)}
    )
    counts = np.zeros(2, dtype=np.int64)
    with recording() as recorded:
        _count_threads[1, 4](counts)
    assert counts.tolist() == [2, 2]
    assert sorted(recorded.written("counts")) == [(0,), (0,), (1,), (1,)]


def test_an_interpreter_that_is_not_as_expected_is_told(monkeypatch):
    from triton.runtime import interpreter

    monkeypatch.delattr(interpreter.InterpreterBuilder, "create_masked_load")
    with pytest.raises(RuntimeError, match="has no create_masked_load, so memory accesses"), recording():
        pass


def test_compiled_kernels_cannot_be_recorded(monkeypatch):
    monkeypatch.setattr(memory_map, "can_record", lambda: False)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"), recording():
        pass
