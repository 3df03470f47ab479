"""Apply a request's parameters to its logits: penalties, the distribution to draw from, log-probabilities.

The order is that of transformers and vLLM: repetition penalty (prompt and output), presence and frequency
penalty (output), stop tokens masked below `min_tokens`, temperature, top-k, top-p, min-p. A greedy step
without penalties enters none of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .sampler import SamplingRow


def waits_cost(device: torch.device) -> bool:
    """Whether reading a number of a tensor waits: a GPU then runs out of work. A CPU has done it already."""
    return device.type != "cpu"


def on_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers as a tensor, for a GPU by way of pinned memory, so that the host doesn't wait."""
    tensor = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return tensor.to(device, non_blocking=True)


def penalise(logits: torch.Tensor, rows: list[SamplingRow]) -> None:
    """Change float64 logits [rows, vocab] in place: the three penalties, and no stop token too early."""
    _penalise_repetition(logits, rows)
    _penalise_presence(logits, rows)
    _mask_stop_tokens(logits, rows)


def token_weights(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """The distribution that each row is drawn from, as whole numbers: weight / sum of weights = probability.

    logits: [rows, vocab], after the penalties; every row's temperature is above 0. Returns float64 of the
    same shape. The most likely token weighs 2**bits, others in proportion, rounded; bits is such that a sum
    over the vocabulary stays below 2**53. Sums of such numbers are exact in any order, so neither the number
    of rows nor the device's order of addition can change a draw. With a vocabulary of 49,152, a token that
    rounds to 0 is less than 2**-37 times as likely as the most likely token.
    """
    vocab = logits.shape[-1]
    settings = [
        [row.params.temperature, min(row.params.top_k, vocab), row.params.top_p, row.params.min_p]
        for row in rows
    ]
    columns = on_device(settings, logits.device, torch.float64)
    temperature, top_k, top_p, min_p = columns.unsqueeze(-1).unbind(1)
    scale = 2.0 ** (53 - vocab.bit_length())

    logits = logits.to(torch.float64)
    # The largest is subtracted before the division: a tiny temperature then gives -inf, never inf - inf.
    weights = (logits - logits.amax(-1, keepdim=True)).div_(temperature).exp_().mul_(scale).round_()
    if any(0 < row.params.top_k < vocab for row in rows):
        counts = torch.where(top_k > 0, top_k, vocab).long().clamp_(max=vocab)
        most = max(row.params.top_k for row in rows if row.params.top_k < vocab)
        weights = torch.where(_keep_top_k(logits, counts, max(1, most)), weights, 0.0)
    if any(row.params.top_p < 1 for row in rows):
        weights = torch.where(_keep_top_p(weights, top_p), weights, 0.0)
    if any(row.params.min_p > 0 for row in rows):
        weights = torch.where(weights >= min_p * scale, weights, 0.0)
    return weights


def log_probabilities(
    logits: torch.Tensor, tokens: torch.Tensor, counts: list[int]
) -> list[dict[int, float]]:
    """Natural log-probabilities of each row's chosen token and of its `counts` most likely ones, by token id.

    They come most likely first.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    values = logits.log_softmax(-1, dtype=dtype)
    keep = tokens.new_zeros(values.shape, dtype=torch.bool)
    if max(counts) > 0:
        most = [[min(count, logits.shape[-1])] for count in counts]
        largest = max((count for [count] in most if count < logits.shape[-1]), default=1)
        keep = _keep_top_k(values, on_device(most, logits.device, torch.int64), max(1, largest))
    keep.scatter_(-1, tokens.unsqueeze(-1), True)
    kept: list[dict[int, float]] = [{} for _ in counts]
    for (row, token_id), value in zip(keep.nonzero().tolist(), values[keep].tolist(), strict=True):
        kept[row][token_id] = value
    return [dict(sorted(top.items(), key=lambda item: (-item[1], item[0]))) for top in kept]


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
    penalty = on_device(factors, logits.device, torch.float64)[row_ids]
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
    penalties = [[row.params.presence_penalty, row.params.frequency_penalty] for row in rows]
    columns = on_device(penalties, logits.device, torch.float64)
    presence, frequency = columns[row_ids].unbind(-1)
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
    parts = (flat // vocab, flat % vocab, counts)
    if logits.is_cuda:
        parts = tuple(part.pin_memory() for part in parts)
    return (part.to(logits.device, non_blocking=True) for part in parts)


def _keep_top_k(values: torch.Tensor, counts: torch.Tensor, most: int) -> torch.Tensor:
    """True at each row's `counts` [rows, 1] largest values; of equal ones at those with the lowest ids.

    most: the largest of the counts that are below the vocabulary, known on the host.
    """
    vocab = values.shape[-1]
    return _keep_largest(values, values.topk(most).values, counts) | (counts >= vocab)


def _keep_top_p(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """True at the fewest largest weights whose sum reaches the share `top_p` [rows, 1]; for 1 at all."""
    all_of_them = top_p >= 1
    share = torch.where(all_of_them, 0, top_p)
    target = (weights.sum(-1, keepdim=True) * share).ceil_()
    vocab = weights.shape[-1]
    # A nucleus is mostly small: a CPU looks at few tokens first, and sorts them all only if it must.
    count = vocab if waits_cost(weights.device) else 256
    while True:
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
    if not waits_cost(values.device) and bool((keep.sum(-1, keepdim=True) == counts).all()):
        return keep
    above = values > threshold
    rank = (keep ^ above).cumsum(-1)  # among the values equal to the threshold, by id
    return above | (keep & (rank <= counts - above.sum(-1, keepdim=True)))
