"""Seconds of a step, by hand, and what they must do when a step grows."""

from __future__ import annotations

from typing import Any

import pytest

from minipaged.engine.schedule import Move, Row, Schedule
from minipaged.simulator import cost_model
from minipaged.simulator.cost_model import GPUS, PAPER_SERVERS, CostModel, Server
from minipaged.simulator.model_shape import KNOWN, ModelShape

OPT_13B = KNOWN["opt-13b"]
A100 = PAPER_SERVERS["opt-13b"]
no_one: Any = None  # the request, or its sequence, that a row is of: cost doesn't depend on it


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A roofline alone: data sheets are reached, and nothing is spent beside it."""
    for name, value in {"BANDWIDTH_SHARE": 1.0, "COMPUTE_SHARE": 1.0}.items():
        monkeypatch.setattr(cost_model, name, value)
    for name in ("HOST_SECONDS", "ALL_REDUCE_SECONDS", "TRANSFER_SECONDS"):
        monkeypatch.setattr(cost_model, name, 0.0)
    monkeypatch.setitem(CostModel.__init__.__kwdefaults__, "seconds_per_sequence", 0.0)


def step_of(*spans: tuple[int, int], moves: tuple[str, ...] = ()) -> Schedule:
    """A step with a row for each (start, stop), and moves of those kinds."""
    return Schedule(
        rows=[Row(no_one, no_one, start, stop, True) for start, stop in spans],
        moves=[Move(kind, 0, 1, no_one) for kind in moves],
    )


def windowed(window: int | None, num_window_layers: int) -> ModelShape:
    """As Mistral 7B."""
    return ModelShape(
        name="any",
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        hidden_size=4096,
        num_parameters=7_241_732_096,
        max_model_len=32768,
        window=window,
        num_window_layers=num_window_layers,
    )


@pytest.mark.usefixtures("bare")
def test_a_decode_step_of_opt_13b_by_hand() -> None:
    """10 sequences of 500 tokens: weights of 25.7 GB and 4.1 GB of K and V, at 1,555 GB a second."""
    seconds = CostModel(OPT_13B, A100, 16).step_seconds(step_of(*[(499, 500)] * 10))
    assert seconds == pytest.approx((2 * 12_853_473_280 + 10 * 500 * 819_200) / 1555e9)
    assert seconds == pytest.approx(0.019166, abs=1e-6)


@pytest.mark.usefixtures("bare")
def test_a_prompt_of_opt_13b_by_hand() -> None:
    """2,000 tokens are bound by arithmetic at 312 Tflop/s: 2 a weight, 4 a pair and channel (a triangle)."""
    seconds = CostModel(OPT_13B, A100, 16).step_seconds(step_of((0, 2000)))
    linear, attention = 2 * 12_853_473_280 * 2000, 4 * 40 * 5120 * 2000 * 2001 / 2
    assert seconds == pytest.approx((linear + attention) / 312e12)
    assert seconds == pytest.approx(0.170042, abs=1e-6)


def test_shares_of_the_data_sheet_and_what_the_host_spends() -> None:
    seconds = CostModel(OPT_13B, A100, 16).step_seconds(step_of(*[(499, 500)] * 10))
    reads = (2 * 12_853_473_280 + 10 * 500 * 819_200) / 1555e9 / 0.8
    assert seconds == pytest.approx(
        reads + cost_model.HOST_SECONDS + 10 * cost_model.HOST_SECONDS_PER_SEQUENCE
    )


@pytest.mark.usefixtures("bare")
def test_several_gpus_share_the_work_and_reduce_twice_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "ALL_REDUCE_SECONDS", 20e-6)
    shape = KNOWN["opt-66b"]
    seconds = CostModel(shape, PAPER_SERVERS["opt-66b"], 16).step_seconds(step_of(*[(99, 100)] * 8))
    reads = (2 * shape.num_parameters + 8 * 100 * 2_359_296) / (4 * 1555e9)
    # A ring of 4 sends 2 * 3/4 of the 9,216 values of each token, 2 bytes each, at 200 GB a second.
    reduces = 2 * 64 * (20e-6 + 8 * 2 * 3 / 4 * 9216 * 2 / 200e9)
    assert seconds == pytest.approx(reads + reduces)


def test_a_single_gpu_reduces_nothing() -> None:
    cost = CostModel(OPT_13B, A100, 16)
    assert (cost.reduce_seconds, cost.reduce_seconds_per_token) == (0.0, 0.0)


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("start", [(1, 1, 1, 1), (2000, 100, 50_000, 4_000_000)])
@pytest.mark.parametrize("name", ["opt-13b", "opt-66b"])
def test_more_of_anything_never_takes_less(name: str, start: tuple[int, ...], position: int) -> None:
    cost = CostModel(KNOWN[name], PAPER_SERVERS[name], 16)
    seconds = []
    for factor in (1, 2, 10, 100, 1000):
        arguments = list(start)
        arguments[position] *= factor
        seconds.append(cost.forward_seconds(*arguments))
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]


@pytest.mark.parametrize("name", ["memory", "bandwidth", "flops", "host_bandwidth"])
def test_data_sheets_have_the_right_order_of_magnitude(name: str) -> None:
    bounds = {"memory": (2e10, 2e11), "bandwidth": (2e11, 1e13), "flops": (1e14, 1e15)}
    low, high = bounds.get(name, (2e10, 1e11))
    assert all(low < getattr(gpu, name) < high for gpu in GPUS.values())


def test_moves_are_counted_by_kind() -> None:
    """A block of 16 tokens has 13.1 MB: read and written in the pool, or once over PCIe."""
    cost = CostModel(OPT_13B, A100, 16)
    copy = 2 * 16 * 819_200 / (1555e9 * 0.8)
    swap = cost_model.TRANSFER_SECONDS + 16 * 819_200 / 25e9
    assert cost.move_seconds(step_of()) == 0
    assert cost.move_seconds(step_of(moves=("copy",))) == pytest.approx(copy)
    assert cost.move_seconds(step_of(moves=("out", "copy", "in", "out"))) == pytest.approx(copy + 3 * swap)
    alone, decode = step_of(moves=("out", "in")), step_of((9, 10), moves=("out", "in"))
    assert cost.step_seconds(alone) == pytest.approx(2 * swap)  # no forward pass
    assert cost.step_seconds(decode) == pytest.approx(2 * swap + cost.step_seconds(step_of((9, 10))))
    assert cost.step_seconds(Schedule()) == 0


def test_smaller_blocks_are_copied_sooner() -> None:
    small, large = CostModel(OPT_13B, A100, 1), CostModel(OPT_13B, A100, 32)
    assert large.copy_seconds == pytest.approx(32 * small.copy_seconds)
    assert large.swap_seconds - small.swap_seconds == pytest.approx(31 * 819_200 / 25e9)


@pytest.mark.usefixtures("bare")
def test_a_slower_kernel_reads_contexts_slower_and_weights_as_before() -> None:
    slow = CostModel(OPT_13B, A100, 16, attention_slowdown=1.5)
    reads = 2 * 12_853_473_280 + 1.5 * 10 * 500 * 819_200
    assert slow.step_seconds(step_of(*[(499, 500)] * 10)) == pytest.approx(reads / 1555e9)


def test_a_block_in_many_pieces_starts_many_transfers() -> None:
    whole, pieces = CostModel(OPT_13B, A100, 16), CostModel(OPT_13B, A100, 16, copies_per_block=80)
    assert pieces.swap_seconds - whole.swap_seconds == pytest.approx(79 * cost_model.TRANSFER_SECONDS)
    assert pieces.copy_seconds == whole.copy_seconds


@pytest.mark.usefixtures("bare")
def test_a_window_bounds_the_context_of_its_layers() -> None:
    server = Server(GPUS["a100-40gb"], 1, 1 << 34)
    weights = 2 * 7_241_732_096
    for num_window_layers, tokens_read in ((32, 4096), (16, (4096 + 8192) // 2), (0, 8192)):
        cost = CostModel(windowed(4096, num_window_layers), server, 16)
        seconds = cost.step_seconds(step_of((8191, 8192)))
        assert seconds == pytest.approx((weights + tokens_read * 131_072) / 1555e9)
    within = CostModel(windowed(4096, 32), server, 16).step_seconds(step_of((99, 100)))
    assert within == CostModel(windowed(None, 0), server, 16).step_seconds(step_of((99, 100)))


def test_a_step_is_its_rows_together() -> None:
    """Weights are read once; rows of prompts and of decodes add up their tokens, contexts and pairs."""
    cost = CostModel(OPT_13B, A100, 16)
    together = cost.step_seconds(step_of((99, 100), (0, 30), (30, 50)))
    pairs = 100 + sum(range(1, 31)) + sum(range(31, 51))
    assert together == cost.forward_seconds(1 + 30 + 20, 3, 100 + 30 + 50, pairs)
