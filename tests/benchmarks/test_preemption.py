"""The measurement of preemption: the bytes that move, what comes back, and the command on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import preemption
from minipaged.cli import main as cli
from minipaged.engine.model_hook import ATTENTION_NAME
from minipaged.errors import InvalidConfigError
from minipaged.models.loading import LoadedModel, load_model

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 8  # K and V, 2 layers, 2 KV heads of 8 values, of 8 bytes each


@pytest.fixture(scope="module")
def loaded(tiny_model: Callable[[str], Path]) -> LoadedModel:
    return load_model(str(tiny_model("llama")), dtype="float64", attn_implementation=ATTENTION_NAME)


def test_what_is_copied_out_comes_back(loaded: LoadedModel) -> None:
    case = preemption.Preempted(loaded, 4, list(range(5, 27)))
    pool, table = case.engine.runner.cache.pool, case.row.sequence.table
    case.recompute()
    known = pool[table.blocks].clone()
    assert table.blocks != sorted(table.blocks) and len(table.blocks) == 6  # 22 tokens
    case.swap_out()
    assert case.num_copies == 6 and case.engine.blocks.allocator.num_free == 6
    pool.fill_(torch.nan)
    case.swap_in()
    assert case.num_copies == 6
    back = pool[table.blocks]
    assert torch.equal(back[:5], known[:5])
    assert torch.equal(back[5, :, :, :2], known[5, :, :, :2])  # the last 2 slots were never written
    pool.fill_(torch.nan)
    case.recompute()
    assert torch.equal(pool[table.blocks][:5], known[:5])
    case.engine.forget(["r"])


def test_every_block_size_moves_all_blocks(loaded: LoadedModel) -> None:
    rows = preemption.move_or_recompute(loaded, (1, 8, 16, 64), 40, 1)
    assert [row["num_copies"] for row in rows] == [40, 5, 3, 1]  # whole blocks, the partial one too
    assert [row["bytes_per_copy"] for row in rows] == [size * BYTES_PER_TOKEN for size in (1, 8, 16, 64)]
    for row in rows:
        assert min(row[name] for name in ("out", "in", "recompute")) > 0
        assert row["both"] == pytest.approx(row["out"] + row["in"])  # one round: its own median


@pytest.mark.parametrize(("num_tokens", "rounds"), [(0, 1), (256, 1), (40, 0)])
def test_no_sequence_and_no_round_are_refused(loaded: LoadedModel, num_tokens: int, rounds: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"got {num_tokens} and {rounds}"):
        preemption.move_or_recompute(loaded, (16,), num_tokens, rounds)


def test_both_ways_preempt_and_give_the_tokens_of_a_run_with_room(loaded: LoadedModel) -> None:
    rows = preemption.serve_both_ways(loaded, (4, 64), 5, 1)
    assert [(row["block_size"], row["way"]) for row in rows] == [
        (4, "swap"), (4, "recompute"), (64, "swap"), (64, "recompute")
    ]  # fmt: skip
    for row in rows:
        assert row["num_preemptions"] > 0
        assert (row["num_swapped_out_blocks"] > 0) == (row["way"] == "swap")
        assert row["same_tokens"] == 5


def test_requests_that_may_all_fit_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(InvalidConfigError, match="num_requests=3 must be more than 3"):
        preemption.serve_both_ways(loaded, (16,), 3, 1)


def test_the_verdict_names_the_block_sizes_of_either_side() -> None:
    rows = [
        {"block_size": 1, "both": 9.0, "recompute": 3.0},
        {"block_size": 16, "both": 2.0, "recompute": 3.0},
    ]
    assert preemption.verdict(rows) == (
        "Cheaper on this machine: swapping out and in at block size 16; recomputation at block size 1."
    )
    assert preemption.verdict(rows[:1]) == "Cheaper on this machine: recomputation at block size 1."


def test_the_command_writes_what_it_prints(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(preemption, "BLOCK_SIZES", (8, 16))
    monkeypatch.setattr(preemption, "SERVED_BLOCK_SIZES", (16,))
    output = tmp_path / "results.json"
    line = [
        "bench",
        "preemption",
        "--model",
        str(tiny_model("llama")),
        "--device",
        "cpu",
        "--dtype",
        "float64",
    ]
    line += ["--num-tokens", "24", "--num-requests", "4", "--rounds", "1"]
    assert cli.main([*line, "--output", str(output)]) == 0
    results = json.loads(output.read_text())
    assert [row["num_copies"] for row in results["sequence"]] == [3, 2]
    assert [row["same_tokens"] for row in results["served"]] == [4, 4]
    printed = " ".join(capsys.readouterr().out.split())
    assert preemption.verdict(results["sequence"]) in printed
    assert "both pools lie in the same memory" in printed
    assert cli.main([*line, "--output", str(tmp_path)]) == 2
