"""The doctor must tell what is broken, and break down over nothing."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minipaged.cli import doctor, doctor_checks
from minipaged.engine.backends import AttentionBackend, get_backend
from minipaged.errors import BackendUnavailableError
from minipaged.kernels import block_table, copy_on_write

CPU = torch.device("cpu")


def details(findings: list[doctor.Finding]) -> dict[str, str]:
    return {finding.what: finding.detail for finding in findings}


def spoiled(spoil: Callable[[torch.Tensor], Any], which: str) -> AttentionBackend:
    """The reference backend, one of whose two functions returns what `spoil` has changed."""
    good = get_backend("reference", CPU)

    def run(*args: Any, **options: Any) -> torch.Tensor:
        output = getattr(good, which)(*args, **options)
        spoil(output)
        return output

    return good._replace(**{which: run})


def test_dense_attention_is_right_by_hand() -> None:
    case = doctor_checks.Case()
    dense = case.dense()
    assert dense.shape == (43, 4, 32) and dense.dtype == torch.float64
    # A context of one token: softmax has one weight, 1, so each query head gets the value of its KV head.
    assert torch.equal(dense[0], case.values[0, 0].double()[[0, 0, 1, 1]])
    # The second query of the third prompt sees two tokens; the weight of the first is 1 / (1 + e^(s1 - s0)).
    query, keys, values = (
        tensor.double() for tensor in (case.queries[7, 3], case.keys[2, :2, 1], case.values[2, :2, 1])
    )
    first = 1 / (1 + torch.exp(query @ (keys[1] - keys[0]) / 32**0.5))
    assert torch.allclose(dense[7, 3], first * values[0] + (1 - first) * values[1], atol=1e-12)


def test_unowned_slots_are_nan() -> None:
    case = doctor_checks.Case()
    written = sum(doctor_checks.CONTEXT_LENGTHS) * 2 * 32
    assert int((~case.key_cache.isnan()).sum()) == written
    assert int((~case.value_cache.isnan()).sum()) == written


@pytest.mark.parametrize("name", ["reference", "triton", "numba"])
def test_backends_that_are_right_pass(name: str) -> None:
    device = torch.device("cuda") if name == "triton" and torch.cuda.is_available() else CPU
    error = doctor_checks.attention_error(get_backend(name, device), device)
    assert error < doctor_checks.TOLERANCE
    assert error > 0  # float32 never equals float64 over this many numbers: something was compared


@pytest.mark.parametrize("which", ["decode", "prefill"])
@pytest.mark.parametrize(
    "spoil",
    [lambda output: output[1, 2, 3].add_(1e-4), lambda output: output[0, 0].fill_(torch.nan)],
    ids=["one number off", "NaN"],
)
def test_a_wrong_backend_is_found_out(
    which: str, spoil: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "get_backend", lambda name, device: spoiled(spoil, which))
    finding = doctor._try("attention", lambda: doctor_checks.check_attention("reference", CPU))
    assert finding.ok is False
    assert finding.detail.startswith("WRONG: off by ")


def test_wrong_writes_and_copies_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor_checks.check_write_kv(CPU).startswith("exact")
    assert doctor_checks.check_copy_blocks(CPU).startswith("exact")
    monkeypatch.setattr(block_table, "write_kv", lambda *args: None)
    monkeypatch.setattr(copy_on_write, "copy_blocks", lambda *args: None)
    for check in (doctor_checks.check_write_kv, doctor_checks.check_copy_blocks):
        with pytest.raises(AssertionError, match="WRONG"):
            check(CPU)


def test_facts_are_those_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    threads = torch.get_num_threads()  # Numba, once asked, may change it: both use OpenMP
    found = details(doctor.facts())
    assert found["torch"] == importlib.metadata.version("torch")
    assert found["Python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found["threads"].startswith(f"torch {threads}, ")
    if not torch.cuda.is_available():
        assert found["GPU"] == "none"
        assert found["Triton"].startswith("interpreted")
        assert found["Numba CUDA"].startswith("simulated")
    assert "not fetched yet" in found["default model"] and str(tmp_path) in found["default model"]


def test_the_default_model_is_found_and_weighed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minipaged.models.default_model import default_model_folder

    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path))
    default_model_folder().mkdir()
    (default_model_folder() / "model.safetensors").write_bytes(bytes(3_000_000))
    assert "3 MB" in details(doctor.facts())["default model"]


def test_without_switches_and_gpu_triton_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_gpu", lambda: "none")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert doctor._triton().startswith("not available: there is no GPU")
    monkeypatch.setattr(doctor, "_gpu", lambda: "Some GPU")
    assert doctor._triton() == "compiled"


@pytest.mark.parametrize(
    ("build", "driver", "extra"),
    [
        ("13.0", 13000, "gpu-cu13"),
        ("13.0", 13020, "gpu-cu13"),
        ("12.8", 13000, "gpu-cu12"),  # beside a CUDA 12 build of torch
        ("12.8", 12040, "gpu-cu12"),
        ("13.0", 12080, "gpu-cu12"),  # PTX of CUDA 13 is too new for this driver
    ],
)
def test_the_extra_fits_driver_and_torch(
    build: str, driver: int, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: driver, raising=False)
    monkeypatch.setattr(torch.version, "cuda", build)
    shown = doctor._gpu()
    assert shown.startswith("T4, compute capability 7.5;") and shown.endswith(f"extra {extra}")
    assert f"CUDA {build}" in shown and f"up to {driver // 1000}.{driver % 1000 // 10}:" in shown
    assert f"minipaged[{extra}]" in doctor._why_missing("numba-cuda")


def test_the_extras_of_both_cuda_versions_are_declared() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {"gpu", "gpu-cu12", "gpu-cu13"} <= set(declared["optional-dependencies"])


def test_missing_packages_are_said_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("triton", "numba"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor.installed_versions()["triton"] is None
    found = details(doctor.facts())
    assert found["numba"] == "not installed" and found["numpy"] == "1.2.3"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Linux only" in details(doctor.facts())["triton"]


def test_whatever_fails_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise OSError("libfoo.so: cannot open\n  and a long story")

    def fail_silently() -> str:
        raise ZeroDivisionError

    assert doctor._try("it", fail) == ("it", False, "libfoo.so: cannot open")
    assert doctor._ask("it", fail) == ("it", None, "can't be told: libfoo.so: cannot open")
    assert doctor._try("it", fail_silently).detail == "ZeroDivisionError"


@pytest.mark.parametrize(("broken", "is_needed"), [("numba", True), ("reference", False)])
def test_verdict_depends_on_what_the_engine_needs(
    broken: str, is_needed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("on a GPU the engine needs triton, not numba")

    def check(name: str, device: torch.device) -> str:
        if name == broken:
            raise RuntimeError("it is [broken] today")
        return "fine"

    monkeypatch.setattr(doctor_checks, "check_attention", check)
    if is_needed:
        with pytest.raises(BackendUnavailableError, match="can't run here: see attention, numba above"):
            doctor.doctor()
    else:
        doctor.doctor()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("attention,") and "no  it is [broken] today" in line]
    assert sum(" OK  " in line for line in lines) == 5  # engine, two backends, write_kv, copy_blocks


def test_without_torch_it_says_so_and_fails() -> None:
    code = "import sys; sys.modules['torch'] = None; from minipaged.cli import main; "
    code += "sys.exit(main.main(['doctor']))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "torch can't be imported" in done.stdout
    assert done.stderr == "minipaged: error: the engine can't run here: see torch above\n"
