"""Run the model on one step's batch: tokens in, logits out, K and V through the pool.

The model is Hugging Face's own. Everything that paging needs travels beside its arguments as one
`PagedStep`, which `model_hook` picks up in every attention layer.
"""

from __future__ import annotations

from typing import Any

import torch

from ..config import LARGEST, EngineConfig, parse_bytes
from ..errors import InvalidConfigError
from ..kernels.copy_on_write import copy_blocks
from ..kernels.swap import swap_blocks
from ..models.loading import LoadedModel
from ..reference.block_table import num_blocks_for
from ..reference.copy_on_write import independent_copies
from ..reference.kv_cache_size import blocks_that_fit
from ..sampling_params import shown
from . import huge_pages
from .backends import get_backend
from .batch import Batch, BatchBuilder
from .kv_cache import KVCache, KVShape, allocating
from .model_hook import PagedStep
from .scheduler import Move, Schedule

DEFAULT_CPU_POOL = 1 << 30  # bytes
_WAYS = {"copy": ("device", "device"), "out": ("device", "host"), "in": ("host", "device")}


class ModelRunner:
    """The model, its pool, and the tensors of a step."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, max_model_len: int) -> None:
        self.model = loaded.model
        self.device = torch.device(loaded.model.device)
        if self.device.type == "cpu":
            huge_pages.move_weights(self.model)
        self.backend = get_backend(config.attention_backend, self.device, loaded.model.dtype)
        self.vocab_size = loaded.vocab_size
        self.shape = KVShape(loaded.num_layers, loaded.num_kv_heads, loaded.head_dim, loaded.model.dtype)
        self.block_size = config.block_size
        self._max_model_len = max_model_len
        max_blocks = num_blocks_for(max_model_len, config.block_size)
        self.num_blocks = config.num_blocks or self._affordable_blocks(
            config, config.max_num_seqs * max_blocks
        )
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
        self.num_host_blocks = self._host_blocks(config)
        self.cache = KVCache(
            self.num_blocks, config.block_size, self.shape, self.device, self.num_host_blocks
        )

    def execute(self, step: Schedule) -> torch.Tensor:
        """Copy blocks, run the forward, and return the logits [rows, vocab] of rows that sample."""
        self.move(step.moves)
        return self._forward(self._builder.build(step.rows), self.cache)

    def move(self, moves: list[Move]) -> None:
        """Carry out copies and swaps in order, as many at once as don't depend on each other."""
        pools: dict[str, Any] = {"device": self.cache.pool, "host": self.cache.host_pool}
        places = [((_WAYS[m.kind][0], m.source), (_WAYS[m.kind][1], m.destination)) for m in moves]
        for launch in independent_copies(places):
            for way in dict.fromkeys(_WAYS.values()):
                pairs = [(a, b) for (here, a), (there, b) in launch if (here, there) == way]
                if not pairs:
                    continue
                sources, destinations = map(list, zip(*pairs, strict=True))
                if way == ("device", "device"):
                    copy_blocks(self.cache.pool, sources, destinations)
                else:
                    swap_blocks(pools[way[0]], pools[way[1]], sources, destinations)

    @torch.inference_mode()
    def _forward(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        output = self.model(
            input_ids=batch.input_ids.unsqueeze(0),
            position_ids=batch.positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=batch.logit_indices,
            paged=PagedStep(batch, cache, self.backend),
        )
        # A token without an embedding could never be continued, so its logits don't count.
        return output.logits[0, :, : self.vocab_size]

    def _host_blocks(self, config: EngineConfig) -> int:
        """How many blocks `swap_space` holds."""
        return self._blocks_in("swap_space", config.swap_space) if config.preemption_mode == "swap" else 0

    def _blocks_in(self, name: str, size: int | str) -> int:
        """How many blocks a setting's bytes hold. Raises InvalidConfigError where it isn't one."""
        num_blocks = blocks_that_fit(parse_bytes(name, size), self.block_size, self.shape.bytes_per_token)
        if num_blocks == 0:
            raise InvalidConfigError(
                f"{name}={shown(size)} does not hold one block: a block of {self.block_size} tokens of this "
                f"model takes {self.block_size * self.shape.bytes_per_token} bytes"
            )
        if num_blocks > LARGEST:
            raise InvalidConfigError(
                f"{name}={shown(size)} holds {shown(num_blocks)} blocks, at most {LARGEST} can be used"
            )
        return num_blocks

    def _affordable_blocks(self, config: EngineConfig, most_useful: int) -> int:
        """How many blocks the memory allows, and no more than a full house could ever fill."""
        if config.kv_cache_memory is not None:
            return self._blocks_in("kv_cache_memory", config.kv_cache_memory)
        memory = self._spare_gpu_memory(config) if self.device.type == "cuda" else DEFAULT_CPU_POOL
        num_blocks = blocks_that_fit(memory, self.block_size, self.shape.bytes_per_token)
        if num_blocks < 1:
            raise InvalidConfigError(
                f"no memory is left for a pool: gpu_memory_utilization={config.gpu_memory_utilization} "
                f"leaves {max(memory, 0)} bytes, a block takes "
                f"{self.block_size * self.shape.bytes_per_token} bytes"
            )
        return min(num_blocks, most_useful)

    def _spare_gpu_memory(self, config: EngineConfig) -> int:
        """What is left for the pool once the largest step has been tried."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.profile(config.max_num_batched_tokens, config.max_num_seqs)
        activations = torch.cuda.max_memory_allocated() - before
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return int(total * config.gpu_memory_utilization) - (total - free) - activations

    def profile(self, num_tokens: int, num_logits: int) -> torch.Tensor:
        """Run one prompt of `num_tokens` through a pool of its own, as the largest step would."""
        num_blocks = num_blocks_for(num_tokens, self.block_size)
        positions = torch.arange(num_tokens, device=self.device)
        batch = Batch(
            input_ids=torch.zeros_like(positions),
            positions=positions % self._max_model_len,
            slots=positions,
            block_tables=torch.arange(num_blocks, dtype=torch.int32, device=self.device).unsqueeze(0),
            context_lengths=torch.tensor([num_tokens], dtype=torch.int32, device=self.device),
            prefill_starts=torch.tensor([0, num_tokens], dtype=torch.int32, device=self.device),
            num_decodes=0,
            max_query_length=num_tokens,
            logit_indices=positions[-num_logits:],
        )
        return self._forward(batch, KVCache(num_blocks, self.block_size, self.shape, self.device))
