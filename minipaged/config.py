"""The engine's settings, checked once, before a model is loaded or a block reserved."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeGuard

from .errors import InvalidConfigError, InvalidRequestError
from .sampling_params import shown

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", start=1)}

BACKENDS = ("auto", "triton", "numba", "reference")
LARGEST = 2**31 - 1  # a step's tensors hold block ids, lengths and numbers of tokens in 32 bits


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Settings of an engine; the names are vLLM's where vLLM has one. Raises InvalidConfigError.

    block_size: tokens per block, any positive integer. num_blocks: size of the pool; without it,
    `kv_cache_memory` (bytes, or a string like "512MiB"); without either, what `gpu_memory_utilization`
    leaves on a GPU, and 1 GiB on a CPU. max_num_batched_tokens: tokens one step may compute.
    max_num_seqs: sequences one step may hold. max_model_len: limit of prompt + output. preemption_mode:
    "recompute", or "swap" to host memory of `swap_space` bytes (recomputation where that is full).
    max_num_unfinished: with this many unfinished requests the engine refuses more. max_prompt_bytes: limit
    of a prompt's text. check_invariants: prove after every step that no block is lost, which takes time.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_memory: int | str | None = None
    gpu_memory_utilization: float = 0.9
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    enable_prefix_caching: bool = True
    attention_backend: str = "auto"
    preemption_mode: str = "recompute"
    swap_space: int | str = 0
    max_num_unfinished: int = 10_000
    max_prompt_bytes: int = 4 << 20
    check_invariants: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            _check_positive(name, getattr(self, name), LARGEST)
        for name in ("max_num_unfinished", "max_prompt_bytes"):
            _check_positive(name, getattr(self, name))
        if self.num_blocks is not None:
            _check_positive("num_blocks", self.num_blocks, LARGEST)
        if self.max_model_len is not None:
            _check_positive("max_model_len", self.max_model_len)
        if self.kv_cache_memory is not None and parse_bytes("kv_cache_memory", self.kv_cache_memory) == 0:
            raise InvalidConfigError("kv_cache_memory must be more than 0 bytes")
        share = self.gpu_memory_utilization
        self._check("gpu_memory_utilization", is_number(share) and 0 < share <= 1, "above 0 and at most 1")
        backends = f"one of {', '.join(BACKENDS)}"
        self._check("attention_backend", self.attention_backend in BACKENDS, backends)
        self._check("check_invariants", isinstance(self.check_invariants, bool), "True or False")
        self._check("seed", is_integer(self.seed), "an integer")
        self._check("preemption_mode", self.preemption_mode in ("recompute", "swap"), "recompute or swap")
        if (self.preemption_mode == "swap") != (parse_bytes("swap_space", self.swap_space) > 0):
            raise InvalidConfigError(
                f"preemption_mode='swap' and swap_space go together, such as swap_space='1GiB'; got "
                f"preemption_mode={shown(self.preemption_mode)} and swap_space={shown(self.swap_space)}"
            )

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise InvalidConfigError(f"{name} must be {allowed}, got {shown(getattr(self, name))}")

    def model_len(self, limit: int) -> int:
        """Return `max_model_len`, or the model's own `limit`. Raises InvalidConfigError beyond that limit."""
        if self.max_model_len is not None and self.max_model_len > limit:
            raise InvalidConfigError(
                f"max_model_len={shown(self.max_model_len)} is beyond the model's own limit of {limit}"
            )
        return self.max_model_len or limit


def parse_bytes(name: str, value: int | str) -> int:
    """Return the bytes of an integer, or of a string with a number and a unit: "512MiB", "1.5 GB", "4096"."""
    if is_integer(value) and value >= 0:
        return value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match and match[2].upper() in _UNITS and math.isfinite(float(match[1])):
            return math.floor(float(match[1]) * _UNITS[match[2].upper()])
    raise InvalidConfigError(
        f"{name} must be a number of bytes, or a number and a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB), "
        f"got {shown(value)}"
    )


def size_of_text(name: str, text: str, max_prompt_bytes: float = math.inf) -> int:
    """Return the bytes of a caller's text. Raises InvalidRequestError for too many, and for invalid text."""
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{name} is no valid text: {error}") from None
    if num_bytes > max_prompt_bytes:
        raise InvalidRequestError(
            f"{name} has {num_bytes} bytes of text, max_prompt_bytes={max_prompt_bytes} are allowed"
        )
    return num_bytes


def _check_positive(name: str, value: object, most: float = math.inf) -> None:
    if not is_integer(value) or value < 1:
        raise InvalidConfigError(f"{name} must be a positive integer, got {shown(value)}")
    if value > most:
        raise InvalidConfigError(f"{name} must be at most {most}, got {shown(value)}")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer, which True and False are not here."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is an integer or a float."""
    return is_integer(value) or isinstance(value, float)
