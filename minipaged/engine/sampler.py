"""From logits to token ids. A draw depends on its row, its seed and its position, and on nothing else.

There is no generator whose state a neighbour, a prefill chunk or a preemption could advance: one number is
hashed out of (seed, position) and looked up in the row's cumulative distribution, whose sums are exact.
Page: docs/concepts/parallel_sampling.md.

The order of the processors is that of transformers and vLLM: repetition penalty (prompt and output), presence
and frequency penalty (output), stop tokens masked below `min_tokens`, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ..errors import MinipagedError
from ..sampling_params import SamplingParams

ROWS_AT_ONCE = 8  # rows processed together: float64 copies of more of them fall out of a CPU's cache
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
    """What the sampler must know of one row of logits.

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
        """True where something else than the largest logit decides the token."""
        params = self.params
        neutral = params.repetition_penalty == 1 and not (params.presence_penalty or params.frequency_penalty)
        return params.temperature > 0 or not neutral or self.masks_stop


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, and where `logprobs` was asked for, natural log-probabilities under the model's own logits.

    top_logprobs maps token ids to them, most likely first: the `logprobs` largest and the chosen one.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: dict[int, float] | None = None


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Choose the next token of each row.

    logits: [rows, vocab], any float dtype, any device; not changed. Penalties and probabilities are computed
    in float64, log-probabilities in float32 (float64 for float64 logits).

    A row's token is the same whatever the other rows are, and wherever among them it stands. Raises
    InvalidLogitsError, naming the rows, where a row holds NaN or +inf or has no token left.
    """
    if logits.dim() != 2 or len(logits) != len(rows) or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floats of shape [{len(rows)}, vocab], got {logits.dtype} {list(logits.shape)}"
        )
    if not rows:
        return []
    tokens = _argmax(logits)
    for some in _in_parts([i for i, row in enumerate(rows) if row.needs_more_than_argmax]):
        chosen = _choose(_select(logits, some), [rows[i] for i in some])
        tokens[some] = torch.where(tokens[some] < 0, -1, chosen)
    token_ids = tokens.tolist()
    invalid = tuple(i for i, token_id in enumerate(token_ids) if token_id < 0)
    if invalid:
        raise InvalidLogitsError(invalid)
    top: dict[int, dict[int, float]] = {}
    for some in _in_parts([i for i, row in enumerate(rows) if row.params.logprobs is not None]):
        found = _logprobs(_select(logits, some), tokens[some], [rows[i] for i in some])
        top.update(zip(some, found, strict=True))
    return [
        SampledToken(token_id, top[i][token_id], top[i]) if i in top else SampledToken(token_id)
        for i, token_id in enumerate(token_ids)
    ]


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), of 53 bits, that (seed, position) alone decide.

    This is splitmix64 (Steele, Lea and Flood, OOPSLA 2014) entered at `position`. The seed is mixed first, or
    else a seed that is another one plus the constant would walk the same sequence one position ahead.
    """
    state = _mix((seed + _GOLDEN) & _MASK_64) + (position + 1) * _GOLDEN
    return (_mix(state & _MASK_64) >> 11) * 2.0**-53


def token_weights(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """The distribution that each row is drawn from, as whole numbers: weight / sum of weights = probability.

    logits: [rows, vocab], after the penalties; every row's temperature is above 0. Returns float64 of the
    same shape. The most likely token weighs 2**bits, others in proportion, rounded; bits is such that a sum
    over the vocabulary stays below 2**53. Sums of such numbers are exact in any order, so neither the number
    of rows nor the device's way of adding can change a draw. What rounds to 0 is less than 2**-37 as likely
    as the most likely token, for a vocabulary of 49,152.
    """
    vocab = logits.shape[-1]
    asked = [
        [row.params.temperature, min(row.params.top_k, vocab), row.params.top_p, row.params.min_p]
        for row in rows
    ]
    columns = torch.tensor(asked, dtype=torch.float64, device=logits.device)
    temperature, top_k, top_p, min_p = columns.unsqueeze(-1).unbind(1)
    scale = 2.0 ** (53 - vocab.bit_length())

    logits = logits.to(torch.float64)
    # The largest is subtracted before the division: a tiny temperature then gives -inf, never inf - inf.
    weights = (logits - logits.amax(-1, keepdim=True)).div_(temperature).exp_().mul_(scale).round_()
    if any(0 < row.params.top_k < vocab for row in rows):
        counts = torch.where(top_k > 0, top_k, vocab).long().clamp_(max=vocab)
        weights = torch.where(_keep_top_k(logits, counts), weights, 0.0)
    if any(row.params.top_p < 1 for row in rows):
        weights = torch.where(_keep_top_p(weights, top_p), weights, 0.0)
    if any(row.params.min_p > 0 for row in rows):
        weights = torch.where(weights >= min_p * scale, weights, 0.0)
    return weights


def _choose(logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
    """Token ids, int64 [rows], of rows that need more than an argmax; -1 where there is none."""
    logits = logits.to(torch.float64, copy=True)
    _penalise_repetition(logits, rows)
    _penalise_presence(logits, rows)
    _mask_stop_tokens(logits, rows)
    drawn = [i for i, row in enumerate(rows) if row.params.temperature > 0]
    if len(drawn) == len(rows):
        return _draw(logits, rows)
    chosen = _argmax(logits)
    if drawn:
        chosen[drawn] = _draw(logits[drawn], [rows[i] for i in drawn])
    return chosen


def _draw(logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
    """Random token ids, int64 [rows], by inversion of the cumulative distribution; -1 where there is none."""
    sums = token_weights(logits, rows).cumsum(-1)
    numbers = [[uniform(row.seed, row.position)] for row in rows]
    # Below the total even after rounding, since no number is above 1 - 2**-53.
    target = torch.tensor(numbers, dtype=torch.float64, device=logits.device).mul_(sums[:, -1:]).floor_()
    tokens = torch.searchsorted(sums, target, right=True).squeeze(-1)
    return torch.where(logits.amax(-1).isfinite(), tokens, -1)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The lowest id of the largest value, int64 [rows]; -1 where that value is NaN or infinite."""
    largest, token_ids = logits.max(-1)  # NaN counts as the largest; of equal values the first is returned
    return torch.where(largest.isfinite(), token_ids, -1)


def _penalise_repetition(logits: torch.Tensor, rows: list[SamplingRow]) -> None:
    """Keskar et al., 2019 (arXiv:1909.05858), section 4.1, with the sign handled as transformers does.

    A finite logit stays finite: an extreme penalty makes tokens certain or impossible, and no row invalid.
    """
    used = [
        [*row.prompt_token_ids, *row.output_token_ids] if row.params.repetition_penalty != 1 else ()
        for row in rows
    ]
    row_ids, token_ids, _ = _pairs(used, logits)
    factors = [row.params.repetition_penalty for row in rows]
    penalty = torch.tensor(factors, dtype=torch.float64, device=logits.device)[row_ids]
    old = logits[row_ids, token_ids]
    limit = torch.finfo(torch.float64).max
    new = torch.where(old < 0, old * penalty, old / penalty).clamp_(-limit, limit)
    logits[row_ids, token_ids] = torch.where(old.isfinite(), new, old)


def _penalise_presence(logits: torch.Tensor, rows: list[SamplingRow]) -> None:
    """Presence penalty once for each token of the output, frequency penalty for each time it occurs."""
    used = [
        row.output_token_ids if row.params.presence_penalty or row.params.frequency_penalty else ()
        for row in rows
    ]
    row_ids, token_ids, counts = _pairs(used, logits)
    asked = [[row.params.presence_penalty, row.params.frequency_penalty] for row in rows]
    presence, frequency = torch.tensor(asked, dtype=torch.float64, device=logits.device)[row_ids].unbind(-1)
    logits[row_ids, token_ids] -= presence + frequency * counts


def _mask_stop_tokens(logits: torch.Tensor, rows: list[SamplingRow]) -> None:
    """Make every stop token impossible in rows that may not end yet."""
    vocab = logits.shape[-1]
    masked = [
        [token_id for token_id in row.stop_token_ids if 0 <= token_id < vocab] if row.masks_stop else ()
        for row in rows
    ]
    row_ids, token_ids, _ = _pairs(masked, logits)
    logits[row_ids, token_ids] = -torch.inf


def _pairs(token_ids: Sequence[Sequence[int]], logits: torch.Tensor) -> Iterator[torch.Tensor]:
    """Index tensors of the distinct ids of each row: row, token id, and how often it occurs there.

    Ids beyond the vocabulary are left out: a model may have fewer logits than its tokenizer has tokens.
    """
    vocab = logits.shape[-1]
    lengths = torch.tensor([len(ids) for ids in token_ids])
    columns = torch.tensor([token_id for ids in token_ids for token_id in ids], dtype=torch.int64)
    flat = torch.arange(len(token_ids)).repeat_interleave(lengths) * vocab + columns
    flat, counts = flat[columns < vocab].unique(return_counts=True)
    return (part.to(logits.device) for part in (flat // vocab, flat % vocab, counts))


def _keep_top_k(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """True at each row's `counts` [rows, 1] largest values; of equal ones at those with the lowest ids."""
    vocab = values.shape[-1]
    most = int(torch.where(counts < vocab, counts, 1).max())
    return _keep_largest(values, values.topk(most).values, counts) | (counts >= vocab)


def _keep_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """True at the fewest largest weights whose sum reaches the share `top_p` [rows, 1]; for 1 at all."""
    all_of_them = top_p >= 1
    share = torch.where(all_of_them, 0, top_p)
    target = (weights.sum(-1, keepdim=True) * share).ceil_()
    vocab, count = weights.shape[-1], 256
    while True:  # a nucleus is mostly small: look at few tokens first, and sort them all only if it must be
        largest = weights.topk(min(count, vocab)).values
        sums = largest.cumsum(-1)
        if count >= vocab or bool((sums[:, -1:] >= target).all()):
            break
        count *= 8
    return _keep_largest(weights, largest, (sums < target).sum(-1, keepdim=True) + 1) | all_of_them


def _keep_largest(values: torch.Tensor, largest: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """True at `counts` [rows, 1] values of each row, given the largest ones of each in descending order."""
    threshold = largest.gather(-1, (counts - 1).clamp(0, largest.shape[-1] - 1))
    keep = values >= threshold
    if bool((keep.sum(-1, keepdim=True) == counts).all()):
        return keep
    above = values > threshold
    rank = (keep ^ above).cumsum(-1)  # among the values equal to the threshold, by id
    return above | (keep & (rank <= counts - above.sum(-1, keepdim=True)))


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, rows: list[SamplingRow]) -> list[dict[int, float]]:
    """For each row the log-probabilities of its chosen token and of the most likely ones."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    values = logits.log_softmax(-1, dtype=dtype)
    asked = [[min(row.params.logprobs or 0, logits.shape[-1])] for row in rows]
    keep = tokens.new_zeros(values.shape, dtype=torch.bool)
    if max(asked) > [0]:
        keep = _keep_top_k(values, torch.tensor(asked, device=logits.device))
    keep.scatter_(-1, tokens.unsqueeze(-1), True)
    found: list[dict[int, float]] = [{} for _ in rows]
    for (row, token_id), value in zip(keep.nonzero().tolist(), values[keep].tolist(), strict=True):
        found[row][token_id] = value
    return [dict(sorted(top.items(), key=lambda item: (-item[1], item[0]))) for top in found]


def _select(tensor: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Some rows of a tensor, in ascending order; the tensor itself where these are all."""
    return tensor if len(rows) == len(tensor) else tensor[rows]


def _in_parts(indices: list[int]) -> Iterator[list[int]]:
    """The list in pieces of at most ROWS_AT_ONCE."""
    for start in range(0, len(indices), ROWS_AT_ONCE):
        yield indices[start : start + ROWS_AT_ONCE]


def _mix(z: int) -> int:
    """The finaliser of splitmix64: a bijection of 64-bit numbers; an input bit flips half of the output."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return z ^ (z >> 31)
