"""A step's attention on a CPU, with little Python in each layer. `PagedStep` does the same for any backend.

A model of 30 layers attends 30 times per step. All layers share the block tables, the lengths and the slots.
So these are checked and made into arrays once, and a layer only calls compiled code: write, attend.
"""

from __future__ import annotations

import torch

from ..kernels._checks import check_slots
from ..kernels._cpu_arguments import as_rows, write
from ..kernels.attention_cpu import attend
from .backends import Options
from .batch import Batch
from .kv_cache import KVCache


class CPUStep:
    """Does the work of `PagedStep` with the compiled kernels of the CPU."""

    def __init__(self, batch: Batch, cache: KVCache) -> None:
        """Raises ValueError, as the kernels do, for slots, lengths or blocks that lead out of the pool."""
        # A sequence that decodes has one query, so one list of starts describes decodes and prefills.
        decodes = torch.arange(batch.num_decodes, dtype=torch.int32)
        starts = torch.cat((decodes, batch.prefill_starts + batch.num_decodes))
        num_blocks, block_size = cache.layers[0][0].shape[:2]
        rows = starts, batch.block_tables, batch.context_lengths
        self._rows = as_rows(rows, (num_blocks, block_size))
        self._slots = batch.slots.numpy()
        check_slots(self._slots, num_blocks * block_size)
        self._layers = cache.flat_layers

    def attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: Options,
    ) -> torch.Tensor:
        """See `PagedStep.attend`."""
        key_cache, value_cache = self._layers[layer]
        write(key_cache, keys, self._slots)
        write(value_cache, values, self._slots)
        return attend(queries, key_cache, value_cache, self._rows, options)
