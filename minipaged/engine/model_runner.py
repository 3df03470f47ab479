"""Run the model on one step's batch: tokens in, logits out, K and V through the pool.

The model is Hugging Face's own. Everything that paging needs travels beside its arguments as one
`PagedStep`, which `model_hook` picks up in every attention layer.
"""

from __future__ import annotations

from functools import partial

import torch

from ..config import EngineConfig
from ..kernels.copy_on_write import copy_blocks
from ..kernels.swap import swap_blocks
from ..models.loading import LoadedModel
from ..reference.block_table import num_blocks_for
from ..reference.copy_on_write import independent_copies
from .backends import get_backend
from .batch import Batch, BatchBuilder
from .kv_cache import KVCache, KVShape, allocating, num_host_blocks, num_pool_blocks
from .memory_profile import spare_gpu_memory
from .model_hook import new_step
from .schedule import Move, Schedule

Place = tuple[str, int]  # a pool, "device" or "host", and a block of it


class ModelRunner:
    """The model, its pool, and the tensors of a step."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, max_model_len: int) -> None:
        self.model = loaded.model
        self.device = torch.device(loaded.model.device)
        self.backend = get_backend(config.attention_backend, self.device, loaded.model.dtype)
        self.backend.warm_up(loaded.model.dtype)
        self.vocab_size = loaded.vocab_size
        self.shape = KVShape(loaded.num_layers, loaded.num_kv_heads, loaded.head_dim, loaded.model.dtype)
        self._config = config
        max_blocks = num_blocks_for(max_model_len, config.block_size)
        profile = partial(spare_gpu_memory, self, config, max_model_len)
        spare = profile if self.device.type == "cuda" else None
        self.num_blocks = num_pool_blocks(config, self.shape, config.max_num_seqs * max_blocks, spare)
        self.num_host_blocks = num_host_blocks(config, self.shape)
        with allocating(
            f"max_num_batched_tokens={config.max_num_batched_tokens} and max_num_seqs={config.max_num_seqs}: "
            "the tensors of a step"
        ):
            self._builder = BatchBuilder(
                max_num_tokens=config.max_num_batched_tokens,
                # Each sequence of a step has a token in it.
                max_num_seqs=min(config.max_num_seqs, config.max_num_batched_tokens),
                # A table names each block of the pool once at most. A model's limit alone may be 10**12.
                max_blocks=min(max_blocks, self.num_blocks),
                block_size=config.block_size,
                device=self.device,
            )
        self.cache = self._new_cache(self.num_blocks, self.num_host_blocks)

    def execute(self, step: Schedule) -> torch.Tensor:
        """Copy blocks, run the forward, and return the logits [rows, vocab] of rows that sample."""
        self.move(step.moves)
        return self._forward(self._builder.build(step.rows), self.cache)

    def run_apart(self, batch: Batch, num_blocks: int) -> torch.Tensor:
        """Run the forward through a pool of its own, to see what it takes."""
        return self._forward(batch, self._new_cache(num_blocks))

    def move(self, moves: list[Move]) -> None:
        """Carry out copies and swaps in order, as many at once as don't depend on each other."""
        device, host = self.cache.pool, self.cache.host_pool
        for launch in independent_copies([_source_and_destination(move) for move in moves]):
            if within := _pairs(launch, "device", "device"):
                copy_blocks(device, *within)
            if out := _pairs(launch, "device", "host"):
                swap_blocks(device, host, *out)
            if back := _pairs(launch, "host", "device"):
                swap_blocks(host, device, *back)

    @torch.inference_mode()
    def _forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        output = self.model(
            input_ids=batch.input_ids.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=batch.logit_indices,
            paged=new_step(batch, cache, self.backend),
        )
        # A token without an embedding could never be continued, so its logits don't count.
        return output.logits[0, :, : self.vocab_size]

    def _new_cache(self, num_blocks: int, num_host_blocks: int = 0) -> KVCache:
        return KVCache(num_blocks, self._config.block_size, self.shape, self.device, num_host_blocks)


def _source_and_destination(move: Move) -> tuple[Place, Place]:
    source_pool = "host" if move.kind == "in" else "device"
    destination_pool = "host" if move.kind == "out" else "device"
    return (source_pool, move.source), (destination_pool, move.destination)


def _pairs(
    launch: list[tuple[Place, Place]], source_pool: str, destination_pool: str
) -> tuple[list[int], list[int]] | None:
    """The source and destination blocks of those copies of a launch that go from one pool to the other."""
    pairs = [
        (source, destination)
        for (here, source), (there, destination) in launch
        if (here, there) == (source_pool, destination_pool)
    ]
    return ([source for source, _ in pairs], [destination for _, destination in pairs]) if pairs else None
