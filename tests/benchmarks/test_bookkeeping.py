"""The bookkeeping grows with the sequences that run and not with the pool: in calls, exactly, and in time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import bookkeeping
from benchmarks.bookkeeping import PARTS, count_calls, decode, make_engine
from minipaged.cli import main as cli
from minipaged.engine.model_hook import ATTENTION_NAME
from minipaged.models.loading import load_model


def test_calls_are_counted_once_each() -> None:
    def outer() -> None:
        for _ in range(3):
            len("abc")

    assert count_calls(outer) == 1 + 3 + 1  # itself, len, and the call that ends the counting


def test_a_sequence_costs_a_step_the_same_beside_few_and_beside_many() -> None:
    few, many = (bookkeeping.stand_in_steps(number, 32) for number in (64, 1_024))
    assert many["calls_per_sequence"] == pytest.approx(few["calls_per_sequence"], rel=0.2)
    each = [row["bookkeeping"] / row["num_sequences"] for row in (few, many)]
    assert each[1] < 3 * each[0]  # were it quadratic, 16 times
    for row in (few, many):
        assert set(row["parts"]) == set(PARTS) and min(row["parts"].values()) > 0
        assert sum(row["parts"].values()) == pytest.approx(row["bookkeeping"])
        assert row["bookkeeping"] < row["step"]


def test_no_operation_scans_the_pool() -> None:
    small, large = (bookkeeping.pool_costs(num_blocks) for num_blocks in (1_000, 100_000))
    assert set(small["calls"]) == {"allocate", "admit", "publish", "append", "free"}
    assert small["calls"] == large["calls"]
    for name, seconds in small["seconds"].items():
        assert large["seconds"][name] < 3 * seconds  # were it linear in the pool, a hundred times


def test_a_step_of_a_real_model_is_more_than_its_bookkeeping(tiny_model: Callable[[str], Path]) -> None:
    engine = make_engine(load_model(str(tiny_model("llama")), attn_implementation=ATTENTION_NAME), 3, 20)
    found = decode(engine, 3, 20, rounds=2)
    assert 0 < found["bookkeeping"] < found["step"]
    stats = engine.stats()
    assert stats.num_generated_tokens == 3 * (1 + 2 * 16)  # a round is 16 steps
    assert stats.num_preemptions == stats.num_running == 0
    assert "step" not in vars(engine) and "schedule" not in vars(engine.scheduler)


def test_the_command_writes_what_it_prints(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(bookkeeping, "NUM_SEQUENCES", (2, 5))
    monkeypatch.setattr(bookkeeping, "POOL_SIZES", (100, 200))
    monkeypatch.setattr(bookkeeping, "REAL_SEQUENCES", 3)
    output = tmp_path / "results.json"
    line = ["bench", "bookkeeping", "--model", str(tiny_model("llama")), "--device", "cpu"]
    assert cli.main([*line, "--context-tokens", "20", "--output", str(output)]) == 0
    results = json.loads(output.read_text())
    assert [row["num_sequences"] for row in results["steps"]] == [2, 5]
    assert [row["num_blocks"] for row in results["pools"]] == [100, 200]
    real = results["real_step"]
    assert real["share"] == pytest.approx(real["bookkeeping"] / real["step"])
    printed = capsys.readouterr().out
    assert f"{real['share']:.1%}" in printed and "real model" in printed
    for wrong in ("0", "129"):  # the tiny model holds 256 tokens, of which 128 are for the measurement
        assert cli.main([*line, "--context-tokens", wrong, "--output", str(output)]) == 2
    assert "context_tokens must be from 1 to 128" in capsys.readouterr().err
