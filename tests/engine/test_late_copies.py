"""A GPU may read a pinned buffer long after the host has gone on: it still reads what that step wrote.

A stand-in for a CUDA stream runs here on the CPU. It does copies and forwards in order, and as late as CUDA
allows: when the host waits. The builder and the engine are the real ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minipaged import LLM, SamplingParams
from minipaged.engine import batch
from minipaged.engine.batch import Batch, BatchBuilder
from minipaged.engine.model_runner import ModelRunner


class LateStream:
    """Work in the order of its launches, none of it done before somebody waits."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], object]] = deque()
        self.num_launched = 0
        self.most_waiting = 0

    def launch(self, work: Callable[[], object]) -> None:
        self.work.append(work)
        self.num_launched += 1
        self.most_waiting = max(self.most_waiting, len(self.work))

    def finish(self, num_launched: int) -> None:
        while self.num_launched - len(self.work) < num_launched:
            self.work.popleft()()


class LateEvent:
    """A point in a stream, as `torch.cuda.Event`."""

    def __init__(self, stream: LateStream) -> None:
        self.stream, self.point = stream, 0

    def record(self, stream: object = None) -> None:
        self.point = self.stream.num_launched

    def synchronize(self) -> None:
        self.stream.finish(self.point)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> LateStream:
    """A stream that gets all copies, slot mappings and forwards of a step."""
    stream, forward, slot_mapping = LateStream(), ModelRunner._forward, batch.slot_mapping

    def copy(self: BatchBuilder, host: torch.Tensor) -> torch.Tensor:
        on_device = torch.full_like(host, 1)  # a token and a block that are there, until the copy is done
        stream.launch(lambda: on_device.copy_(host))
        return on_device

    def map_slots(tables: torch.Tensor, positions: torch.Tensor, *others: Any) -> torch.Tensor:
        slots = torch.zeros_like(positions)
        stream.launch(lambda: slots.copy_(slot_mapping(tables, positions, *others)))
        return slots

    def run(self: ModelRunner, built: Batch, cache: Any) -> torch.Tensor:
        logits = torch.empty(len(built.logit_indices), self.vocab_size, dtype=torch.float64)
        stream.launch(lambda: logits.copy_(forward(self, built, cache)))
        if len(logits):  # the sampler reads them: the host waits
            stream.finish(stream.num_launched)
        return logits

    monkeypatch.setattr(BatchBuilder, "_to_device", copy)
    monkeypatch.setattr(batch, "slot_mapping", map_slots)
    monkeypatch.setattr(ModelRunner, "_forward", run)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return stream


def start(folder: Path, stream: LateStream) -> LLM:
    """An engine on `stream`, one prompt at a time in chunks of eight tokens."""
    llm = LLM(
        str(folder), dtype="float64", device="cpu", num_blocks=60, max_num_seqs=1, max_num_batched_tokens=8
    )
    for buffers in llm.engine.runner._builder._sets:
        buffers.copied = LateEvent(stream)  # type: ignore[assignment]
    return llm


def generate(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=6)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]


def test_prompts_of_several_chunks(
    stream: LateStream,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    llm = start(tiny_model("llama"), stream)
    assert generate(llm, prompts) == hf_greedy("llama", prompts, 6)
    assert stream.most_waiting > 10  # the host was two steps ahead


def test_one_set_of_buffers_would_be_overwritten(
    stream: LateStream,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    """The stream of this test is late enough to tell."""
    llm = start(tiny_model("llama"), stream)
    builder = llm.engine.runner._builder
    builder._sets = builder._sets[:1]
    builder._sets[0].copied = None
    assert generate(llm, prompts) != hf_greedy("llama", prompts, 6)
