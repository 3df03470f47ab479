"""The answers to a caller: the text of a request, and the state of the pool."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class CompletionOutput:
    """One output of a request. `finish_reason` is None while it is being generated, then one of
    "stop" (an eos id, a stop token or a stop string), "length", "capacity" (the output outgrew the pool),
    "abort" or "error"."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: list[dict[int, float]] | None = None  # per token: the chosen one and the most likely ones
    cumulative_logprob: float | None = None
    score: float | None = None  # of a beam: its summed log-probability / length ** length_penalty


@dataclass
class RequestOutput:
    """A request and its output so far.

    A request with `n` outputs has one until its prompt is computed, also if it is aborted before that.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    num_cached_tokens: int  # of the prompt, found in the prefix cache
    finished: bool
    outputs: list[CompletionOutput] = field(default_factory=list)
    error: str | None = None  # the exception that ended it, where finish_reason is "error"


@dataclass(frozen=True)
class CacheStats:
    """The pool now, and what it has done since the engine started. Units are blocks or tokens."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    num_free_blocks: int
    num_used_blocks: int
    num_cached_blocks: int  # used by nobody, kept for a prefix that may come again
    num_shared_blocks: int  # named by more than one table
    num_blocks_saved: int  # table entries beyond the first that name a block
    num_empty_slots: int  # reserved and not filled, at the ends of last blocks
    num_running: int
    num_waiting: int
    num_swapped: int
    peak_used_blocks: int
    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    num_generated_tokens: int
    num_steps: int
    num_preemptions: int
    num_swapped_out_blocks: int  # copied to host memory, since the start
    blocks_saved_by_sharing: float  # over blocks needed without it, averaged over all steps (section 6.3)
    waste: float  # share of reserved slots that held no token, averaged over all steps
    waste_if_reserved: float  # the same, had each sequence reserved max_model_len slots
