"""The parameters of a request: how its tokens are drawn, and when it ends.

Every value is checked here, once, so that the engine and the sampler can trust it. The names are vLLM's.
Page: docs/concepts/parallel_sampling.md.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from .errors import InvalidRequestError

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 4096
MAX_LOGPROBS = 20


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one request. Raises InvalidRequestError for a bad argument.

    n: number of outputs of the prompt.
    temperature: divides the logits; 0 is greedy (the largest logit, the lowest id among equal ones).
    top_p: keep the most likely tokens up to and with the one that brings their sum to `top_p`.
    top_k: keep the `top_k` most likely tokens; 0 (or -1) keeps all.
    min_p: keep tokens of at least `min_p` times the probability of the most likely one.
    repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output.
    presence_penalty: taken from the logit of each token in the output.
    frequency_penalty: the same, times the number of its occurrences.
    max_tokens: the output is at most this long.
    min_tokens: neither eos, a stop token nor a stop string ends an output before it is this long.
    stop: a string, a list of at most 16 of them, or None; a tuple once constructed. An output's text ends
        before the stop string. A stop string may hold special tokens, which the text itself leaves out.
    stop_token_ids: a list of token ids that end the output, or None; a tuple once constructed. The engine
        refuses ids beyond the model's vocabulary.
    ignore_eos: don't stop at the model's own end-of-sequence ids.
    seed: any 64-bit integer; the same seed gives the same tokens. None leaves it to the engine.
    logprobs: return the log-probability of each chosen token and of this many (0 to 20) most likely ones.
    cache_salt: only requests with an equal salt share prefix blocks.
    timeout: seconds after which the request is aborted.
    priority: any integer; the lowest starts first. It needs `LLM(policy=Priority())`.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 16
    min_tokens: int = 0
    stop: Any = None  # takes several types and holds one, which no plain annotation can say
    stop_token_ids: Any = None
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        _replace(self, "n", _integer, "an integer of at least 1", lambda v: v >= 1)
        _replace(self, "temperature", _number, "a finite number of at least 0", lambda v: v >= 0)
        _replace(self, "top_p", _number, "a number above 0 and at most 1", lambda v: 0 < v <= 1)
        _replace(self, "top_k", _integer, "an integer of at least 1, or 0 or -1 for all", lambda v: v >= -1)
        _replace(self, "min_p", _number, "a number from 0 to 1", lambda v: 0 <= v <= 1)
        _replace(self, "repetition_penalty", _number, "a finite number above 0", lambda v: v > 0)
        _replace(self, "presence_penalty", _number, "a number from -2 to 2", lambda v: -2 <= v <= 2)
        _replace(self, "frequency_penalty", _number, "a number from -2 to 2", lambda v: -2 <= v <= 2)
        _replace(self, "max_tokens", _integer, "an integer of at least 1", lambda v: v >= 1)
        allowed = f"an integer from 0 to max_tokens ({shown(self.max_tokens)})"
        _replace(self, "min_tokens", _integer, allowed, lambda v: 0 <= v <= self.max_tokens)
        _replace(
            self,
            "stop",
            _stop_strings,
            f"a non-empty string or a list of at most {MAX_STOP_STRINGS} such strings, "
            f"of at most {MAX_STOP_CHARACTERS} characters each",
        )
        _replace(self, "stop_token_ids", _token_ids, "a list of integers of at least 0, or None")
        _replace(self, "ignore_eos", _flag, "True or False")
        allowed = "None or an integer of 64 bits (-2**63 to 2**64 - 1)"
        _replace(self, "seed", _optional(_integer), allowed, lambda v: -(2**63) <= v < 2**64)
        allowed = f"None or an integer from 0 to {MAX_LOGPROBS}"
        _replace(self, "logprobs", _optional(_integer), allowed, lambda v: 0 <= v <= MAX_LOGPROBS)
        _replace(self, "cache_salt", _optional(_string), "None or a non-empty string")
        _replace(self, "timeout", _optional(_number), "None or seconds above 0", lambda v: v > 0)
        _replace(self, "priority", _integer, "an integer")
        object.__setattr__(self, "top_k", max(self.top_k, 0))


@dataclass(frozen=True)
class BeamSearchParams:
    """How to search with beams. Raises InvalidRequestError for a bad argument.

    beam_width: the number of beams that live at a time, and of outputs.
    max_tokens: each output is at most this long.
    length_penalty: a beam's score is its summed log-probability / length ** length_penalty (-10 to 10).
    early_stopping: True ends as soon as there are `beam_width` finished beams; False once no live beam looks
        better than those, judged at its present length; "never" once none could, at any length.
    ignore_eos: never finish a beam at an end-of-sequence id.
    priority: as in `SamplingParams`.
    """

    beam_width: int = 4
    max_tokens: int = 16
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    ignore_eos: bool = False
    priority: int = 0

    def __post_init__(self) -> None:
        _replace(self, "beam_width", _integer, "an integer of at least 1", lambda v: v >= 1)
        _replace(self, "max_tokens", _integer, "an integer of at least 1", lambda v: v >= 1)
        _replace(self, "length_penalty", _number, "a number from -10 to 10", lambda v: -10 <= v <= 10)
        _replace(self, "early_stopping", _early_stopping, 'True, False or "never"')
        _replace(self, "ignore_eos", _flag, "True or False")
        _replace(self, "priority", _integer, "an integer")


Params = SamplingParams | BeamSearchParams


def _replace(
    params: object,
    name: str,
    read: Callable[[Any], Any],
    allowed: str,
    is_allowed: Callable[[Any], bool] = lambda value: True,
) -> None:
    """Replace an argument by its plain Python value, or raise an error that says what is allowed."""
    given = getattr(params, name)
    try:
        value = read(given)
        fine = value is None or is_allowed(value)
    except (TypeError, ValueError, OverflowError):
        fine = False
    if not fine:
        raise InvalidRequestError(f"{name} must be {allowed}, got {shown(given)}") from None
    object.__setattr__(params, name, value)


def shown(value: Any) -> str:
    """Return a caller's value for a message: one line, shortened if it is long."""
    try:
        return " ".join(reprlib.repr(value).split())
    except ValueError:  # Python writes out no integer of more than 4,300 digits
        return f"{type(value).__name__} of too many digits"


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: None if given is None else read(given)


def _integer(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise TypeError
    return int(given)


def _number(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError
    if not math.isfinite(value := float(given)):
        raise ValueError
    return value


def _flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError
    return given


def _early_stopping(given: Any) -> bool | str:
    return given if isinstance(given, str) and given == "never" else _flag(given)


def _string(given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise TypeError
    return given


def _stop_strings(given: Any) -> tuple[str, ...]:
    strings = (given,) if isinstance(given, str) else _items(given)
    if len(strings) > MAX_STOP_STRINGS or any(len(_string(text)) > MAX_STOP_CHARACTERS for text in strings):
        raise ValueError
    return strings


def _token_ids(given: Any) -> tuple[int, ...]:
    token_ids = tuple(_integer(token_id) for token_id in _items(given))
    if any(token_id < 0 for token_id in token_ids):
        raise ValueError
    return token_ids


def _items(given: Any) -> tuple[Any, ...]:
    """Return the items of a list or tuple, none for None. Another iterable is more likely a mistake."""
    if given is None:
        return ()
    if not isinstance(given, list | tuple):
        raise TypeError
    return tuple(given)
