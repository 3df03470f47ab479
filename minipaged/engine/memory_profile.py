"""How much memory a GPU has left for the pool: run the largest steps once, and see what they take.

Prefill, decode and the sampler each have a largest step. A decode step has few tokens, but kernels split its
contexts and keep partial results, which grow with the longest context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..config import EngineConfig
from ..reference.block_table import num_blocks_for
from ..sampling_params import SamplingParams
from .batch import Batch, power_of_two
from .sampler import SamplingRow, sample

if TYPE_CHECKING:
    from .model_runner import ModelRunner


def spare_gpu_memory(runner: ModelRunner, config: EngineConfig, max_model_len: int) -> int:
    """Return the bytes that are left for the pool beside the largest steps."""
    device = runner.device
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    # A context can't be longer than all memory is. A model's limit alone may be 10**12.
    longest = max(1, min(max_model_len, free // runner.shape.bytes_per_token))
    run_largest_steps(runner, config, longest)
    activations = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return int(total * config.gpu_memory_utilization) - (total - free) - activations


def run_largest_steps(runner: ModelRunner, config: EngineConfig, longest: int) -> None:
    """Run the largest prefill, decode and draw. longest: tokens of the longest context."""
    num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    for batch, num_blocks in (
        _prefill(runner.device, config, longest),
        _decode(runner.device, num_seqs, config.block_size, longest),
    ):
        runner.run_apart(batch, num_blocks)
    logits = torch.zeros(num_seqs, runner.vocab_size, dtype=runner.shape.dtype, device=runner.device)
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.9, min_p=0.1, presence_penalty=1.0, logprobs=1)
    sample(logits, [SamplingRow(params, 0, 1, [0], [0])] * num_seqs)


def _prefill(device: torch.device, config: EngineConfig, longest: int) -> tuple[Batch, int]:
    """One prompt that fills the step, and the blocks that it needs."""
    num_tokens = config.max_num_batched_tokens
    num_blocks = num_blocks_for(num_tokens, config.block_size)
    positions = torch.arange(num_tokens, device=device)
    batch = Batch(
        input_ids=torch.zeros_like(positions),
        positions=positions % longest,
        slots=positions,
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=device).unsqueeze(0),
        context_lengths=torch.tensor([num_tokens], dtype=torch.int32, device=device),
        prefill_starts=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        num_decodes=0,
        max_query_length=num_tokens,
        logit_indices=positions[-config.max_num_seqs :],
    )
    return batch, num_blocks


def _decode(device: torch.device, num_seqs: int, block_size: int, longest: int) -> tuple[Batch, int]:
    """A first token per sequence, in tables as wide as a step's can be, and the blocks that it needs."""
    rows = torch.arange(num_seqs, device=device)
    width = power_of_two(num_blocks_for(longest, block_size))
    tables = torch.zeros(num_seqs, width, dtype=torch.int32, device=device)
    tables[:, 0] = rows
    batch = Batch(
        input_ids=torch.zeros_like(rows),
        positions=torch.zeros_like(rows),
        slots=rows * block_size,
        block_tables=tables,
        context_lengths=torch.ones(num_seqs, dtype=torch.int32, device=device),
        prefill_starts=torch.zeros(1, dtype=torch.int32, device=device),
        num_decodes=num_seqs,
        max_query_length=1,
        logit_indices=rows,
    )
    return batch, num_seqs
