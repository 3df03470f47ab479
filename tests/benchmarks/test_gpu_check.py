"""The GPU check without a GPU: its arithmetic, table, file and exit codes, and its cases, played small."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_check
import gpu_outcomes
import gpu_report
import gpu_timings
import pytest
import torch
from gpu_report import Timing

MACHINE = {"gpu": "NVIDIA H200", "driver": "580.1", "memory_gib": "139.8"}
GOOD_TESTS = {
    "passed": 3, "failed": 0, "skipped": 1, "failures": {}, "skips": {"no wind": 1},
    "seconds": 4.0, "ended": True, "complaint": "",
}  # fmt: skip
LOST = Timing("copies", "2 blocks", ours_us=50.0, torch_us=20.0, floor_us=10.0, host_us=7.0)
WON = Timing("copies", "300 blocks", ours_us=1000.0, torch_us=2500.0)


# ---- arithmetic ----------------------------------------------------------------------------------------


def test_floors_by_hand():
    assert gpu_report.kv_bytes(3, 1024, 8, 128, 2) == 3 * 4 * 2**20  # 4 MiB a sequence
    assert gpu_report.causal_flops(1, 1, 1, 128) == 4 * 128  # one pair: 128 products and sums for K and for V
    assert gpu_report.causal_flops(2, 3, 5, 1) == 2 * 5 * 4 * 6  # 1 + 2 + 3 pairs
    assert gpu_report.floor_us(2e9, 4e12) == pytest.approx(500)


def test_ratios_are_above_one_where_we_are_faster():
    assert (LOST.to_torch, LOST.of_floor) == (0.4, 0.2)
    assert (WON.to_torch, WON.of_floor) == (2.5, None)
    assert Timing("g", "c", failure="x").to_torch is None


def test_the_table_calls_a_loss_slower_and_a_failure_by_its_reason():
    lines = gpu_report.table(
        [LOST, WON, Timing("swap", "out", failure="OutOfMemoryError: no room")]
    ).splitlines()
    assert lines[1] == "copies"
    assert lines[3].split() == ["2", "blocks", "50.0", "20.0", "0.40", "slower", "10.0", "0.20", "7.0"]
    assert lines[4].split() == ["300", "blocks", "1,000.0", "2,500.0", "2.50", "faster", "–", "–", "–"]
    assert lines[3].index("50.0") + 4 == lines[4].index("1,000.0") + 7  # numbers end in one column
    assert lines[6] == "swap"
    assert lines[-1].strip() == "out: OutOfMemoryError: no room"


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA H200", "gpu-nvidia-h200.json"),
        ("A/100 (80 GB)", "gpu-a-100-80-gb.json"),
        ("", "gpu-unknown.json"),
    ],
)
def test_the_file_is_named_after_the_gpu(gpu, name):
    assert gpu_report.file_name(gpu) == name


# ---- outcomes of the tests -----------------------------------------------------------------------------


def test_a_failure_stays_a_failure_and_skips_are_counted_by_reason():
    lines = [
        json.dumps(line)
        for line in (
            ["a", "passed", ""], ["a", "failed", "later"], ["b", "failed", "E   boom"], ["b", "passed", ""],
            ["c", "skipped", "Skipped: no wind"], ["d", "skipped", "Skipped: no wind"], ["e", "passed", ""],
        )
    ]  # fmt: skip
    found = gpu_report.read_outcomes(lines)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 2)
    assert found["failures"] == {"a": "later", "b": "E   boom"}
    assert found["skips"] == {"no wind": 2}


def test_a_worker_notes_nothing_itself(tmp_path, monkeypatch):
    monkeypatch.setenv(gpu_outcomes.FILE_SWITCH, str(tmp_path / "outcomes"))
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    gpu_outcomes.note("a", "passed", None)
    assert not (tmp_path / "outcomes").exists()
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    gpu_outcomes.note("a", "skipped", ("file.py", 3, "Skipped: no wind"))
    assert json.loads((tmp_path / "outcomes").read_text()) == ["a", "skipped", "Skipped: no wind"]


TESTS = """
import os
import pytest
def test_right(): assert "TRITON_INTERPRET" not in os.environ
def test_wrong(): assert 1 == 2
def test_left_out(): pytest.skip("no wind")
"""


def write_tests(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_outcomes_of_a_run_with_the_switches_off(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    folder = write_tests(tmp_path, test_a=TESTS, test_b="import nowhere_to_be_found")
    found = gpu_check.run_tests(folder, 60, num_workers=2)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 1)
    reasons = "\n".join(found["failures"].values())
    assert "assert 1 == 2" in reasons and "No module named 'nowhere_to_be_found'" in reasons
    assert found["skips"] == {"no wind": 1}
    assert found["seconds"] < 60


def hide(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Let the check believe that `module` is not installed."""
    find = gpu_check.importlib.util.find_spec
    monkeypatch.setattr(
        gpu_check.importlib.util, "find_spec", lambda name: None if name == module else find(name)
    )


@pytest.mark.parametrize(
    ("memory_gib", "cores", "workers"),
    [(139.0, 16, 8), (139.0, 6, 3), (23.9, 64, 1), (80.0, 64, 6), (4.0, 1, 1)],
)
def test_processes_share_the_device_as_memory_and_cores_allow(memory_gib, cores, workers, monkeypatch):
    monkeypatch.setattr(gpu_check.os, "cpu_count", lambda: cores)
    assert gpu_check.num_workers(memory_gib) == workers


def test_a_run_that_is_cut_short_counts_as_far_as_it_came(tmp_path, monkeypatch):
    begun = tmp_path / "begun"
    slow = (
        "import time, pathlib\n"
        "def test_1(): pass\n"
        f"def test_2(): pathlib.Path({str(begun)!r}).touch(); time.sleep(600)\n"
    )
    wait = gpu_check._wait

    def wait_for_the_second_test(process: subprocess.Popen[bytes], seconds: float) -> int | None:
        while not begun.exists() and process.poll() is None:
            time.sleep(0.05)
        return wait(process, 0.1)

    monkeypatch.setattr(gpu_check, "_wait", wait_for_the_second_test)
    found = gpu_check.run_tests(write_tests(tmp_path, test_a=slow), 0.1)
    assert begun.exists() and not found["ended"]
    assert (found["passed"], found["failed"]) == (1, 0)
    assert found["seconds"] < 300


def test_what_pytest_says_where_nothing_ran(tmp_path):
    found = gpu_check.run_tests(tmp_path / "absent", 60)
    assert not found["ended"] and "absent" in found["complaint"]


# ---- the whole check -----------------------------------------------------------------------------------


def test_without_a_cuda_device_one_line_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main(["--output", str(tmp_path / "out.json")]) == 1
    said = capsys.readouterr()
    assert said.err == "gpu-check: a CUDA device is needed, torch finds none on this machine\n"
    assert said.out == "" and not list(tmp_path.iterdir())


def test_without_torch_one_line_says_so(monkeypatch, capsys):
    hide(monkeypatch, "torch")
    assert gpu_check.main([]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "torch is not installed here" in said


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run `main` with a device, tests and timings that are made up; its exit code and its file."""

    def run(
        rows: list[Timing], tests: dict[str, Any] = GOOD_TESTS, *options: str
    ) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(gpu_check, "missing", lambda: "")
        monkeypatch.setattr(gpu_check, "describe", lambda: MACHINE)
        monkeypatch.setattr(gpu_check, "run_tests", lambda path, seconds, num_workers: tests)
        monkeypatch.setattr(gpu_check, "time_kernels", lambda seconds: ({"bytes_per_second": 4e12}, rows))
        for switch in gpu_check.SWITCHES:  # `main` unsets them, and monkeypatch sets them again
            monkeypatch.setenv(switch, "1")
        output = tmp_path / "new folder" / "out.json"
        code = gpu_check.main(["--output", str(output), *options])
        return code, json.loads(output.read_text())

    return run


def test_the_file_holds_machine_tests_rates_and_timings(check, capsys):
    code, written = check([LOST, WON])
    assert code == 0  # a loss is no failure
    assert written["machine"] == MACHINE and written["tests"] == GOOD_TESTS
    assert written["rates"] == {"bytes_per_second": 4e12}
    assert written["timings"][0] == {
        "group": "copies", "case": "2 blocks", "ours_us": 50.0, "torch_us": 20.0, "floor_us": 10.0,
        "host_us": 7.0, "failure": "", "to_torch": 0.4, "of_floor": 0.2,
    }  # fmt: skip
    said = capsys.readouterr().out
    for part in (
        "TRITON_INTERPRET was set",
        "3 passed, 0 failed, 1 skipped",
        "skipped, 1: no wind",
        "slower",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("rows", "tests"),
    [
        ([Timing("swap", "out", failure="RuntimeError: wrong result")], GOOD_TESTS),
        ([WON], GOOD_TESTS | {"failed": 1, "failures": {"a": "E   boom"}}),
        ([WON], GOOD_TESTS | {"ended": False}),
        ([WON], GOOD_TESTS | {"passed": 0}),
    ],
)
def test_what_went_wrong_shows_in_the_exit_code(check, rows, tests):
    assert check(rows, tests)[0] == 1


def test_tests_may_be_left_out(check):
    code, written = check([WON], GOOD_TESTS | {"failed": 1}, "--test-seconds", "0")
    assert (code, written["tests"]) == (0, None)


@pytest.mark.parametrize("seconds", ["-1", "soon", "inf", "nan"])
def test_a_wrong_number_of_seconds_is_refused(seconds, capsys):
    with pytest.raises(SystemExit):
        gpu_check.main([f"--timing-seconds={seconds}"])
    assert "--timing-seconds" in capsys.readouterr().err


# ---- timings -------------------------------------------------------------------------------------------


class FakeMeter:
    """Calls each call twice, since a case must bear being repeated, and makes up its time."""

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def device_us(self, calls: Sequence[Callable[[], Any]]) -> list[float]:
        for call in [*calls, *calls]:
            call()
        return [100.0, 300.0, 200.0][: len(calls)]

    def host_us(self, call: Callable[[], Any]) -> float:
        call()
        return 5.0


RATES = gpu_timings.Rates(bytes_per_second=1e12, float16_flops=1e14, bfloat16_flops=2e14)
HALF = torch.float16
SMALL_CASES = {
    # 2 sequences, 48 tokens, 2 KV heads of 16, K and V, 2 bytes: 12,288 bytes
    "decode": (lambda meter: gpu_timings.decode(meter, RATES, HALF, 2, 48), 200.0, 0.012288),
    # 2 prompts of 32 tokens, 528 pairs each, 4 heads, 64 operations
    "prefill": (lambda meter: gpu_timings.prefill(meter, RATES, HALF, 2, 32), 200.0, 2 * 528 * 4 * 64 / 1e8),
    # K and V of 32 tokens, 64 bytes each, read and written
    "write": (lambda meter: gpu_timings.write_tokens(meter, RATES, 32), 300.0, 2 * 2 * 32 * 64 / 1e6),
    "copy": (lambda meter: gpu_timings.copy(meter, RATES, 3, 64), 300.0, 2 * 3 * 64 / 1e6),
    "copy of one": (lambda meter: gpu_timings.copy(meter, RATES, 1, 64), 300.0, 2 * 64 / 1e6),
    "swap out": (lambda meter: gpu_timings.move(meter, RATES, 3, 64, True), 300.0, None),
    "swap in": (lambda meter: gpu_timings.move(meter, RATES, 3, 64, False), 300.0, None),
    "allocate": (lambda meter: gpu_timings.allocate(meter, RATES, 3, 10), None, None),
    "reorder": (lambda meter: gpu_timings.reorder(meter, RATES, 4, 40), None, None),
}


@pytest.mark.parametrize("name", SMALL_CASES)
def test_a_case_gives_what_torch_gives_and_knows_its_floor(name, monkeypatch):
    monkeypatch.setattr(gpu_timings, "HEADS", (4, 2, 16))
    case, torch_us, floor = SMALL_CASES[name]
    row = case(FakeMeter())
    assert (row.ours_us, row.torch_us, row.host_us) == (100.0, torch_us, 5.0)
    assert row.floor_us == (floor if floor is None else pytest.approx(floor))


def test_rates_by_hand():
    rates = gpu_timings.measure_rates(FakeMeter(), num_bytes=1000, size=10)
    assert rates == pytest.approx(
        (2000 / 100e-6, 2000 / 100e-6, 2000 / 100e-6)
    )  # 100 µs for 2 * 10^3 of each
    assert RATES.flops(torch.bfloat16) == 2e14


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setattr(gpu_timings, "HEADS", (4, 2, 16))
    right = gpu_timings.attention.decode_attention
    monkeypatch.setattr(gpu_timings.attention, "decode_attention", lambda *a, **k: 1.1 * right(*a, **k))
    with pytest.raises(RuntimeError, match=r"wrong result: off by 0\.(1|09)"):
        gpu_timings.decode(FakeMeter(), RATES, HALF, 2, 48)
    for wrong in (torch.tensor([math.nan, 2.0]), torch.ones(3)):
        with pytest.raises(RuntimeError, match="wrong result"):
            gpu_timings.check(wrong, torch.ones(2))
    with pytest.raises(RuntimeError, match="other integers"):
        gpu_timings.check(torch.tensor([100, 101]), torch.tensor([100, 100]))


def test_a_case_that_fails_or_comes_too_late_stops_no_other():
    def fail() -> Timing:
        raise ValueError("first line\nsecond line")

    times = iter([0.0, 0.0, 11.0])
    cases = iter(
        [("g", "1", fail), ("g", "2", lambda: Timing(ours_us=3.0)), ("h", "3", lambda: Timing(ours_us=4.0))]
    )
    assert gpu_timings.run_cases(cases, deadline=10.0, clock=lambda: next(times)) == [
        Timing("g", "1", failure="ValueError: first line"),
        Timing("g", "2", ours_us=3.0),
        Timing("h", "3", failure="not run, the time was over"),
    ]


def test_every_case_has_a_name_of_its_own():
    names = [name for *name, _ in gpu_timings.cases(FakeMeter(), RATES)]
    assert len(names) == len({tuple(name) for name in names}) == 29
    assert ["decode attention, bfloat16", "batch 64, context 8,192"] in names
