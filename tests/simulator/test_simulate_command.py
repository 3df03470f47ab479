"""`minipaged simulate`: what it says of a server, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import pytest

from minipaged.cli import main as cli
from minipaged.simulator import command as simulate
from minipaged.simulator import plots
from minipaged.simulator.command import Answer, advice

matplotlib.use("agg")
from matplotlib import pyplot

SMALL = ["simulate", "--gpu", "a100-40gb", "--workload", "alpaca", "--minutes", "0.1", "--processes", "1"]


@pytest.fixture(autouse=True)
def few_block_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "BLOCK_SIZES", (16, 256))


def an_answer(rate: float = 1.0, num_preemptions: int = 0, cached: float = 0.0) -> Answer:
    return Answer(rate, 1.0, rate, 1.0, 0.0, num_preemptions, 0.05, cached, [])


def test_the_plan_of_the_papers_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OPT-13B on an A100 of 40 GiB: 36 GiB are to be used, 23.9 are weights, the rest holds 15.8 K tokens."""
    output, picture = tmp_path / "plan.json", tmp_path / "plan.svg"
    assert cli.main([*SMALL, "--output", str(output), "--plot", str(picture), "--swap-space", "4GiB"]) == 0
    shown = capsys.readouterr().out
    results = json.loads(output.read_text())
    num_slots = (36 * 2**30 - 2 * 12_853_473_280) // 819_200
    assert results["num_slots"] == num_slots == 15_805
    assert f"{num_slots:,} tokens, 987 \nblocks of 16" in shown or "987 blocks of 16" in shown
    answers = results["answers"]
    assert answers["paged"]["rate"] > answers["orca-oracle"]["rate"] > answers["orca-max"]["rate"] > 0
    assert answers["paged"]["waste"] < 0.2 < answers["orca-oracle"]["waste"] < answers["orca-max"]["waste"]
    assert "swap" in answers and "prefix caching" not in answers
    assert "Block sizes within 2 % of the best: 16. " in shown
    assert picture.read_text().startswith("<?xml")


def test_a_shared_prefix_of_a_file_is_worth_caching(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """900 of 910 prompt tokens are the same in all: 0.99 of them, but for each first time and last block."""
    workload = tmp_path / "lengths.jsonl"
    workload.write_text(
        '{"prompt": 910, "output": 20, "prefix": 900}\n{"prompt": 910, "output": 30, "prefix": 900}\n'
    )
    assert cli.main([*SMALL, "--workload", str(workload), "--output", str(tmp_path / "o.json")]) == 0
    answers = json.loads((tmp_path / "o.json").read_text())["answers"]
    assert answers["prefix caching"]["cached"] == pytest.approx(896 / 910, abs=0.02)
    assert answers["prefix caching"]["rate"] > 2 * answers["paged"]["rate"]
    assert "Prefix caching: worth it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "opt-14b"], "model='opt-14b' is neither a config.json"),
        (["--gpu", "a101"], "gpu must be one of a100-40gb"),
        (["--gpu-memory", "24GiB"], "opt-13b has 23.9 GiB of weights"),
        (["--gpu-memory", "forty"], "gpu_memory"),
        (["--num-gpus", "0"], "num_gpus must be at least 1, got 0"),
        (
            ["--kv-cache-memory", "1GiB"],
            "hold 1296 tokens of opt-13b in blocks of block_size=16, max_model_len=2048",
        ),
        (["--block-size", "0"], "block_size must be at least 1, got 0"),
        (["--max-model-len", "4096"], "max_model_len=4096 is beyond the model's own limit of 2048"),
        (
            ["--gpu-memory-utilization", "1.2"],
            "gpu_memory_utilization must be above 0 and at most 1, got 1.2",
        ),
        (["--latency-target", "0"], "latency_target must be above 0 and finite, got 0.0"),
        (["--minutes", "nan"], "minutes must be above 0 and finite, got nan"),
        (["--minutes", "inf"], "minutes must be above 0 and finite, got inf"),
        (["--host-us-per-sequence", "-1"], "host_us_per_sequence must be 0 or more and finite, got -1.0"),
        (["--num-gpus", "3"], "num_gpus=3 must divide the 40 query and the 40 KV heads"),
        (["--kv-cache-memory", "100GiB"], "are more than the 40.0 GiB of all GPUs"),
        (
            ["--kv-cache-memory", "2GiB", "--block-size", "4096"],
            "block_size=4096, max_model_len=2048 is more",
        ),
        (["--swap-space", "1MiB"], "swap_space='1MiB' holds no block: one takes 13,107,200 bytes"),
        (["--output", "/proc/plan.json"], "output='/proc/plan.json' can't be written"),
        (["--plot", "/proc/plan.svg"], "plot='/proc/plan.svg' can't be written"),
        (["--swap-space", "much"], "swap_space"),
        (["--gpu-memory", "999999TiB"], "blocks are more than the 33,554,432"),
        (["--swap-space", "999999TiB"], "swap_space: "),
        (["--workload", "/dev/zero"], "workload='/dev/zero' is a device"),
        (["--workload", "none.jsonl"], "workload='none.jsonl' can't be read"),
        (["--plot", "plan.gif"], "plot='plan.gif' must be a file .svg or .png"),
        (["--output", "nowhere/plan.json"], "output='nowhere/plan.json'"),
        (["--max-model-len", "2"], "max_model_len=2 is too short for requests of this workload"),
    ],
)
def test_what_can_not_be_simulated_is_refused_by_name(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*SMALL, *more]) == 2
    assert message in capsys.readouterr().err


def test_the_advice_follows_from_the_figures() -> None:
    answers = {"paged": an_answer(2.0, 5), "block_size=16": an_answer(2.0), "block_size=64": an_answer(1.5)}
    answers |= {"swap": an_answer(1.0, 5), "prefix caching": an_answer(3.0, cached=0.5)}
    sizes, prefix, swap = advice(answers)
    assert sizes.startswith("Block sizes within 2 % of the best: 16.")
    assert prefix == (
        "Prefix caching: worth it, +50% (3.00 against 2.00 requests/s), 50% of prompt tokens are found."
    )
    assert swap == "Swap: not worth it, -50% (1.00 against 2.00 requests/s)."
    assert advice({"paged": an_answer(), "block_size=16": an_answer()})[1:] == [
        "Prefix caching: no prompt of this workload is said to share a prefix with another.",
        "Swap: nothing was ever preempted, so there is nothing to swap.",
    ]


def test_a_full_server_ends_requests_at_the_rate_between_its_first_and_last_tenth() -> None:
    """Ten ends, one a second but for a slow start and a slow end: 8 in the 8 seconds between."""
    ends = [5.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0]
    assert simulate._steady_rate(ends) == 1.0
    assert simulate._steady_rate([2.0] * 30) == 15.0  # all in one step


def test_a_target_that_nothing_meets_is_said_so() -> None:
    (line,) = advice({"paged": an_answer(0.0), "block_size=16": an_answer(0.0)})
    assert line == "No rate will do: even alone, a request takes 0.0500 s a token."


def test_curves_end_at_the_target() -> None:
    """Beyond it runs are broken off, and a flat line at the target would be a picture of that."""
    figure, axes = pyplot.subplots()
    plots.draw_panel(axes, "t", {"paged": [(2.0, 0.3), (1.0, 0.05)], "static": [(1.0, 0.3)]}, 0.1)
    (curve,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert curve.get_xydata().tolist() == [[1.0, 0.05]]
    pyplot.close(figure)
