"""From logits to the next tokens of a step's requests: sample, fork a prompt into n, or search with beams.

Sequences of a request fork here, and here they end. The block manager counts the blocks that they share.
Page: docs/concepts/parallel_sampling.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf

import torch

from .beam_search import BeamSearch, Hypothesis
from .block_manager import BlockManager
from .request import Request, Sequence
from .sampler import SampledToken, SamplingRow, sample
from .scheduler import Schedule

FATAL_ERRORS = getattr(torch, "AcceleratorError", ())  # after one the device computes nothing more


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
                num_tokens += self._search(request, request.beam_search, logits[rows])
                continue
            for sequence in [sequence for sequence in request.unfinished if sequence in row_of]:
                group = [sequence]
                if len(request.sequences) < request.params.n:
                    group = fan_out(request, self.blocks)
                sampling += [(request, member, row_of[sequence]) for member in group]
        return requests, num_tokens + self._sample(logits, sampling)

    def end(self, request: Request, sequence: Sequence, reason: str) -> None:
        """End one sequence of a group: its blocks go back, as far as no other uses them."""
        sequence.finish_reason = reason
        self.blocks.free(sequence)
        try:
            if sequence.score is not None:  # a beam's text is written out only now
                for token_id in sequence.output_token_ids[: -1 if reason == "stop" else None]:
                    sequence.detokenizer.add(token_id)
            sequence.detokenizer.flush()
        except Exception as error:  # from the tokenizer
            sequence.finish_reason, request.error = "error", describe(error)

    def end_request(self, request: Request, reason: str) -> None:
        """End all of a request that goes on. Of a beam search the best outputs stay, finished or live."""
        search = request.beam_search
        if search is None or not search.finished or not request.unfinished:
            for sequence in request.unfinished:
                self.end(request, sequence, reason)
            return
        live = [Hypothesis(beam.output_token_ids, beam.score or 0.0, reason) for beam in request.sequences]
        best = sorted([*search.finished, *live], key=lambda found: -found.score)
        self._keep(request, best[: request.num_sequences])

    def _sample(self, logits: torch.Tensor, sampling: list[tuple[Request, Sequence, int]]) -> int:
        """Draw a token for each sequence from its row of the logits. Returns how many were drawn."""
        if not sampling:
            return 0
        wanted = [place for _, _, place in sampling]
        if wanted != list(range(len(logits))):
            logits = logits[wanted]
        rows = [self._sampling_row(request, sequence) for request, sequence, _ in sampling]
        num_tokens = 0
        for (request, sequence, _), token in zip(sampling, sample_each(logits, rows), strict=True):
            if isinstance(token, Exception):
                self._fail(request, [sequence], token)
                continue
            num_tokens += 1
            self._append(request, sequence, token)
        return num_tokens

    def _fail(self, request: Request, sequences: list[Sequence], error: Exception) -> None:
        """End these sequences with an error that concerns only them. The step goes on."""
        request.error = describe(error)
        for sequence in sequences:
            self.end(request, sequence, "error")

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
            self._fail(request, [sequence], error)
            return
        if reason is not None:
            self.end(request, sequence, reason)

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

    def _search(self, request: Request, search: BeamSearch, logits: torch.Tensor) -> int:
        """One step of a beam search: choose the beams that go on, and let their tables follow.

        Returns how many tokens were chosen.
        """
        beams = request.sequences
        try:
            chosen = search.advance(logits, [beam.output_token_ids for beam in beams])
        except FATAL_ERRORS:
            raise
        except Exception as error:
            self._fail(request, beams, error)
            return 0
        if request.first_token_time is None:
            request.first_token_time = time.monotonic()
        if search.is_done:
            self._keep(request, search.finished)
            return len(beams)
        follow(request, [each.parent for each in chosen], self.blocks)
        for beam, each, total in zip(request.sequences, chosen, search.scores, strict=True):
            beam.token_ids.append(each.token_id)
            beam.score = total / beam.num_output_tokens**search.params.length_penalty
        return len(chosen)

    def _keep(self, request: Request, outputs: SequenceOf[Hypothesis]) -> None:
        """The end of a beam search: its best outputs take the place of the live beams."""
        parent = request.sequences[0]
        ended = []
        for index, found in enumerate(outputs):
            sequence = parent.fork(index, parent.seed, self.blocks.new_table(), request.new_detokenizer())
            sequence.token_ids[parent.num_prompt_tokens :] = found.token_ids
            sequence.score = found.score
            self.end(request, sequence, found.finish_reason)
            ended.append(sequence)
        for beam in request.sequences:
            self.blocks.free(beam)
        request.sequences = ended

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


def describe(error: BaseException) -> str:
    """What a caller is told of an exception that ended a request."""
    return f"{type(error).__name__}: {error}"


def sample_each(logits: torch.Tensor, rows: list[SamplingRow]) -> list[SampledToken | Exception]:
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
        return sample_each(logits[:half], rows[:half]) + sample_each(logits[half:], rows[half:])


def fan_out(request: Request, blocks: BlockManager) -> list[Sequence]:
    """Fork a request whose prompt is computed into its n samples, and return them.

    They have the same prompt in the same blocks, and each a random stream of its own.
    """
    (first,) = request.sequences
    for i in range(1, request.params.n):  # one by one: should a fork fail, the request still knows the others
        table = blocks.fork(first)
        request.sequences.append(first.fork(i, first.seed + i, table, request.new_detokenizer()))
    return request.sequences


def follow(request: Request, parents: SequenceOf[int], blocks: BlockManager) -> None:
    """Replace a request's beams by continuations of `parents`, and let their tables follow.

    No beam's text is written out before its end, so any of the old beams' detokenizers will do for a new one.
    """
    beams = request.sequences
    tables = blocks.reorder(beams, parents)
    texts = [beam.detokenizer for beam in beams]
    texts += [request.new_detokenizer() for _ in parents[len(beams) :]]
    request.sequences = [
        beams[parent].fork(index, beams[0].seed, table, text)
        for index, (parent, table, text) in enumerate(zip(parents, tables, texts, strict=False))
    ]
