"""From logits to token ids. A draw depends on its row, its seed and its position, and on nothing else.

There is no generator whose state a neighbour, a prefill chunk or a preemption could advance: one number is
hashed out of (seed, position) and looked up in the row's cumulative distribution, whose sums are exact.
Page: docs/concepts/parallel_sampling.md.

A greedy row needs nothing but the position of its largest logit. For the other rows, logits.py applies their
parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..errors import MinipagedError
from ..sampling_params import SamplingParams
from .logits import log_probabilities, on_device, penalise, token_weights, waits_cost

ROWS_AT_ONCE = 8  # on a CPU: float64 copies of more rows fall out of its cache. A GPU takes all at once
_MASK_64 = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd: its multiples visit every 64-bit number


class InvalidLogitsError(MinipagedError, ValueError):
    """Rows that nothing can be drawn from. `rows` are their indices: sample the others without them."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        names = ", ".join(map(str, rows))
        super().__init__(
            f"logits of row {names}: NaN, +inf or no token left, need a finite largest value and no NaN"
        )
        self.rows = rows


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """Everything that the sampler must know about one row of logits.

    seed: any integer, taken modulo 2**64; sample i of n has seed + i.
    position: place in the sequence, prompt included, of the token to be drawn.
    stop_token_ids: eos and stop ids, impossible while there are fewer than `min_tokens` output tokens.
    """

    params: SamplingParams
    seed: int
    position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    stop_token_ids: Sequence[int] = ()

    @property
    def masks_stop(self) -> bool:
        """True while it is too early for this row to stop."""
        return bool(self.stop_token_ids) and len(self.output_token_ids) < self.params.min_tokens

    @property
    def needs_more_than_argmax(self) -> bool:
        """True if the largest logit alone does not decide the token."""
        params = self.params
        neutral = params.repetition_penalty == 1 and not (params.presence_penalty or params.frequency_penalty)
        return params.temperature > 0 or not neutral or self.masks_stop


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, and if the request has `logprobs`, natural log-probabilities under the model's own logits.

    top_logprobs maps token ids to them, most likely first: the `logprobs` largest and the chosen one.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Choose the next token of each row.

    logits: [rows, vocab], any float dtype, any device; not changed. Penalties and probabilities are computed
    in float64, log-probabilities in float32 (float64 for float64 logits).

    The other rows of the batch, and the row's own place in it, never change its token. Raises
    InvalidLogitsError, naming the rows, if a row holds NaN or +inf or has no token left.
    """
    if logits.dim() != 2 or len(logits) != len(rows) or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floats of shape [{len(rows)}, vocab], got {logits.dtype} {list(logits.shape)}"
        )
    if not rows:
        return []
    tokens = _argmax(logits)
    for part in _parts([i for i, row in enumerate(rows) if row.needs_more_than_argmax], logits.device):
        chosen = _choose(_select(logits, part), [rows[i] for i in part])
        places = on_device(part, logits.device, torch.int64)
        tokens[places] = torch.where(tokens[places] < 0, -1, chosen)  # invalid logits stay invalid
    token_ids = tokens.tolist()
    if invalid := tuple(i for i, token_id in enumerate(token_ids) if token_id < 0):
        raise InvalidLogitsError(invalid)
    sampled = [SampledToken(token_id) for token_id in token_ids]
    for part in _parts([i for i, row in enumerate(rows) if row.params.logprobs is not None], logits.device):
        counts = [rows[i].params.logprobs or 0 for i in part]
        for i, top in zip(part, log_probabilities(_select(logits, part), tokens[part], counts), strict=True):
            sampled[i] = SampledToken(token_ids[i], top[token_ids[i]], top)
    return sampled


def _choose(logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
    """Token ids, int64 [rows], of rows that need more than an argmax; -1 where there is none."""
    logits = logits.to(torch.float64, copy=True)
    penalise(logits, rows)
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if len(drawn) == len(rows):
        return _draw(logits, rows)
    chosen = _argmax(logits)
    if drawn:
        places = on_device(drawn, logits.device, torch.int64)
        chosen[places] = _draw(logits[places], [rows[i] for i in drawn])
    return chosen


def _draw(logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
    """Random token ids, int64 [rows], by inversion of the cumulative distribution; -1 where there is none."""
    sums = token_weights(logits, rows).cumsum(-1)
    numbers = [[uniform(row.seed, row.position)] for row in rows]
    # Below the total even after rounding, since no number is above 1 - 2**-53.
    target = on_device(numbers, logits.device, torch.float64).mul_(sums[:, -1:]).floor_()
    tokens = torch.searchsorted(sums, target, right=True).squeeze(-1)
    return torch.where(logits.amax(-1).isfinite(), tokens, -1)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The lowest id of the largest value, int64 [rows]; -1 where that value is NaN or infinite."""
    largest, token_ids = logits.max(-1)  # NaN counts as the largest; of equal values the first is returned
    return torch.where(largest.isfinite(), token_ids, -1)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), of 53 bits, that (seed, position) alone decide.

    This is splitmix64 (Steele, Lea and Flood, OOPSLA 2014) entered at `position`. The seed is mixed first, or
    else a seed that is another one plus the constant would walk the same sequence one position ahead.
    """
    state = _mix((seed + _GOLDEN) & _MASK_64) + (position + 1) * _GOLDEN
    return (_mix(state & _MASK_64) >> 11) * 2.0**-53


def _select(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """These rows of the logits, in ascending order; without a copy if that is all of them."""
    if len(rows) == len(logits):
        return logits
    return logits[on_device(rows, logits.device, torch.int64)]


def _parts(indices: list[int], device: torch.device) -> Iterator[list[int]]:
    """The list in pieces of at most ROWS_AT_ONCE on a CPU, as a whole where a wait costs."""
    if not indices:
        return
    size = len(indices) if waits_cost(device) else ROWS_AT_ONCE
    for start in range(0, len(indices), size):
        yield indices[start : start + size]


def _mix(z: int) -> int:
    """The finaliser of splitmix64: a bijection of 64-bit numbers; an input bit flips half of the output."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return z ^ (z >> 31)
