"""The command line: each mistake is one line on standard error and exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minipaged import LLM, __version__
from minipaged.cli.main import main
from minipaged.engine.backends import get_backend
from minipaged.errors import InvalidConfigError


@pytest.fixture(scope="module", autouse=True)
def attention_is_compiled() -> None:
    """The first process to compile it says so on standard error, and these tests read every line there."""
    for dtype in (torch.float32, torch.float64):
        get_backend("numba", torch.device("cpu")).warm_up(dtype)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "prompt is empty"),
        (["x" * 300], "prompt has 300 tokens, at most 255 are allowed"),
        (["x" * 100, "--num-blocks", "6"], "can never fit the pool: 6 blocks of 16 hold 96"),
        (["hi", "--max-tokens", "0"], "max_tokens must be"),
        (["hi", "--max-tokens", "-4"], "max_tokens must be"),
        (["hi", "--top-p", "0"], "top_p must be"),
        (["hi", "--top-p", "1.5"], "top_p must be"),
        (["hi", "--top-p", "nan"], "top_p must be"),
        (["hi", "--temperature", "-1"], "temperature must be"),
        (["hi", "--top-k", "-2"], "top_k must be"),
        (["hi", "--attention-backend", "flash"], "attention_backend must be one of"),
        (["hi", "--kv-cache-memory", "512 bananas"], "kv_cache_memory must be"),
        (["hi", "--num-blocks", "0"], "num_blocks must be a positive integer, got 0"),
        (["hi", "--block-size", "0"], "block_size must be a positive integer, got 0"),
        (["hi", "--dtype", "int8"], "dtype must be one of"),
        (["hi", "--device", "tpu"], "device must be"),
        (["hi", "--max-model-len", "100000"], "max_model_len=100000 is beyond the model's own limit of 256"),
        (["hi", "--stop", ""], "stop must"),
        (["hi", "--trace", "/no/such/folder/run.html"], "trace='/no/such/folder/run.html' is not a file"),
        (["hi", "--trace", "."], "trace='.' is not a file in a folder that exists"),
        (["hi", "--trace", "/proc/x.jsonl"], "trace='/proc/x.jsonl' can't be written: "),
        (["hi", "--max-num-seqs", "9" * 12], f"max_num_seqs must be at most 2147483647, got {'9' * 12}"),
        (["hi", "--num-blocks", "9" * 13], f"num_blocks must be at most 2147483647, got {'9' * 13}"),
        (["hi", "--num-blocks", "2147483647"], "a pool of 2147483647 blocks: more memory than can be had"),
        # A block of 16 tokens takes 8 KiB: float64, two layers, two KV heads of 8.
        (["hi", "--swap-space", "4TiB"], "swap_space: a host pool of 536870912 blocks: more memory than"),
        (["hi", "--swap-space", "900TiB"], "swap_space='900TiB' holds 120795955200 blocks, at most"),
        (["hi", "--max-num-batched-tokens", "9" * 15], "max_num_batched_tokens must be at most 2147483647"),
        (["hi", "--kv-cache-memory", "9" * 400], "kv_cache_memory must be a number of bytes"),
        (["hi", "--max-tokens", "a\nb"], "'--max-tokens': Input should be a valid integer"),
        (["hi", "--no-such\noption"], "No such option: --no-such"),
        (["hi", "--max-tokens"], "Option '--max-tokens' requires an argument"),
    ],
)
def test_mistakes(
    arguments: list[str], message: str, tiny_chat_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--model", str(tiny_chat_model), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("minipaged: error: ") and message in error
    assert error.count("\n") == 1


def test_what_is_wrong_with_a_value_names_option_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["generate", "hi", "--top-p", "much"], ("'--top-p'", "got 'much'")),
        (["simulate", "--num-gpus", "1.5"], ("'--num-gpus'", "got '1.5'")),
        (["lessons", "hint", "3", "4"], ("extra argument", "(4)")),
        (["generate"], ("Missing argument 'PROMPT'",)),
        (["generat"], ("No such command 'generat'",)),
        ([], ("Missing command",)),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("minipaged: error: ") and error.count("\n") == 1
        assert all(word in error for word in words)


def test_help_and_version_are_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"minipaged {__version__}\n"
    for arguments in ([], ["generate"], ["simulate"], ["lessons"], ["lessons", "copy"], ["doctor"]):
        assert main([*arguments, "--help"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("Usage: minipaged ") and shown.isascii()
    assert main(["generate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "The engine's settings, under vLLM's names:\n  --model <str> " in shown
    assert "--max-tokens <int>     at most so many tokens per answer  [default: 64]" in shown


def test_answers_are_printed_although_their_trace_cannot_be_written(
    tiny_chat_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full.jsonl"
    full.symlink_to("/dev/full")
    line = ["generate", "hi", "--max-tokens", "3", "--ignore-eos", "--model", str(tiny_chat_model)]
    assert main([*line, "--trace", str(full)]) == 2
    shown = capsys.readouterr()
    assert "3 generated, length" in shown.out and "summary" in shown.out
    assert shown.err == f"minipaged: error: trace={str(full)!r} can't be written: No space left on device\n"


def test_a_trace_in_a_folder_is_refused_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minipaged.cli.options.make_llm", lambda *_: pytest.fail("loaded"))
    assert main(["generate", "hi", "--trace", str(tmp_path)]) == 2
    assert "is not a file in a folder that exists" in capsys.readouterr().err


def test_a_step_of_more_sequences_than_tokens_takes_no_memory(tiny_chat_model: Path) -> None:
    llm = LLM(str(tiny_chat_model), max_num_seqs=2**31 - 1, num_blocks=16)
    assert llm.engine.runner._builder._sets[0].tables.shape == (2048, 16)
    with pytest.raises(InvalidConfigError, match="max_num_seqs must be at most 2147483647"):
        LLM(str(tiny_chat_model), max_num_seqs=10**15)


def test_a_trace_is_written_as_a_page_or_as_lines(tiny_chat_model: Path, tmp_path: Path) -> None:
    for name in ("run.html", "run.jsonl"):
        path = tmp_path / name
        arguments = ["hi <b>", "--max-tokens", "3", "--trace", str(path), "--model", str(tiny_chat_model)]
        assert main(["generate", *arguments]) == 0
        assert '"trace":1' in path.read_text() and "hi <b>" not in path.read_text().replace('"hi <b>"', "")
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")


def test_models_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 300
    for model in (
        "no-such-model-anywhere",
        str(tmp_path),
        str(tmp_path / "absent"),
        long,
        f"/{long}",
        "~x/y",
    ):
        assert main(["generate", "hi", "--model", model]) == 2
        error = capsys.readouterr().err
        assert error.startswith("minipaged: error: ") and error.count("\n") == 1


def test_triton_without_gpu_or_interpreter(
    tiny_chat_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    arguments = ["generate", "hi", "--model", str(tiny_chat_model), "--attention-backend", "triton"]
    assert main([*arguments, "--device", "cpu"]) == 2
    assert "TRITON_INTERPRET=1" in capsys.readouterr().err


def test_triton_interpreted_has_no_bfloat16(
    tiny_chat_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["generate", "hi", "--model", str(tiny_chat_model), "--device", "cpu", "--dtype", "bfloat16"]
    assert main([*line, "--attention-backend", "triton"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "interpreter, which has no dtype='bfloat16'" in error


def test_generate_draws_what_the_tables_hold(
    tiny_chat_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--block-size", "8", "--num-blocks", "20", "--max-tokens", "4", "--dtype", "float64"]
    prompts = ["a question", "another one"]
    assert main(["generate", "--model", str(tiny_chat_model), "--show-blocks", *arguments,
                 "--system", "Be brief, be kind.", *prompts]) == 0  # fmt: skip
    out = capsys.readouterr().out
    # "[system]Be brief, be kind.[user]" is 32 bytes: four blocks of 8 that both name.
    assert "0×2" in out and "3×2" in out and "4×2" not in out
    assert "4, which saved 4 blocks" in out
    assert "32 of them found in the cache" in out
    assert "would have wasted" in out


def test_chat_streams_and_reuses_the_conversation(
    tiny_chat_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter(["hello there", "and again", "/exit"])
    monkeypatch.setattr("builtins.input", lambda *_: next(said))
    assert main(["chat", "--model", str(tiny_chat_model), "--block-size", "4", "--max-tokens", "5"]) == 0
    out = capsys.readouterr().out
    assert "0 of 28 prompt tokens came from the cache" in out
    assert "28 of" in out  # the first turn's prompt, 28 bytes, is seven whole blocks


def test_samples_and_beams_are_all_printed(tiny_chat_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["generate", "a question", "--model", str(tiny_chat_model), "--num-blocks", "60", "--show-blocks"]
    options = ["-n", "3", "--temperature", "1", "--sampling-seed", "1"]
    assert main([*line, *options, "--max-tokens", "7", "--ignore-eos"]) == 0
    out = capsys.readouterr().out
    assert out.count("7 generated, length") == 3
    assert "A.0" in out and "A.2" in out and "0×3" not in out  # ten bytes: one block, and it was copied
    assert main([*line, "--beam-width", "2", "--max-tokens", "7", "--ignore-eos"]) == 0
    assert capsys.readouterr().out.count("7 generated, length, score -") == 2
    assert main([*line, "--beam-width", "0"]) == 2
    assert "beam_width must be" in capsys.readouterr().err


def run_apart(output: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which writes to the file descriptor."""
    code = "import sys; from minipaged.cli.main import main; sys.exit(main())"
    line = [sys.executable, "-c", code, *arguments]
    return subprocess.run(line, stdout=output, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("show", [[], ["--show-blocks"]])
def test_a_reader_who_has_seen_enough_is_no_error(tiny_chat_model: Path, show: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    done = run_apart(write, "generate", "hi", "--model", str(tiny_chat_model), *show)
    os.close(write)
    assert done.stderr == "" and done.returncode == 141


def test_a_stream_that_is_closed_is_an_empty_one(tiny_chat_model: Path) -> None:
    code = "import sys; sys.stdin = sys.stdout = None; from minipaged.cli.main import main; sys.exit(main())"
    line = [sys.executable, "-c", code, "chat", "--model", str(tiny_chat_model)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout == done.stderr == ""


@pytest.mark.parametrize("command", [["lessons"], ["--help"], ["simulate", "--help"]])
def test_a_full_disk_is_told_in_one_line(command: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = run_apart(full.fileno(), *command)
    assert done.stderr == "minipaged: error: [Errno 28] No space left on device\n" and done.returncode == 2


def test_beams_are_not_sampled(tiny_chat_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [
        "generate",
        "hi",
        "--model",
        str(tiny_chat_model),
        "--beam-width",
        "2",
        "--stop",
        "e",
        "--top-k",
        "3",
    ]
    assert main(line) == 2
    assert "beam-width can't be combined with top-k, stop" in capsys.readouterr().err
