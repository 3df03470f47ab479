"""From logits to the next tokens of a step's requests: sample, fork a prompt into n, and see which ones end.

The block manager counts the blocks that forked sequences share. Beam search goes on in beams.py.
Page: docs/concepts/parallel_sampling.md.
"""

from __future__ import annotations

import time

import torch

from .beams import advance_beams, end_beams
from .block_manager import BlockManager
from .endings import FATAL_ERRORS, end, fail
from .request import Request, Sequence
from .sampler import SampledToken, SamplingRow, sample
from .schedule import Schedule


class Decoder:
    """Appends tokens to sequences, and ends those that are done."""

    def __init__(self, blocks: BlockManager, eos_token_ids: frozenset[int]) -> None:
        self.blocks = blocks
        self.eos_token_ids = eos_token_ids

    def advance(self, step: Schedule, logits: torch.Tensor) -> tuple[list[Request], int]:
        """Give every sequence that is up to date its next token.

        Returns the requests that advanced, and the number of new tokens.
        logits: [sequences, vocab], of the rows of the step that are a last chunk, in order.
        """
        current = [row for row in step.rows if row.is_last_chunk]
        row_of = {row.sequence: i for i, row in enumerate(current)}
        requests = list(dict.fromkeys(row.request for row in current))
        num_tokens = 0
        sampling: list[tuple[Request, Sequence, int]] = []  # and its row of the logits
        for request in requests:
            if request.beam_search is not None:
                rows = [row_of[beam] for beam in request.sequences]  # all: the scheduler holds none back
                num_tokens += advance_beams(request, request.beam_search, logits[rows], self.blocks)
                continue
            for sequence in [sequence for sequence in request.unfinished if sequence in row_of]:
                group = [sequence]
                if len(request.sequences) < request.params.n:
                    group = fan_out(request, self.blocks)
                sampling += [(request, member, row_of[sequence]) for member in group]
        return requests, num_tokens + self._sample(logits, sampling)

    def end_request(self, request: Request, reason: str) -> None:
        """End all of a request that goes on. The best outputs of a beam search stay, finished or live."""
        search = request.beam_search
        if search is not None and search.finished and request.unfinished:
            end_beams(request, search, reason, self.blocks)
        for sequence in request.unfinished:
            end(request, sequence, reason, self.blocks)

    def _sample(self, logits: torch.Tensor, sampling: list[tuple[Request, Sequence, int]]) -> int:
        """Draw a token for each sequence from its row of the logits. Returns how many were drawn."""
        if not sampling:
            return 0
        logit_rows = [logit_row for _, _, logit_row in sampling]
        if logit_rows != list(range(len(logits))):
            logits = logits[logit_rows]
        rows = [self._sampling_row(request, sequence) for request, sequence, _ in sampling]
        num_tokens = 0
        for (request, sequence, _), token in zip(sampling, tokens_or_errors(logits, rows), strict=True):
            if isinstance(token, Exception):
                fail(request, [sequence], token, self.blocks)
                continue
            num_tokens += 1
            self._append(request, sequence, token)
        return num_tokens

    def _append(self, request: Request, sequence: Sequence, token: SampledToken) -> None:
        """Add a sampled token to its sequence and decide whether it is the last."""
        sequence.token_ids.append(token.token_id)
        if request.first_token_time is None:
            request.first_token_time = time.monotonic()
        if token.top_logprobs is not None and token.logprob is not None:
            sequence.logprobs.append(token.top_logprobs)
            sequence.cumulative_logprob += token.logprob
        try:
            reason = self._finish_reason(request, sequence, token.token_id)
        except Exception as error:  # from the tokenizer
            fail(request, [sequence], error, self.blocks)
            return
        if reason is not None:
            end(request, sequence, reason, self.blocks)

    def _finish_reason(self, request: Request, sequence: Sequence, token_id: int) -> str | None:
        """Why this token ends the sequence, if it does. A stop token's text is never shown."""
        params = request.params
        past_minimum = sequence.num_output_tokens >= params.min_tokens
        is_eos = not params.ignore_eos and token_id in self.eos_token_ids
        if past_minimum and (is_eos or token_id in params.stop_token_ids):
            return "stop"
        sequence.detokenizer.add(token_id)
        if sequence.detokenizer.stopped is not None:
            return "stop"
        return "length" if sequence.num_output_tokens >= request.max_tokens else None

    def _sampling_row(self, request: Request, sequence: Sequence) -> SamplingRow:
        params = request.params
        eos_ids = () if params.ignore_eos else self.eos_token_ids
        return SamplingRow(
            params=params,
            seed=sequence.seed,
            position=sequence.num_tokens,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=sequence.output_token_ids,
            stop_token_ids=(*eos_ids, *params.stop_token_ids),
        )


def tokens_or_errors(logits: torch.Tensor, rows: list[SamplingRow]) -> list[SampledToken | Exception]:
    """A token for each row, or what `sample` raises for it.

    A draw depends on its row alone. So where a batch fails, its halves are tried, down to the rows at fault.
    """
    try:
        return list(sample(logits, rows))
    except FATAL_ERRORS:
        raise
    except Exception as error:
        if len(rows) == 1:
            return [error]
        half = len(rows) // 2
        return tokens_or_errors(logits[:half], rows[:half]) + tokens_or_errors(logits[half:], rows[half:])


def fan_out(request: Request, blocks: BlockManager) -> list[Sequence]:
    """Fork a request whose prompt is computed into its n samples, and return them.

    They have the same prompt in the same blocks, and each a random stream of its own.
    """
    (first,) = request.sequences
    for i in range(1, request.params.n):  # one by one: should a fork fail, the request still knows the others
        table = blocks.fork(first)
        request.sequences.append(first.fork(i, first.seed + i, table, request.new_detokenizer()))
    return request.sequences
