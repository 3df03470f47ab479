"""Let the sequences of a request be the beams of its search: advance, fork, prune and end them.

beam_scores.py chooses the beams, and the block manager reorders their block tables.
Page: docs/concepts/beam_search.md.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf

import torch

from .beam_scores import BeamSearch, Hypothesis
from .block_manager import BlockManager
from .endings import FATAL_ERRORS, end, fail
from .request import Request


def advance_beams(request: Request, search: BeamSearch, logits: torch.Tensor, blocks: BlockManager) -> int:
    """Choose the beams that go on, and let their tables follow. Returns how many tokens were chosen.

    logits: [beams, vocab].
    """
    beams = request.sequences
    try:
        chosen = search.advance(logits, [beam.output_token_ids for beam in beams])
    except FATAL_ERRORS:
        raise
    except Exception as error:
        fail(request, beams, error, blocks)
        return 0
    if request.first_token_time is None:
        request.first_token_time = time.monotonic()
    if search.is_done:
        _keep(request, search.finished, blocks)
        return len(beams)
    follow(request, [continuation.parent for continuation in chosen], blocks)
    for beam, continuation, total in zip(request.sequences, chosen, search.scores, strict=True):
        beam.token_ids.append(continuation.token_id)
        beam.score = total / beam.num_output_tokens**search.params.length_penalty
    return len(chosen)


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


def end_beams(request: Request, search: BeamSearch, reason: str, blocks: BlockManager) -> None:
    """End a search that has finished outputs. These compete with the live beams, which end with `reason`."""
    live = [Hypothesis(beam.output_token_ids, beam.score or 0.0, reason) for beam in request.sequences]
    best = sorted([*search.finished, *live], key=lambda hypothesis: -hypothesis.score)
    _keep(request, best[: request.num_sequences], blocks)


def _keep(request: Request, outputs: SequenceOf[Hypothesis], blocks: BlockManager) -> None:
    """The end of a beam search: its best outputs take the place of the live beams."""
    parent = request.sequences[0]
    ended = []
    for index, output in enumerate(outputs):
        sequence = parent.fork(index, parent.seed, blocks.new_table(), request.new_detokenizer())
        sequence.token_ids[parent.num_prompt_tokens :] = output.token_ids
        sequence.score = output.score
        end(request, sequence, output.finish_reason, blocks)
        ended.append(sequence)
    for beam in request.sequences:
        blocks.free(beam)
    request.sequences = ended
