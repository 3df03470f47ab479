"""Turn what a caller asks for into a request, or refuse what can never be served.

A refusal comes before the request is queued and changes nothing. Its message names the argument, its value
and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as SequenceOf
from functools import cached_property, partial
from operator import index
from random import Random
from typing import Any, NoReturn

from ..config import EngineConfig, size_of_text
from ..errors import InvalidRequestError
from ..models.loading import LoadedModel
from ..sampling_params import BeamSearchParams, SamplingParams, shown
from .beam_scores import BeamSearch
from .block_manager import BlockManager
from .detokenizer import IncrementalDetokenizer
from .policies import Policy
from .request import Request, Sequence


class Intake:
    """Knows the limits of one engine, and makes the requests that keep within them."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        blocks: BlockManager,
        policy: Policy,
        max_model_len: int,
    ) -> None:
        self.loaded = loaded
        self.blocks = blocks
        self.policy = policy
        self.max_model_len = max_model_len
        self.max_prompt_bytes = config.max_prompt_bytes
        self.max_num_sequences = min(config.max_num_seqs, config.max_num_batched_tokens)
        self._seeds = Random(config.seed)  # for requests that bring none

    def make_request(
        self, request_id: str, prompt: str | SequenceOf[int], params: SamplingParams | BeamSearchParams
    ) -> Request:
        """A request ready to wait in line. Raises InvalidRequestError."""
        if not isinstance(params, (SamplingParams, BeamSearchParams)):
            raise InvalidRequestError(
                f"params must be SamplingParams or BeamSearchParams, got {shown(params)}"
            )
        self._check_priority(params.priority)
        token_ids = self._tokenize(prompt)
        self._check_length(len(token_ids))
        self._check_embeddings(token_ids)
        max_tokens = min(params.max_tokens, self.max_model_len - len(token_ids))
        beam_search = None
        if isinstance(params, BeamSearchParams):
            beam_search = self._beam_search(params, max_tokens)
            params = SamplingParams(
                max_tokens=params.max_tokens, ignore_eos=params.ignore_eos, priority=params.priority
            )
        self._check_width("n", params.n)
        self._check_stop_tokens(params.stop_token_ids)
        new_detokenizer = partial(
            IncrementalDetokenizer,
            self.loaded.tokenizer,
            token_ids,
            params.stop,
            min_tokens=params.min_tokens,
        )
        return Request(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            params=params,
            max_tokens=max_tokens,
            sequences=[self._first_sequence(token_ids, params, new_detokenizer())],
            new_detokenizer=new_detokenizer,
            beam_search=beam_search,
        )

    def _beam_search(self, params: BeamSearchParams, max_tokens: int) -> BeamSearch:
        """A search whose beams fit into a step and whose candidates are in the vocabulary."""
        search = BeamSearch(params, self.loaded.eos_token_ids, max_tokens)
        self._check_width("beam_width", params.beam_width)
        if search.num_candidates > self.loaded.vocab_size:
            raise InvalidRequestError(
                f"beam_width={params.beam_width} needs {search.num_candidates} candidates a step, "
                f"the vocabulary has {self.loaded.vocab_size} tokens"
            )
        return search

    def _first_sequence(
        self, token_ids: list[int], params: SamplingParams, detokenizer: IncrementalDetokenizer
    ) -> Sequence:
        """The sequence that a request begins as. Nothing is refused from here on: it may draw a seed."""
        known = list(token_ids)
        return Sequence(
            known,
            self.blocks.new_chain(known, params.cache_salt),
            self.blocks.new_table(),
            detokenizer,
            num_prompt_tokens=len(known),
            seed=params.seed if params.seed is not None else self._seeds.getrandbits(64),
        )

    def _check_priority(self, priority: int) -> None:
        """Refuse a priority that nobody would look at."""
        if priority and not self.policy.reads_priority:
            raise InvalidRequestError(
                f"priority={shown(priority)}: {type(self.policy).__name__} reads no priority, "
                "LLM(policy=Priority()) does"
            )

    def _check_width(self, name: str, num_sequences: int) -> None:
        """Refuse more sequences than a step may hold: all of a request's run together."""
        if num_sequences > self.max_num_sequences:
            raise InvalidRequestError(
                f"{name}={shown(num_sequences)} sequences can never run together: max_num_seqs and "
                f"max_num_batched_tokens allow {self.max_num_sequences} in a step"
            )

    def _tokenize(self, prompt: str | SequenceOf[int]) -> list[int]:
        """Token ids of a text, or the given ones as plain integers."""
        if isinstance(prompt, str):
            return self.tokenize_text(prompt)
        if hasattr(prompt, "tolist"):
            prompt = prompt.tolist()
        if isinstance(prompt, (bytes, Mapping, Set)) or not isinstance(prompt, Iterable):
            raise InvalidRequestError(f"prompt must be a text or a list of token ids, got {shown(prompt)}")
        given: list[Any] = list(prompt)
        token_ids = []
        for token_id in given:
            if isinstance(token_id, bool):
                self._refuse_token(token_id)
            try:  # numpy's and torch's integers too
                token_ids.append(index(token_id))
            except TypeError:
                self._refuse_token(token_id)
        return token_ids

    def _check_embeddings(self, token_ids: list[int]) -> None:
        """Refuse a token that the model has no embedding for: a tokenizer may know more tokens than it."""
        for token_id in token_ids:
            if not 0 <= token_id < self.loaded.num_embeddings:
                self._refuse_token(token_id)

    def _refuse_token(self, token_id: Any) -> NoReturn:
        tokenizer, named = self.loaded.tokenizer, ""
        if tokenizer is not None and type(token_id) is int and 0 <= token_id < len(tokenizer):
            named = f", the token {shown(tokenizer.convert_ids_to_tokens(token_id))}, which has no embedding"
        raise InvalidRequestError(
            f"prompt must hold token ids from 0 to {self.loaded.num_embeddings - 1}, "
            f"got {shown(token_id)}{named}"
        )

    def _check_stop_tokens(self, token_ids: tuple[int, ...]) -> None:
        """Refuse a stop token that the model can't generate, as vLLM does."""
        for token_id in token_ids:
            if token_id >= self.loaded.vocab_size:
                raise InvalidRequestError(
                    f"stop_token_ids must hold token ids from 0 to {self.loaded.vocab_size - 1}, "
                    f"got {shown(token_id)}"
                )

    def tokenize_text(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Raises InvalidRequestError, early for one that can't fit the model."""
        if self.loaded.tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer: prompts must be lists of token ids")
        num_bytes = size_of_text("prompt", text, self.max_prompt_bytes)
        if num_bytes >= 8 * self.max_model_len and num_bytes > self.max_model_len * self._longest_token:
            raise InvalidRequestError(
                f"prompt has {num_bytes} bytes of text, more than {self.max_model_len} tokens can stand for: "
                f"max_model_len={self.max_model_len} counts prompt and output"
            )
        if not text:
            return []
        return list(self.loaded.tokenizer(text, add_special_tokens=add_special_tokens).input_ids)

    @cached_property
    def _longest_token(self) -> float:
        """The most bytes of text that one token can stand for; infinite where the tokenizer sets no limit."""
        tokenizer: Any = self.loaded.tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None or backend.normalizer is not None:  # which may drop text
            return math.inf
        if getattr(backend.model, "unk_token", "") is not None:  # one <unk> may stand for any text
            return math.inf
        return max(len(piece.encode()) for piece in tokenizer.get_vocab())

    def _check_length(self, num_tokens: int) -> None:
        """Refuse a prompt that no schedule could ever serve."""
        if num_tokens == 0:
            raise InvalidRequestError("prompt is empty: at least one token is needed")
        if num_tokens >= self.max_model_len:
            raise InvalidRequestError(
                f"prompt has {num_tokens} tokens, at most {self.max_model_len - 1} are allowed: "
                f"max_model_len={self.max_model_len} counts prompt and output"
            )
        num_slots = self.blocks.num_blocks * self.blocks.block_size
        if num_tokens > num_slots:
            raise InvalidRequestError(
                f"prompt has {num_tokens} tokens and can never fit the pool: {self.blocks.num_blocks} "
                f"blocks of {self.blocks.block_size} hold {num_slots}"
            )
