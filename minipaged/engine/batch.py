"""A step's schedule as plain integer tensors: all that the model's forward needs to know of paging.

The tokens of all rows stand in one flat line, decodes first. The host's tensors are allocated once, for the
largest step, and hold no Python state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..kernels.block_table import slot_mapping
from ..reference.block_table import num_blocks_for
from .schedule import Row


@dataclass(frozen=True)
class Batch:
    """One step. T tokens of S sequences, the first `num_decodes` of which have one token each."""

    input_ids: torch.Tensor  # int64 [T]
    positions: torch.Tensor  # int64 [T], of each token in its sequence
    slots: torch.Tensor  # int64 [T], where its K and V are written
    block_tables: torch.Tensor  # int32 [S, max_blocks]
    context_lengths: torch.Tensor  # int32 [S], including this step's tokens
    prefill_starts: torch.Tensor  # int32 [S - num_decodes + 1], counted from the first prefill token
    num_decodes: int
    max_query_length: int
    logit_indices: torch.Tensor  # int64, the tokens from whose logits a row samples
    decode_blocks: int | None = None  # columns of the tables that hold every decode's context; None for all

    @property
    def decode_tables(self) -> torch.Tensor:
        """The tables of the decodes. A grid follows their width: a power of two that holds the longest."""
        return self.block_tables[: self.num_decodes, : self.decode_blocks]


class StepBuffers:
    """Host memory for one step's tensors. On a GPU it is pinned, so that a copy needs no wait."""

    def __init__(self, max_num_tokens: int, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self.tokens = torch.zeros(3 * max_num_tokens, dtype=torch.int64, pin_memory=pinned)
        self.tables = torch.zeros((max_num_seqs, max_blocks), dtype=torch.int32, pin_memory=pinned)
        self.lengths = torch.zeros((2, max_num_seqs + 1), dtype=torch.int32, pin_memory=pinned)
        self.logit_indices = torch.zeros(max_num_seqs, dtype=torch.int64, pin_memory=pinned)
        self.copied = torch.cuda.Event() if pinned else None


class BatchBuilder:
    """Turns rows into a `Batch`, with two sets of buffers that take turns.

    A GPU may still read the buffers of a step when the host builds the next one. So there are two sets, and
    one is filled again only when the copies out of it are done.
    """

    def __init__(
        self,
        *,
        max_num_tokens: int,
        max_num_seqs: int,
        max_blocks: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.device = device
        self._sets = [StepBuffers(max_num_tokens, max_num_seqs, max_blocks, device) for _ in range(2)]

    def build(self, rows: Sequence[Row]) -> Batch:
        """Lay out `rows`, of which those with one token come first. A batch lasts until the next but one."""
        self._sets.reverse()  # the set that was filled longer ago
        buffers = self._sets[0]
        if buffers.copied is not None:
            buffers.copied.synchronize()
        num_decodes = sum(row.stop - row.start == 1 for row in rows)
        num_tokens = sum(row.stop - row.start for row in rows)
        tokens = buffers.tokens[: 3 * num_tokens].view(3, num_tokens)  # contiguous, so that one copy moves it
        num_logits = _fill(buffers, tokens, rows, num_decodes)
        tokens = self._to_device(tokens)
        block_tables = self._to_device(buffers.tables[: len(rows)])
        longest = max((row.stop for row in rows[:num_decodes]), default=0)
        batch = Batch(
            input_ids=tokens[0],
            positions=tokens[1],
            slots=slot_mapping(block_tables, tokens[1], tokens[2], self.block_size),
            block_tables=block_tables,
            context_lengths=self._to_device(buffers.lengths[0, : len(rows)]),
            prefill_starts=self._to_device(buffers.lengths[1, num_decodes : len(rows) + 1]),
            num_decodes=num_decodes,
            max_query_length=max(row.stop - row.start for row in rows),
            logit_indices=self._to_device(buffers.logit_indices[:num_logits]),
            decode_blocks=power_of_two(num_blocks_for(longest, self.block_size)),
        )
        if buffers.copied is not None:
            buffers.copied.record(torch.cuda.current_stream(self.device))
        return batch

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`. It keeps the number of buffer sizes small."""
    return 1 << max(0, number - 1).bit_length()


def _fill(buffers: StepBuffers, tokens: torch.Tensor, rows: Sequence[Row], num_decodes: int) -> int:
    """Write the rows into the buffers, their tokens into [3, T]. Return how many rows sample."""
    input_ids, positions, owners = tokens.numpy()
    lengths, starts = buffers.lengths.numpy()
    tables, logit_indices = buffers.tables.numpy(), buffers.logit_indices.numpy()
    end = num_logits = 0
    for i, row in enumerate(rows):
        sequence = row.sequence
        begin, end = end, end + row.stop - row.start
        input_ids[begin:end] = sequence.token_ids[row.start : row.stop]
        positions[begin:end] = np.arange(row.start, row.stop)
        owners[begin:end] = i
        tables[i, : len(sequence.table.blocks)] = sequence.table.blocks
        lengths[i] = row.stop
        starts[i + 1] = end - num_decodes
        if row.is_last_chunk:
            logit_indices[num_logits] = end - 1
            num_logits += 1
    return num_logits
