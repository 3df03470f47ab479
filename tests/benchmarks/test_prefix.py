"""The measurement of the prefix cache counts what it says it counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import prefix
from minipaged.cli import main as cli
from minipaged.engine.model_hook import ATTENTION_NAME
from minipaged.errors import InvalidConfigError
from minipaged.models.loading import load_model


def test_both_engines_give_the_same_tokens_and_one_of_them_finds_the_common_part(
    tiny_model: Callable[[str], Path],
) -> None:
    loaded = load_model(str(tiny_model("llama")), attn_implementation=ATTENTION_NAME)
    found = prefix.compare(loaded, num_requests=3, num_common=50, num_own=5)
    assert found["same_tokens"] == found["num_requests"] == 3
    assert found["prompt_tokens"] == 55
    assert found["cached_tokens"] == [0, 48, 48]  # the full blocks of 16 of what is common
    assert found["ratio"] == pytest.approx(found["seconds_without"] / found["seconds_with_cache"])


@pytest.mark.parametrize("sizes", [(1, 5, 5), (3, 0, 5), (3, 5, 0)])
def test_nothing_to_compare_is_refused(
    sizes: tuple[int, int, int], tiny_model: Callable[[str], Path]
) -> None:
    loaded = load_model(str(tiny_model("llama")), attn_implementation=ATTENTION_NAME)
    with pytest.raises(InvalidConfigError):
        prefix.compare(loaded, *sizes)


def test_the_command_writes_what_it_prints(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(prefix, "PROMPT_LENGTHS", (64, 128))
    monkeypatch.setattr(prefix, "POOL_SIZES", (20, 40))
    monkeypatch.setattr(prefix, "LOOKUP_LENGTH", 64)
    output = tmp_path / "results.json"
    line = ["bench", "prefix", "--model", str(tiny_model("llama")), "--device", "cpu", "--num-requests", "3"]
    assert cli.main([*line, "--common-tokens", "40", "--own-tokens", "3", "--output", str(output)]) == 0
    results = json.loads(output.read_text())
    assert [row["size"] for row in results["lookup"]["by_prompt_tokens"]] == [64, 128]
    assert [row["size"] for row in results["lookup"]["by_cached_blocks"]] == [20, 40]
    printed = capsys.readouterr().out
    assert f"{results['first_token']['ratio']:.1f} times sooner; 3 of 3" in printed
    assert cli.main([*line, "--output", str(tmp_path)]) == 2
