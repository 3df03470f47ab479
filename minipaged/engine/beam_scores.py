"""Choose which beams go on: the search itself, without models or blocks.

At each step every beam proposes all tokens. The best candidates over all beams go on. Those that end here are
kept aside with their scores. The rules are those of Hugging Face's `generate`, also for when to stop, so that
results can be compared. reference/beam_search.py moves the blocks.
Page: docs/concepts/beam_search.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..sampling_params import BeamSearchParams
from .sampler import InvalidLogitsError


@dataclass(frozen=True)
class Hypothesis:
    """A finished output: `score` is its summed log-probability / length ** length_penalty."""

    token_ids: list[int]
    score: float
    finish_reason: str


@dataclass(frozen=True)
class Continuation:
    """A beam that goes on: `parent` is the index of the beam that it continues."""

    parent: int
    token_id: int


class BeamSearch:
    """The search of one request. `scores` are the live beams' summed log-probabilities, best first."""

    def __init__(self, params: BeamSearchParams, eos_token_ids: frozenset[int], max_tokens: int) -> None:
        self.params = params
        self.eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        self.max_tokens = max_tokens
        self.scores = [0.0]
        self.finished: list[Hypothesis] = []  # best first, at most beam_width
        self.is_done = False

    @property
    def num_candidates(self) -> int:
        """Enough candidates that beam_width of them go on, even if every beam could end with every eos id."""
        return max(2, 1 + len(self.eos_token_ids)) * self.params.beam_width

    @property
    def is_full(self) -> bool:
        """True once there are beam_width finished outputs."""
        return len(self.finished) == self.params.beam_width

    def advance(self, logits: torch.Tensor, outputs: Sequence[list[int]]) -> list[Continuation]:
        """Choose the next beams.

        logits: [beams, vocab] of the live beams, outputs: their tokens so far, all of one length. Returns
        the beams that go on, best first; none where the search is done. Raises InvalidLogitsError.
        """
        largest = logits.amax(dim=-1)  # NaN where a row holds one
        if not bool(largest.isfinite().all()):
            raise InvalidLogitsError(tuple((~largest.isfinite()).nonzero().flatten().tolist()))
        width, length = self.params.beam_width, len(outputs[0]) + 1
        totals = torch.log_softmax(logits.float(), dim=-1).double()
        totals += torch.tensor(self.scores, dtype=torch.float64, device=logits.device).unsqueeze(1)
        best = totals.flatten().topk(min(self.num_candidates, totals.numel()))
        live: list[tuple[float, Continuation]] = []
        ended: list[Hypothesis] = []
        for rank, (score, candidate) in enumerate(
            zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ):
            if score == -math.inf:  # no token at all
                break
            parent, token_id = divmod(candidate, logits.shape[-1])
            is_eos = token_id in self.eos_token_ids
            if not is_eos and length < self.max_tokens:
                live.append((score, Continuation(parent, token_id)))
            elif rank < width:  # the others are there to replace those that end
                reason = "stop" if is_eos else "length"
                ended.append(Hypothesis([*outputs[parent], token_id], self._penalised(score, length), reason))
        if not (self.params.early_stopping is True and self.is_full):
            self.finished = sorted([*self.finished, *ended], key=lambda h: -h.score)[:width]
        live = live[:width]
        self.scores = [score for score, _ in live]
        self.is_done = not live or not self._can_improve(length)
        return [] if self.is_done else [continuation for _, continuation in live]

    def _can_improve(self, length: int) -> bool:
        """Whether to go on. How well the best live beam may still end is estimated as Hugging Face does."""
        if not self.is_full:
            return True
        if self.params.early_stopping is True or self.params.beam_width == 1:  # of one beam, greedy's end
            return False
        if self.params.early_stopping == "never" and self.params.length_penalty > 0:
            length = self.max_tokens
        return self._penalised(self.scores[0], length) > self.finished[-1].score

    def _penalised(self, score: float, length: int) -> float:
        return score / length**self.params.length_penalty
