"""Turn what a caller asks for into a request, or refuse what can never be served.

Every refusal happens here, before a request is queued: the message names the argument, its value and what is
allowed, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from collections.abc import Sequence as SequenceOf
from operator import index
from random import Random
from typing import Any

from .block_manager import BlockManager
from .config import EngineConfig
from .detokenizer import IncrementalDetokenizer
from .errors import InvalidRequestError, NotBuiltYetError
from .models.loading import LoadedModel
from .request import Request, Sequence
from .sampling_params import SamplingParams


class Intake:
    """Knows the limits of one engine, and makes the requests that keep within them."""

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, blocks: BlockManager, max_model_len: int
    ) -> None:
        self.loaded = loaded
        self.block_size = config.block_size
        self.blocks = blocks
        self.max_model_len = max_model_len
        self._seeds = Random(config.seed)  # for requests that bring none

    def make_request(self, request_id: str, prompt: str | SequenceOf[int], params: SamplingParams) -> Request:
        """A request ready to wait in line. Raises InvalidRequestError."""
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(f"params must be SamplingParams, got {params!r}")
        if params.n > 1:
            raise NotBuiltYetError(f"n={params.n}: parallel sampling is not built yet, use n=1")
        token_ids = self._tokenize(prompt)
        self._check_length(len(token_ids))
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(64)
        known = list(token_ids)
        chain = self.blocks.new_chain(known, params.cache_salt)
        return Request(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            params=params,
            max_tokens=min(params.max_tokens, self.max_model_len - len(token_ids)),
            sequence=Sequence(known, chain, self.blocks.new_table(), seed),
            detokenizer=IncrementalDetokenizer(
                self.loaded.tokenizer, token_ids, params.stop, min_tokens=params.min_tokens
            ),
        )

    def _tokenize(self, prompt: str | SequenceOf[int]) -> list[int]:
        """Token ids of a text, or the given ones once they are known to be ids of this vocabulary."""
        if isinstance(prompt, str):
            return self._tokenize_text(prompt)
        if hasattr(prompt, "tolist"):
            prompt = prompt.tolist()
        if isinstance(prompt, (bytes, Mapping, Set)) or not isinstance(prompt, Iterable):
            raise InvalidRequestError(f"prompt must be a text or a list of token ids, got {prompt!r}")
        given: list[Any] = list(prompt)
        token_ids = []
        for token_id in given:
            try:  # numpy's and torch's integers too
                token_ids.append(index(token_id))
            except TypeError:
                token_ids.append(-1)
            if isinstance(token_id, bool) or not 0 <= token_ids[-1] < self.loaded.vocab_size:
                raise InvalidRequestError(
                    f"prompt must hold token ids from 0 to {self.loaded.vocab_size - 1}, got {token_id!r}"
                )
        return token_ids

    def _tokenize_text(self, text: str) -> list[int]:
        if self.loaded.tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer: prompts must be lists of token ids")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"prompt is no valid text: {error}") from None
        return list(self.loaded.tokenizer(text).input_ids) if text else []

    def _check_length(self, num_tokens: int) -> None:
        """Refuse a prompt that no schedule could ever serve."""
        if num_tokens == 0:
            raise InvalidRequestError("prompt is empty: at least one token is needed")
        if num_tokens >= self.max_model_len:
            raise InvalidRequestError(
                f"prompt has {num_tokens} tokens, at most {self.max_model_len - 1} are allowed: "
                f"max_model_len={self.max_model_len} counts prompt and output"
            )
        num_slots = self.blocks.num_blocks * self.block_size
        if num_tokens > num_slots:
            raise InvalidRequestError(
                f"prompt has {num_tokens} tokens and can never fit the pool: {self.blocks.num_blocks} "
                f"blocks of {self.block_size} hold {num_slots}"
            )
