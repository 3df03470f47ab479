"""The measurement of sharing: hand-worked shares, and the command on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minipaged import LLM, cli
from minipaged.commands import bench_sharing
from minipaged.simulator.simulation import Way
from minipaged.simulator.workload import WORKLOADS, Lengths


def test_samples_of_one_request_save_what_a_hand_calculation_says() -> None:
    # A prompt of 32 tokens is 2 blocks. The first step holds 2 and no more. Then 16 tokens go into one block
    # of each of two samples: 4 blocks in use where 6 would be needed. The last token needs no slot.
    steps = 1 + 15
    saved, used = 15 * 2, 2 + 15 * 4
    assert bench_sharing.serve([Lengths(32, steps)], Way(2)) == pytest.approx(saved / (saved + used))


def test_beams_that_always_follow_the_first_share_all_but_their_last_block() -> None:
    # After the fork each step takes both beams from the first: all full blocks are shared, a partial last
    # block is copied. The prompt is 2 blocks, computed in one step. In the next 16 steps each beam writes
    # into a block of its own behind those, in the last 15 behind 3 that are shared.
    searches = [[[0, 0]] * 40]
    saved = 16 * 2 + 15 * 3
    used = 2 + 16 * (2 + 2) + 15 * (3 + 2)
    assert bench_sharing.serve([Lengths(32, 32)], Way(2, searches)) == pytest.approx(saved / (saved + used))


def test_recorded_parents_are_those_of_real_beams(tiny_chat_model: Path) -> None:
    llm = LLM(str(tiny_chat_model), device="cpu", enable_prefix_caching=False, num_blocks=100)
    searches = bench_sharing.record_parents(llm, 3, 6)
    assert len(searches) == len(bench_sharing.QUESTIONS)
    for parents in searches:
        assert parents[0] == [0, 0, 0]
        assert len(parents) == 5  # the sixth token ends the search
        assert all(0 <= parent < 3 for step in parents for parent in step)
    assert "reorder" not in vars(llm.engine.blocks)


def test_the_command_fills_its_table(
    tiny_chat_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_sharing, "WORKLOADS", {"alpaca": WORKLOADS["alpaca"]})
    output = tmp_path / "sharing.json"
    line = ["bench-sharing", "--model", str(tiny_chat_model), "--num-requests", "5", "--beam-tokens", "6"]
    assert cli.main([*line, "--output", str(output)]) == 0
    results = json.loads(output.read_text())
    assert [row["way"] for row in results["rows"]] == ["parallel sampling", "beam search"]
    for row in results["rows"]:
        shares = [row["saved"][str(width)] for width in bench_sharing.WIDTHS]
        assert 0 < shares[0] < shares[1] < shares[2] < 1
    assert "37.6 to 55.2" in capsys.readouterr().out
    assert cli.main([*line, "--num-requests", "0", "--output", str(output)]) == 2
