"""Settings of the engine are checked when it is made, each with one line that says what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minipaged import LLM
from minipaged.config import EngineConfig, parse_bytes
from minipaged.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512MiB", 512 * 2**20),
        ("1.5 GB", 1_500_000_000),
        (" 2 kib ", 2048),
        ("4096", 4096),
        ("3B", 3),
        ("1TiB", 2**40),
        (77, 77),
        ("0", 0),
    ],
)
def test_sizes(text: str | int, expected: int) -> None:
    assert parse_bytes("swap_space", text) == expected


@pytest.mark.parametrize("text", ["512 bananas", "", "MiB", "-1MB", "1e3", "1,5GB", -5, 1.5, True, None])
def test_what_is_no_size(text: Any) -> None:
    with pytest.raises(InvalidConfigError, match="kv_cache_memory must be a number of bytes"):
        parse_bytes("kv_cache_memory", text)


@pytest.mark.parametrize(
    "bad",
    [
        {"block_size": 0},
        {"block_size": 1.5},
        {"block_size": True},
        {"num_blocks": 0},
        {"num_blocks": -3},
        {"kv_cache_memory": "512 bananas"},
        {"kv_cache_memory": 0},
        {"gpu_memory_utilization": 0},
        {"gpu_memory_utilization": 1.01},
        {"gpu_memory_utilization": float("nan")},
        {"max_model_len": 0},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": "many"},
        {"attention_backend": "flash"},
        {"preemption_mode": "drop"},
        {"seed": "lucky"},
        {"swap_space": "1 potato"},
    ],
)
def test_bad_settings_are_named_in_one_line(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError) as error:
        EngineConfig(**bad)
    name = next(iter(bad))
    assert name in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("half", [{"preemption_mode": "swap"}, {"swap_space": "1GiB"}])
def test_swapping_needs_both_its_settings(half: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match="preemption_mode='swap' and swap_space go together"):
        EngineConfig(**half)
    EngineConfig(preemption_mode="swap", swap_space="1GiB")


@pytest.mark.parametrize(
    "name", ["num_blocks", "max_model_len", "kv_cache_memory", "block_size", "max_num_seqs"]
)
def test_a_number_that_python_does_not_write_out_is_refused_in_a_short_line(
    name: str, tiny_model: Callable[[str], Path]
) -> None:
    for value in (10**5000, -(10**5000)):
        with pytest.raises(InvalidConfigError, match=name) as refused:
            LLM(
                str(tiny_model("llama")),
                device="cpu",
                **(({} if name == "kv_cache_memory" else {"num_blocks": 8}) | {name: value}),
            )
        assert len(str(refused.value)) < 200


def test_a_dtype_that_is_no_name_is_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidConfigError, match=r"dtype must be one of auto, float32.*got \['x'\]"):
        LLM(str(tiny_model("llama")), dtype=["x"])  # type: ignore[arg-type]
