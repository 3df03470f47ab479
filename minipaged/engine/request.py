"""What the engine knows of a request while it lives: its prompt, and the sequences that answer it.

All sequences of a request form a group: they begin as one, fork when the prompt is computed, and share its
blocks. They are admitted and preempted together. A sequence is a list of token ids that grows, and a block
table that says where their K and V are. The scheduler's whole view of its progress is two numbers: how many
tokens it has, and of how many the K and V are computed. Prefill, a chunk of it, decode and recomputation
after preemption differ in nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..outputs import CompletionOutput, RequestOutput
from ..reference.block_table import BlockTable
from ..reference.prefix_chain import PrefixChain
from ..sampling_params import SamplingParams

if TYPE_CHECKING:  # the scheduler needs neither torch nor a tokenizer, and runs in a browser
    from .beam_scores import BeamSearch
    from .detokenizer import IncrementalDetokenizer


class Sequence:
    """One output in the making.

    `token_ids` is prompt and output; the K and V of the first `num_computed_tokens` are in the blocks of
    `table`. `token_ids` is only ever appended to, since `chain` reads it.
    """

    def __init__(
        self,
        token_ids: list[int],
        chain: PrefixChain,
        table: BlockTable,
        detokenizer: IncrementalDetokenizer,
        *,
        num_prompt_tokens: int,
        seed: int,
        index: int = 0,
    ) -> None:
        self.index = index
        self.seed = seed
        self.num_prompt_tokens = num_prompt_tokens
        self.token_ids = token_ids
        self.chain = chain
        self.table = table
        self.detokenizer = detokenizer
        self.num_computed_tokens = 0
        self.on_host = False  # the table names blocks of the host pool
        self.finish_reason: str | None = None
        self.logprobs: list[dict[int, float]] = []
        self.cumulative_logprob = 0.0
        self.score: float | None = None  # of a beam

    def fork(self, index: int, seed: int, table: BlockTable, detokenizer: IncrementalDetokenizer) -> Sequence:
        """A sequence with the same tokens, computed as far as this one; `table` names the same blocks."""
        token_ids = list(self.token_ids)
        child = Sequence(
            token_ids,
            self.chain.fork(token_ids),
            table,
            detokenizer,
            num_prompt_tokens=self.num_prompt_tokens,
            seed=seed,
            index=index,
        )
        child.num_computed_tokens = self.num_computed_tokens
        return child

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose K and V are still to be computed: 1 in decode, more in prefill."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The sampled tokens."""
        return self.token_ids[self.num_prompt_tokens :]


@dataclass(eq=False)
class Request:
    """A prompt, how to sample from it, and the sequences that answer it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int  # params.max_tokens, or less where the model's limit is nearer
    sequences: list[Sequence]  # one until the prompt is computed, then `num_sequences`
    new_detokenizer: Callable[[], IncrementalDetokenizer]
    beam_search: BeamSearch | None = None
    arrival_time: float = field(default_factory=time.monotonic)
    first_token_time: float | None = None
    num_cached_tokens: int | None = None  # set when first admitted
    num_preemptions: int = 0
    error: str | None = None  # what broke it off, where that is how it ended

    @property
    def num_sequences(self) -> int:
        """The most sequences that it will have at a time."""
        return self.params.n if self.beam_search is None else self.beam_search.params.beam_width

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that go on."""
        return [sequence for sequence in self.sequences if sequence.finish_reason is None]

    @property
    def deadline(self) -> float | None:
        """When its time is up, on the clock of `time.monotonic`."""
        return None if self.params.timeout is None else self.arrival_time + self.params.timeout

    def output(self) -> RequestOutput:
        """What a caller sees of it now. The text of beams is written out once they have ended."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            num_cached_tokens=self.num_cached_tokens or 0,
            finished=not self.unfinished,
            outputs=[self._completion(sequence) for sequence in self.sequences],
            error=self.error,
        )

    def _completion(self, sequence: Sequence) -> CompletionOutput:
        wants_logprobs = self.params.logprobs is not None
        return CompletionOutput(
            index=sequence.index,
            text=sequence.detokenizer.text,
            token_ids=sequence.output_token_ids,
            finish_reason=sequence.finish_reason,
            logprobs=list(sequence.logprobs) if wants_logprobs else None,
            cumulative_logprob=sequence.cumulative_logprob if wants_logprobs else None,
            score=sequence.score,
        )
