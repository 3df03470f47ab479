"""`minipaged bench paper`: figures of the paper again, and how near we come."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.paper import bench, measured
from benchmarks.paper.beams import QUESTIONS, record_parents
from benchmarks.paper.runs import WIDTHS, Run, paper_setting, run
from benchmarks.shared.sizes import BLOCK_SIZES
from minipaged import LLM
from minipaged.cli import main as cli
from minipaged.simulator.simulation import DecodingMethod
from minipaged.simulator.systems import PAGED, saturated
from minipaged.simulator.workload import Lengths

QUICK = ["--processes", "1", "--minutes", "0.5"]


def test_a_figure_is_printed_beside_the_papers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "paper.json"
    line = ["bench", "paper", *QUICK, "--figures", "example,table1", "--output", str(output)]
    assert cli.main(line) == 0
    shown = capsys.readouterr().out
    assert "204,800 slots" in shown and "30,400 slots" in shown and "15,728" in shown
    example, table = json.loads(output.read_text())["figures"]
    assert [row["value"] for row in example["rows"]] == [204_800, 30_400]
    assert [row["value"] for row in table["rows"][3:]] == [819_200, 1_677_721_600]


def test_one_figure_is_measured_again_and_the_others_stay(tmp_path: Path) -> None:
    output = tmp_path / "paper.json"
    line = ["bench", "paper", *QUICK, "--output", str(output)]
    assert cli.main([*line, "--figures", "table1", "--update"]) == 2  # nothing there to keep
    assert cli.main([*line, "--figures", "table1"]) == 0
    assert cli.main([*line, "--figures", "example", "--update"]) == 0
    assert [figure["name"] for figure in json.loads(output.read_text())["figures"]] == ["example", "table1"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--figures", "2,99"], "figures='99' is none of all, claims"),
        (["--figures", "2", "--plot", "rates.svg"], "plot draws the rates of figure 12"),
        (["--minutes", "0"], "minutes must be above 0 and finite, got 0.0"),
        (["--num-requests", "1"], "num_requests must be at least 2, got 1"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "paper", *QUICK, *more]) == 2
    assert message in capsys.readouterr().err


def test_last_blocks_waste_what_the_formula_says_within_sampling_error() -> None:
    """N x (B - 1) / 2 for lengths spread evenly; nothing, or all but one slot, for lengths in step with B."""
    rows = measured.expected_waste(4000, seed=1).rows
    for row in rows[:3]:
        wasted, expected, error = row.value
        assert abs(wasted - expected) < 3 * error
    assert [row.value[0] for row in rows[3:]] == [0, 4000 * 15]


def test_claims_on_a_small_model(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reserving 64 slots a request for some 20 tokens wastes two thirds, blocks of 4 at most 3 slots each."""
    for name, value in {"MAX_MODEL_LEN": 64, "BLOCK_SIZE": 4, "PROMPTS": (4, 8), "OUTPUTS": (10, 20)}.items():
        monkeypatch.setattr(measured, name, value)
    waste, running, empty, throughput = measured.claims(str(tiny_model("llama")), 24).rows
    assert waste.value[0] > 0.6 and waste.value[1] < 0.2
    assert running.value[0] == pytest.approx(3, abs=0.5)  # of 4 blocks an admission leaves one
    assert running.value[1] > 2 * running.value[0]
    assert empty.value[1] == pytest.approx(1.5, abs=0.4)
    assert throughput.value[0] > 0


def test_kernel_times_are_of_one_computation() -> None:
    """The kernel gives the same whatever the block size, and torch the same on one piece."""
    calls = measured.decode_calls()
    assert set(calls) == {0, *BLOCK_SIZES}
    for call in calls.values():
        torch.testing.assert_close(call(), calls[0](), rtol=1e-4, atol=1e-4)


def test_rates_are_within_the_papers_ranges() -> None:
    """Figure 12, OPT-13B on ShareGPT: 1.7 to 2.7 times Orca (Oracle), 2.7 to 8 times Orca (Max).

    The paper's ranges are over three models; the traces here are short, which flatters everyone.
    """
    setting = paper_setting("opt-13b")
    rates = {
        system: run(Run(system, "sharegpt", setting, 1.5)).rate
        for system in (PAGED, "orca-oracle", "orca-max")
    }
    assert 1.4 < rates[PAGED] / rates["orca-oracle"] < 2.7
    assert 2.2 < rates[PAGED] / rates["orca-max"] < 8


# ---- Figures 14 and 15: samples and beams ---------------------------------------------------------------


def share_saved(lengths: list[Lengths], method: DecodingMethod) -> float:
    """The share of blocks that sharing saves while all requests are served as fast as the pool allows."""
    return saturated(PAGED, lengths, paper_setting("opt-13b"), method).saved_by_sharing


def test_samples_of_one_request_save_what_a_hand_calculation_says() -> None:
    # A prompt of 32 tokens is 2 blocks. The first step holds 2 and no more. Then 16 tokens go into one block
    # of each of two samples: 4 blocks in use where 6 would be needed. The last token needs no slot.
    steps = 1 + 15
    saved, used = 15 * 2, 2 + 15 * 4
    assert share_saved([Lengths(32, steps)], DecodingMethod(2)) == pytest.approx(saved / (saved + used))


def test_beams_that_always_follow_the_first_share_all_but_their_last_block() -> None:
    # After the fork each step takes both beams from the first: all full blocks are shared, a partial last
    # block is copied. The prompt is 2 blocks, computed in one step. In the next 16 steps each beam writes
    # into a block of its own behind those, in the last 15 behind 3 that are shared.
    searches = [[[0, 0]] * 40]
    saved = 16 * 2 + 15 * 3
    used = 2 + 16 * (2 + 2) + 15 * (3 + 2)
    assert share_saved([Lengths(32, 32)], DecodingMethod(2, searches)) == pytest.approx(
        saved / (saved + used)
    )


def test_recorded_parents_are_those_of_real_beams(tiny_chat_model: Path) -> None:
    llm = LLM(str(tiny_chat_model), device="cpu", enable_prefix_caching=False, num_blocks=100)
    searches = record_parents(llm, 3, 6)
    assert len(searches) == len(QUESTIONS)
    for parents in searches:
        assert parents[0] == [0, 0, 0]
        assert len(parents) == 5  # the sixth token ends the search
        assert all(0 <= parent < 3 for step in parents for parent in step)
    assert "reorder" not in vars(llm.engine.blocks)


def test_figure_15_alone_in_processes_of_its_own(
    tiny_chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "BEAM_TOKENS", 8)
    output = tmp_path / "paper.json"
    line = ["bench", "paper", "--figures", "15", "--minutes", "0.1", "--processes", "2"]
    assert cli.main([*line, "--model", str(tiny_chat_model), "--output", str(output)]) == 0
    (figure,) = json.loads(output.read_text())["figures"]
    assert figure["name"] == "15"
    assert [row["what"].partition(" of")[0] for row in figure["rows"]] == [
        "sharegpt, parallel sampling",
        "sharegpt, beam search",
        "alpaca, parallel sampling",
        "alpaca, beam search",
    ]
    for row in figure["rows"]:
        shares = row["value"]
        assert len(shares) == len(WIDTHS) and 0 < shares[0] < shares[1] < shares[2] < 100
    assert "37.6 to 55.2" in capsys.readouterr().out
