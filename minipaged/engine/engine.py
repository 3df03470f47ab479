"""The loop that serves requests: take in, schedule, run, sample, hand out.

Data moves one way: request -> scheduler -> block manager -> batch -> model -> sampler -> request. Any thread
may call any method. Requests and aborts enter through an inbox that `step` empties; all other calls wait for
the end of a step. So does Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from threading import RLock

from ..config import EngineConfig
from ..errors import EngineDeadError, InvalidConfigError, InvalidRequestError
from ..models.loading import LoadedModel
from ..outputs import CacheStats, RequestOutput
from ..sampling_params import BeamSearchParams, SamplingParams, shown
from .block_manager import BlockManager
from .decoding import Decoder
from .endings import FATAL_ERRORS, describe
from .inbox import Inbox, interrupts_wait
from .intake import Intake
from .model_runner import ModelRunner
from .parts import REFERENCE, Parts
from .policies import Policy
from .request import Request
from .schedule import Schedule
from .scheduler import Scheduler
from .usage import Usage


class LLMEngine:
    """Serves requests on one model, step by step. `LLM` is the same with a friendlier face."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        *,
        parts: Parts = REFERENCE,
        block_manager_class: type[BlockManager] = BlockManager,
        policy: Policy | None = None,
    ) -> None:
        if policy is not None and not isinstance(policy, Policy):
            raise InvalidConfigError(f"policy must be a minipaged.Policy or None, got {shown(policy)}")
        self.loaded = loaded
        self.config = config
        self.tokenizer = loaded.tokenizer
        self.max_model_len = config.model_len(loaded.max_model_len)
        self.runner = ModelRunner(loaded, config, self.max_model_len)
        self.blocks = block_manager_class(
            self.runner.num_blocks,
            config.block_size,
            num_host_blocks=self.runner.num_host_blocks,
            enable_prefix_caching=config.enable_prefix_caching,
            parts=parts,
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            policy=policy,
        )
        self.intake = Intake(loaded, config, self.blocks, self.scheduler.policy, self.max_model_len)
        self._decoder = Decoder(self.blocks, loaded.eos_token_ids)
        self.usage = Usage()
        self.observers: list[Callable[[Schedule], None]] = []  # called before each step that does anything
        self._inbox = Inbox()
        self._entry_lock = RLock()  # held while one request is checked and enters
        self._step_lock = RLock()  # held by the one call that reads or changes scheduler and pool
        self._outbox: list[RequestOutput] = []  # what `step` has still to return
        self._dead = False
        self._books_are_whole = True  # False while a step changes which blocks are whose
        if config.check_invariants:
            self.check()  # a new pool: all of it free

    def add_request(
        self, request_id: str, prompt: str | SequenceOf[int], params: SamplingParams | BeamSearchParams
    ) -> None:
        """Queue a request: a text, or the token ids of one. May be called from any thread.

        Raises InvalidRequestError, with nothing queued, for what can never be served or is one too many.
        """
        if not isinstance(request_id, str):
            raise InvalidRequestError(f"request_id must be a string, got {shown(request_id)}")
        with self._entry_lock:
            self._refuse_if_dead()
            self._inbox.refuse(request_id, self.config.max_num_unfinished)
            request = self.intake.make_request(request_id, prompt, params)
            with interrupts_wait():
                self._inbox.add(request)

    def abort_request(self, request_id: str) -> None:
        """Stop a request, in whatever state it is. Unknown and finished ones are ignored."""
        with interrupts_wait():
            self._inbox.abort(request_id)

    def forget(self, request_ids: SequenceOf[str]) -> None:
        """Abort requests at once, and report nothing more of them."""
        with interrupts_wait(), self._step_lock:
            for request_id in request_ids:
                self._inbox.abort(request_id)
            try:
                self.empty_inbox()
            except BaseException:
                self._start_over()
                raise
            finally:
                self._outbox = [output for output in self._outbox if output.request_id not in request_ids]

    def knows(self, request_id: str) -> bool:
        """Whether the id belongs to an unfinished request."""
        return request_id in self._inbox

    def has_unfinished_requests(self) -> bool:
        """True while there is something to step for."""
        return bool(self._outbox) or not self._inbox.is_empty

    def step(self) -> list[RequestOutput]:
        """Compute one token for each decoding sequence, and prompt chunks with the rest of the budget.

        Returns the outputs that changed. If a step raises, its requests end with "error" and free their
        blocks. The next step reports that and serves the others. After a GPU fault all raise EngineDeadError.
        """
        with self._step_lock:
            with interrupts_wait():  # ends before outputs are taken out, so an interrupted step keeps them
                self._refuse_if_dead()
                step = Schedule()  # what there is of it where the planning raises: nothing
                self._books_are_whole = False
                try:
                    self.empty_inbox()
                    self._expire()
                    step = self.scheduler.schedule()
                    self._run(step)
                except BaseException as error:
                    self._abandon(step, error)
                    raise
            outputs, self._outbox = self._outbox, []
            return outputs

    def check(self) -> None:
        """Prove that no block is lost, named wrongly or free while in use; BrokenPoolError otherwise."""
        with self._step_lock:
            self.blocks.check([s for request in self.scheduler.requests() for s in request.sequences])

    def stats(self) -> CacheStats:
        """The pool now, and totals since the start. Waits for the end of a step that another thread runs."""
        with self._step_lock:
            return self.usage.stats(self.scheduler, self.blocks, self.runner.shape.bytes_per_token)

    def _refuse_if_dead(self) -> None:
        if self._dead:
            raise EngineDeadError("an earlier step left this engine in an unknown state: make a new one")

    def _run(self, step: Schedule) -> None:
        """Compute a planned step and choose tokens; what changed goes into the outbox."""
        for request in step.outgrown:
            self._finish(request, "capacity")
        self._books_are_whole = True  # neither observers nor the model change them
        for observe in self.observers if not step.is_empty else ():
            observe(step)
        if self.config.check_invariants:  # before anything is written where it mustn't be
            self.check()
        self.usage.record(step, self.scheduler.running, self.blocks, self.max_model_len)
        if not step.rows:
            self.runner.move(step.moves)
            return
        logits = self.runner.execute(step)
        self._books_are_whole = False
        for row in step.rows:
            self.blocks.publish(row.sequence, row.stop)
        advanced, num_tokens = self._decoder.advance(step, logits)
        self.usage.num_generated_tokens += num_tokens
        for request in advanced:
            self._report(request)
        if self.config.check_invariants:
            self.check()

    def _abandon(self, step: Schedule, error: BaseException) -> None:
        """End the requests of a step that `error` broke off: their blocks may hold wrong values.

        Of a step that was still being planned that is the one request that the error belongs to, if any.
        """
        self._dead = isinstance(error, FATAL_ERRORS)
        try:
            if not self._books_are_whole:
                self._start_over()
            for request in step.outgrown:
                self._settle(request, "capacity")
            planned = getattr(error, "request", None)  # somebody else's error may have something else there
            for request in step.requests or ([planned] if isinstance(planned, Request) else []):
                self._settle(request, "error", describe(error))
        except BaseException:
            self._dead = True
            raise

    def _settle(self, request: Request, reason: str, error: str | None = None) -> None:
        """End a request that goes on. Report one that has ended in this step without a report."""
        if request.unfinished:
            request.error = error
            self._finish(request, reason)
        elif request in self.scheduler.running:
            self._report(request)

    def _start_over(self) -> None:
        """Empty the pool, and let every unfinished request wait in line again.

        An interrupt, or what a caller's signal handler raises, may have stopped any line. Only the set of
        requests can be trusted then: those of the scheduler's queues and those of the inbox. A request may
        be between two of them, or have ended without a report.
        """
        requests = list(dict.fromkeys([*self.scheduler.requests(), *self._inbox.take_all()]))
        self.blocks.reset([sequence for request in requests for sequence in request.sequences])
        self.scheduler.start_over([request for request in requests if request.unfinished])
        reported = {output.request_id for output in self._outbox if output.finished}
        for request in requests:
            if request.unfinished and not self._inbox.is_current(request):
                self._finish(request, "abort")
            elif not request.unfinished and request.request_id not in reported:
                self._report(request)

    def empty_inbox(self) -> None:
        """Let new requests wait in line, and end those that were aborted; every step begins with it."""
        with self._step_lock:
            while event := self._inbox.take():
                if event.kind == "add":
                    self.scheduler.waiting.append(event.request)
                elif event.request.unfinished:
                    self._finish(event.request, "abort")

    def _expire(self) -> None:
        """End the requests whose time is up."""
        now = time.monotonic()
        for request in list(self.scheduler.requests()):
            if request.deadline is not None and now > request.deadline:
                self._finish(request, "abort")

    def _finish(self, request: Request, reason: str) -> None:
        """End all of a request that is still going on."""
        self._decoder.end_request(request, reason)
        self._report(request)

    def _report(self, request: Request) -> None:
        """Tell the caller how a request stands now. One that has ended leaves, and its id is free again."""
        self._outbox.append(request.output())
        if not request.unfinished:
            self.scheduler.finish(request)
            self._inbox.end(request)
