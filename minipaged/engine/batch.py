"""A step's schedule as plain integer tensors: all that the model's forward needs to know of paging.

The tokens of all rows stand in one flat line, decodes first. The tensors are allocated once, for the
largest step, and hold no Python state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..kernels.block_table import slot_mapping
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


class BatchBuilder:
    """Turns rows into a `Batch`, reusing the same memory for every step."""

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
        pinned = device.type == "cuda"
        self._tokens = torch.zeros((3, max_num_tokens), dtype=torch.int64, pin_memory=pinned)
        self._tables = torch.zeros((max_num_seqs, max_blocks), dtype=torch.int32, pin_memory=pinned)
        self._lengths = torch.zeros((2, max_num_seqs + 1), dtype=torch.int32, pin_memory=pinned)

    def build(self, rows: Sequence[Row]) -> Batch:
        """Lay out `rows`; those of one token come first."""
        input_ids, positions, owners = self._tokens.numpy()
        lengths, starts = self._lengths.numpy()
        tables = self._tables.numpy()
        num_decodes = sum(row.stop - row.start == 1 for row in rows)
        end = 0
        logit_indices = []
        for i, row in enumerate(rows):
            sequence = row.sequence
            begin, end = end, end + row.stop - row.start
            input_ids[begin:end] = sequence.token_ids[row.start : row.stop]
            positions[begin:end] = np.arange(row.start, row.stop)
            owners[begin:end] = i
            tables[i, : len(sequence.table.blocks)] = sequence.table.blocks
            lengths[i] = row.stop
            starts[i + 1] = end
            if row.is_last_chunk:
                logit_indices.append(end - 1)
        tokens = self._to_device(self._tokens[:, :end])
        block_tables = self._to_device(self._tables[: len(rows)])
        return Batch(
            input_ids=tokens[0],
            positions=tokens[1],
            slots=slot_mapping(block_tables, tokens[1], tokens[2], self.block_size),
            block_tables=block_tables,
            context_lengths=self._to_device(self._lengths[0, : len(rows)]),
            prefill_starts=self._to_device(self._lengths[1, num_decodes : len(rows) + 1] - num_decodes),
            num_decodes=num_decodes,
            max_query_length=max(row.stop - row.start for row in rows),
            logit_indices=torch.tensor(logit_indices, dtype=torch.int64, device=self.device),
        )

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)
