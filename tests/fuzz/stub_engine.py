"""An engine whose model is a stub: its next token depends on each value that the pool holds for a sequence.

A wrong block, a lost copy or a slot that was not computed gives other tokens, so equal tokens mean that the
pool was right. All else is the real engine.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from minipaged import BeamSearchParams, SamplingParams
from minipaged.config import EngineConfig
from minipaged.engine.schedule import Move, Schedule

VOCAB = 64
# Served together, they share prefixes, fork, copy, search, are preempted and swapped out.
REQUESTS: dict[str, tuple[list[int], SamplingParams | BeamSearchParams]] = {
    "greedy": ([5, 6, 7, 8, 9], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)),
    "samples": ([5, 6, 7, 8, 9, 10], SamplingParams(n=3, seed=1, max_tokens=7, ignore_eos=True)),
    "beams": ([9, 8, 7], BeamSearchParams(beam_width=2, max_tokens=8, ignore_eos=True)),
    "late": ([*range(5, 22)], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)),
}
WAYS = {"copy": ("device", "device"), "out": ("device", "host"), "in": ("host", "device")}


def next_value(before: int, token_id: int) -> int:
    """What stands in for the K and V of a token: it depends on the token and on all tokens before it."""
    return (before * 1_000_003 + token_id + 17) % (2**61 - 1)


def logits_of(value: int) -> torch.Tensor:
    """The logits [VOCAB] of a sequence whose last token has this value."""
    return torch.rand(VOCAB, generator=torch.Generator().manual_seed(value), dtype=torch.float64) * 8


def greedy_tokens(prompt: list[int], max_tokens: int) -> list[int]:
    """The tokens that the stub's greedy answer must have, worked out without any engine."""
    value, output = 0, list[int]()
    for token_id in prompt:
        value = next_value(value, token_id)
    while len(output) < max_tokens:
        output.append(int(logits_of(value).argmax()))
        value = next_value(value, output[-1])
    return output


class StubRunner:
    """Stands in for ModelRunner: pools of plain values, which a forward reads through block tables."""

    def __init__(self, loaded: Any, config: EngineConfig, max_model_len: int) -> None:
        assert config.num_blocks is not None
        self.num_blocks = config.num_blocks
        self.num_host_blocks = 12 if config.preemption_mode == "swap" else 0
        self.block_size = config.block_size
        self.shape = SimpleNamespace(bytes_per_token=1)
        self.pools: dict[str, dict[int, list[int]]] = {"device": {}, "host": {}}

    def move(self, moves: list[Move]) -> None:
        for move in moves:
            here, there = WAYS[move.kind]
            self.pools[there][move.destination] = list(self.pools[here].get(move.source, []))

    def execute(self, step: Schedule) -> torch.Tensor:
        self.move(step.moves)
        for row in step.rows:
            for position in range(row.start, row.stop):
                before = self._slot(row.sequence.table.blocks, position - 1) if position else 0
                self._write(row.sequence.table.blocks, position, row.sequence.token_ids[position], before)
        last = [row for row in step.rows if row.is_last_chunk]
        values = [self._slot(row.sequence.table.blocks, row.stop - 1) for row in last]
        return torch.stack([logits_of(value) for value in values]) if values else torch.empty(0, VOCAB)

    def _slot(self, blocks: list[int], position: int) -> int:
        return self._block(blocks, position)[position % self.block_size]

    def _write(self, blocks: list[int], position: int, token_id: int, before: int) -> None:
        self._block(blocks, position)[position % self.block_size] = next_value(before, token_id)

    def _block(self, blocks: list[int], position: int) -> list[int]:
        return self.pools["device"].setdefault(blocks[position // self.block_size], [-1] * self.block_size)
