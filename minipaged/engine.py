"""The loop that serves requests: take in, schedule, run, sample, hand out.

Data moves one way: request -> scheduler -> block manager -> batch -> model -> sampler -> request. Requests
and aborts enter through one inbox that `step` empties, so another thread may submit them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from queue import Empty, SimpleQueue

import torch

from .block_manager import BlockManager
from .config import EngineConfig
from .errors import EngineDeadError, InvalidConfigError, InvalidRequestError
from .intake import Intake
from .model_runner import ModelRunner
from .models.loading import LoadedModel
from .outputs import CacheStats, CompletionOutput, RequestOutput
from .reference.allocator import BlockAllocator
from .reference.block_table import BlockTable
from .reference.prefix_cache import PrefixCache
from .request import Request
from .sampler import InvalidLogitsError, SampledToken, SamplingRow, sample
from .sampling_params import SamplingParams
from .scheduler import Schedule, Scheduler
from .usage import Usage


class LLMEngine:
    """Serves requests on one model, step by step. `LLM` is the same with a friendlier face."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        allocator_class: type[BlockAllocator] = BlockAllocator,
        block_table_class: type[BlockTable] = BlockTable,
        prefix_cache_class: type[PrefixCache] = PrefixCache,
    ) -> None:
        self.loaded = loaded
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.max_model_len = _max_model_len(config, loaded)
        self.runner = ModelRunner(loaded, config, self.max_model_len)
        self.blocks = BlockManager(
            self.runner.num_blocks,
            config.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            allocator_class=allocator_class,
            block_table_class=block_table_class,
            prefix_cache_class=prefix_cache_class,
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self._intake = Intake(loaded, config, self.blocks, self.max_model_len)
        self.usage = Usage()
        self.observers: list[Callable[[Schedule], None]] = []  # called with every step, before it runs
        self._requests: dict[str, Request] = {}
        self._inbox: SimpleQueue[tuple[str, Request]] = SimpleQueue()
        self._dead = False

    # ------------------------------------------------------------------ requests in

    def add_request(self, request_id: str, prompt: str | SequenceOf[int], params: SamplingParams) -> None:
        """Queue a request: a text, or the token ids of one. May be called from any thread.

        Raises InvalidRequestError, with nothing queued, for what can never be served.
        """
        if request_id in self._requests:
            raise InvalidRequestError(f"request_id {request_id!r} is in use by an unfinished request")
        request = self._intake.make_request(request_id, prompt, params)
        self._requests[request_id] = request
        self._inbox.put(("add", request))

    def abort_request(self, request_id: str) -> None:
        """Stop a request, in whatever state it is. Unknown and finished ones are ignored. Any thread."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._inbox.put(("abort", request))

    def has_unfinished_requests(self) -> bool:
        """True while there is something to step for."""
        return not self._inbox.empty() or bool(self.scheduler.waiting or self.scheduler.running)

    # ------------------------------------------------------------------ the loop

    def step(self) -> list[RequestOutput]:
        """Compute one token for every running sequence, or a chunk of a prompt, and return what changed.

        Where the forward fails, the requests of this step end with "error", their blocks come back, and
        the exception goes to the caller; later steps serve the others.
        """
        if self._dead:
            raise EngineDeadError("an earlier step left this engine in an unknown state: make a new one")
        changed = self.empty_inbox()
        changed += self._expire()
        step = self.scheduler.schedule()
        changed += [self._finish(request, "capacity") for request in step.outgrown]
        if not step.rows:
            return changed
        self.usage.record(step, self.scheduler.running, self.blocks, self.max_model_len)
        for observe in self.observers:
            observe(step)
        try:
            logits = self.runner.execute(step)
        except BaseException:
            for row in step.rows:
                self._finish(row.request, "error")
            raise
        return changed + self._advance(step, logits)

    def check(self) -> None:
        """Prove that no block is lost, named wrongly or free while in use; RuntimeError otherwise."""
        self.blocks.check([request.sequence for request in self.scheduler.requests()])

    def stats(self) -> CacheStats:
        """The pool now, and totals since the start."""
        return self.usage.stats(self.scheduler, self.blocks, self.runner.shape.bytes_per_token)

    # ------------------------------------------------------------------ parts of a step

    def empty_inbox(self) -> list[RequestOutput]:
        """Let new requests wait in line, and end those that were aborted; every step begins with it."""
        ended: list[RequestOutput] = []
        while True:
            try:
                what, request = self._inbox.get_nowait()
            except Empty:
                return ended
            if what == "add":
                self.scheduler.waiting.append(request)
            elif request.sequence.finish_reason is None:
                ended.append(self._finish(request, "abort"))

    def _expire(self) -> list[RequestOutput]:
        """End the requests whose time is up."""
        late = [
            r for r in self.scheduler.requests() if r.deadline is not None and time.monotonic() > r.deadline
        ]
        return [self._finish(request, "abort") for request in late]

    def _advance(self, step: Schedule, logits: torch.Tensor) -> list[RequestOutput]:
        """Note what the forward has written, sample, and end what is done."""
        for row in step.rows:
            self.blocks.publish(row.request.sequence, row.stop)
        requests = [row.request for row in step.rows if row.is_last_chunk]
        rows = [self._sampling_row(request) for request in requests]
        try:
            sampled = sample(logits, rows)
        except InvalidLogitsError as error:
            return self._sample_the_rest(logits, rows, requests, error.rows)
        return [self._append(request, token) for request, token in zip(requests, sampled, strict=True)]

    def _sample_the_rest(
        self,
        logits: torch.Tensor,
        rows: list[SamplingRow],
        requests: list[Request],
        invalid: tuple[int, ...],
    ) -> list[RequestOutput]:
        """End the requests whose logits are NaN or infinite, and go on with the others."""
        fine = [i for i in range(len(rows)) if i not in invalid]
        sampled = sample(logits[fine], [rows[i] for i in fine])
        ended = [self._finish(requests[i], "error") for i in invalid]
        return ended + [self._append(requests[i], token) for i, token in zip(fine, sampled, strict=True)]

    def _append(self, request: Request, token: SampledToken) -> RequestOutput:
        """Add a sampled token to its sequence and decide whether it is the last."""
        sequence = request.sequence
        sequence.token_ids.append(token.token_id)
        self.usage.num_generated_tokens += 1
        if request.first_token_time is None:
            request.first_token_time = time.monotonic()
        if token.top_logprobs is not None and token.logprob is not None:
            sequence.logprobs.append(token.top_logprobs)
            sequence.cumulative_logprob += token.logprob
        reason = self._finish_reason(request, token.token_id)
        return self._finish(request, reason) if reason else _output(request)

    def _finish_reason(self, request: Request, token_id: int) -> str | None:
        """Why this token ends the request, if it does. A stop token's text is never shown."""
        params = request.params
        past_minimum = request.sequence.num_output_tokens >= params.min_tokens
        is_eos = not params.ignore_eos and token_id in self.loaded.eos_token_ids
        if past_minimum and (is_eos or token_id in params.stop_token_ids):
            return "stop"
        request.detokenizer.add(token_id)
        if request.detokenizer.stopped is not None:
            return "stop"
        return "length" if request.sequence.num_output_tokens >= request.max_tokens else None

    def _finish(self, request: Request, reason: str) -> RequestOutput:
        """End a request: blocks back to the pool, held-back text out, its id free to use again."""
        request.sequence.finish_reason = reason
        self.scheduler.finish(request)
        if self._requests.get(request.request_id) is request:
            del self._requests[request.request_id]
        request.detokenizer.flush()
        return _output(request)

    def _sampling_row(self, request: Request) -> SamplingRow:
        sequence, params = request.sequence, request.params
        eos_ids = () if params.ignore_eos else self.loaded.eos_token_ids
        return SamplingRow(
            params=params,
            seed=sequence.seed,
            position=sequence.num_tokens,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=sequence.output_token_ids,
            stop_token_ids=(*eos_ids, *params.stop_token_ids),
        )


def _max_model_len(config: EngineConfig, loaded: LoadedModel) -> int:
    if config.max_model_len is None:
        return loaded.max_model_len
    if config.max_model_len > loaded.max_model_len:
        raise InvalidConfigError(
            f"max_model_len={config.max_model_len} is beyond the model's own limit of {loaded.max_model_len}"
        )
    return config.max_model_len


def _output(request: Request) -> RequestOutput:
    """What a caller sees of a request now."""
    sequence = request.sequence
    wants_logprobs = request.params.logprobs is not None
    completion = CompletionOutput(
        index=sequence.index,
        text=request.detokenizer.text,
        token_ids=sequence.output_token_ids,
        finish_reason=sequence.finish_reason,
        logprobs=list(sequence.logprobs) if wants_logprobs else None,
        cumulative_logprob=sequence.cumulative_logprob if wants_logprobs else None,
    )
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        num_cached_tokens=request.num_cached_tokens or 0,
        finished=sequence.finish_reason is not None,
        outputs=[completion],
    )
