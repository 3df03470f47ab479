"""The systems that are compared, their requests, and how much cache a padded batch wastes.

What counts as waste is what the paper's Figure 2 counts: slots that are reserved and hold no wanted token.
Page: docs/concepts/fragmentation.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minipaged.errors import InvalidConfigError

from ..shared.models import plain_token_ids

ENGINE, PROFILE = "minipaged", "minipaged-profile"
HF_BATCH_SIZES = {"hf-1": 1, "hf-8": 8, "hf-32": 32}
# The same once more with its weights where the engine puts them on a CPU: how much of the gain is only that.
MOVED = "hf-32-moved"
WARM_UP = (4, 24, 4)  # requests, prompt tokens, output tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is run: the model, and requests of random lengths (in tokens). Raises InvalidConfigError."""

    model: str
    num_requests: int
    min_prompt: int
    max_prompt: int
    min_output: int
    max_output: int
    seed: int
    dtype: str
    device: str
    attention_backend: str

    def __post_init__(self) -> None:
        for name in ("num_requests", "min_prompt", "min_output"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for what in ("prompt", "output"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                raise InvalidConfigError(f"max_{what}={high} is below min_{what}={low}")


class RequestSet(NamedTuple):
    """Requests in order of arrival: token ids of each prompt, and how many tokens each wants back."""

    prompts: list[list[int]]
    output_lengths: list[int]


def make_workload(settings: Settings, token_ids: Sequence[int]) -> RequestSet:
    """Lengths and prompts drawn uniformly, from `settings.seed` alone; prompts are made of `token_ids`."""
    rng = random.Random(settings.seed)
    count = settings.num_requests
    prompt_lengths = [rng.randint(settings.min_prompt, settings.max_prompt) for _ in range(count)]
    output_lengths = [rng.randint(settings.min_output, settings.max_output) for _ in range(count)]
    return RequestSet([rng.choices(token_ids, k=length) for length in prompt_lengths], output_lengths)


def make_workloads(settings: Settings, loaded: Any) -> tuple[RequestSet, RequestSet]:
    """The requests to time, and a few small ones to warm up with.

    loaded: the model, with its limits. Raises InvalidConfigError where the longest request could be
    longer than the model allows.
    """
    longest = settings.max_prompt + settings.max_output
    if longest > loaded.max_model_len:
        raise InvalidConfigError(
            f"max_prompt={settings.max_prompt} + max_output={settings.max_output} is beyond the model's own "
            f"limit of {loaded.max_model_len} tokens"
        )
    token_ids = plain_token_ids(loaded)
    requests, prompt, output = WARM_UP
    rng = random.Random(settings.seed + 1)
    prompts = [rng.choices(token_ids, k=min(prompt, settings.max_prompt)) for _ in range(requests)]
    warm_up = RequestSet(prompts, [min(output, settings.max_output)] * requests)
    return make_workload(settings, token_ids), warm_up


def padded_waste(workload: RequestSet, batch_size: int) -> float:
    """Share of cached slots that hold padding or a token past what its request wants, over all steps.

    A batch of B prompts, the longest of P tokens, holds B x (P + k) slots after its k-th decode step, of
    which a request of p tokens that wants n back uses p + min(k, n). Batches of one waste nothing.
    """
    reserved = used = 0
    for prompts, lengths in batches(workload, batch_size):
        width = max(map(len, prompts))
        for k in range(max(lengths)):
            reserved += len(prompts) * (width + k)
            used += sum(len(prompt) + min(k, n) for prompt, n in zip(prompts, lengths, strict=True))
    return 1 - used / reserved


def batches(workload: RequestSet, batch_size: int) -> Iterator[RequestSet]:
    """The requests in order of arrival, `batch_size` at a time."""
    for start in range(0, len(workload.prompts), batch_size):
        batch = slice(start, start + batch_size)
        yield RequestSet(workload.prompts[batch], workload.output_lengths[batch])
