"""Many sequences in one llama.cpp context, through the low-level interface of llama-cpp-python.

worker.py loads this file in llama.cpp's own environment, which has no minipaged in it. Every call of `decode`
takes the next token of each running sequence and, while the batch has room, the prompts of waiting ones.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import llama_cpp
import numpy as np

BATCH_TOKENS = 2048  # of one call of `decode`, which llama.cpp cuts into pieces of 512
MOST_SEQUENCES = 32
ROUNDED_TO = 512  # tokens of a sequence: a load and its warm-up get the same context
SHORTEST_SHARED = 256  # tokens that all prompts begin with, from which they are computed once
F32 = 0  # ggml's number of the type


@dataclass
class _Sequence:
    """A request that is running: what the model has not seen of it, and what came out."""

    index: int  # of the request
    pending: list[int]
    position: int  # of the first pending token
    length: int
    tokens: list[int] = field(default_factory=list)


class Engine:
    """A model in float32, with K and V in float32 too. One context is kept, and replaced for another size."""

    def __init__(self, gguf: str) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            gguf.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, MOST_SEQUENCES)
        self._size: tuple[int, int, bool] | None = None
        self._context: Any = None
        self._memory: Any = None

    def generate(self, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        """Greedy tokens of exact lengths."""
        shared = common_prefix(prompts)
        longest = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
        slots = min(len(prompts), MOST_SEQUENCES)
        self._prepare(slots, -(-longest // ROUNDED_TO) * ROUNDED_TO, shared > 0)
        if shared:
            self._compute_shared(prompts[0][:shared], slots)
        waiting = [
            _Sequence(i, prompt[shared:], shared, length)
            for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        ]
        results: list[list[int]] = [[] for _ in prompts]
        running: dict[int, _Sequence] = {}
        while waiting or running:
            for slot in range(slots):
                if slot not in running and waiting:
                    running[slot] = waiting.pop(0)
            self._step(running)
            for slot, sequence in list(running.items()):
                if len(sequence.tokens) == sequence.length:
                    results[sequence.index] = sequence.tokens
                    llama_cpp.llama_memory_seq_rm(self._memory, slot, shared, -1)
                    del running[slot]
        return results

    def _prepare(self, slots: int, tokens: int, unified: bool) -> None:
        """An empty context. Sequences that share a prefix share one cache, others have a part of it each."""
        size = (slots, tokens, unified)
        if size == self._size:
            llama_cpp.llama_memory_clear(self._memory, False)
            return
        if self._context:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = slots * tokens, slots, unified
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        params.type_k = params.type_v = F32
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp has no memory for {slots} sequences of {tokens} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._size = size

    def _compute_shared(self, tokens: list[int], slots: int) -> None:
        """Compute what all prompts begin with once, and let all sequences have it."""
        sequence = _Sequence(-1, tokens, 0, 0)
        while sequence.pending:
            self._step({0: sequence})
        for slot in range(1, slots):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, slot, -1, -1)

    def _step(self, running: dict[int, _Sequence]) -> None:
        """Compute pending tokens, as many as a batch holds; a sequence with none left gets its next one."""
        count = 0
        last_rows: dict[int, int] = {}
        for slot, sequence in sorted(running.items(), key=lambda item: len(item[1].pending)):
            taken = sequence.pending[: BATCH_TOKENS - count]
            for i, token in enumerate(taken):
                self._put(count + i, token, sequence.position + i, slot)
            count += len(taken)
            del sequence.pending[: len(taken)]
            sequence.position += len(taken)
            if taken and not sequence.pending and len(sequence.tokens) < sequence.length:
                last_rows[slot] = count - 1
                self._batch.logits[count - 1] = True
        self._batch.n_tokens = count
        if code := llama_cpp.llama_decode(self._context, self._batch):
            raise RuntimeError(f"llama_decode returned {code}")
        for slot, row in last_rows.items():
            logits = llama_cpp.llama_get_logits_ith(self._context, row)
            values = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._vocab_size)).contents
            token = int(np.frombuffer(values, np.float32).argmax())
            running[slot].tokens.append(token)
            running[slot].pending = [token]

    def _put(self, row: int, token: int, position: int, slot: int) -> None:
        batch = self._batch
        batch.token[row], batch.pos[row] = token, position
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, slot
        batch.logits[row] = False


def common_prefix(prompts: list[list[int]]) -> int:
    """How many tokens all prompts begin with, short of a whole prompt; 0 where they are few."""
    if len(prompts) == 1:
        return 0
    columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
    length = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return length if length >= SHORTEST_SHARED else 0
