"""End sequences: give back their blocks, and finish their text.

Page: docs/concepts/parallel_sampling.md.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import torch

from .block_manager import BlockManager
from .request import Request, Sequence

FATAL_ERRORS = getattr(torch, "AcceleratorError", ())  # after one the device computes nothing more


def end(request: Request, sequence: Sequence, reason: str, blocks: BlockManager) -> None:
    """End one sequence of a group. Its blocks go back, except those that another sequence uses."""
    sequence.finish_reason = reason
    blocks.free(sequence)
    try:
        if sequence.score is not None:  # a beam's text is written out only now
            for token_id in sequence.output_token_ids[: -1 if reason == "stop" else None]:
                sequence.detokenizer.add(token_id)
        sequence.detokenizer.flush()
    except Exception as error:  # from the tokenizer
        sequence.finish_reason, request.error = "error", describe(error)


def fail(request: Request, sequences: SequenceOf[Sequence], error: Exception, blocks: BlockManager) -> None:
    """End these sequences with an error that concerns only them. The step goes on."""
    request.error = describe(error)
    for sequence in sequences:
        end(request, sequence, "error", blocks)


def describe(error: BaseException) -> str:
    """The message that a caller gets for an exception that ended a request."""
    return f"{type(error).__name__}: {error}"
