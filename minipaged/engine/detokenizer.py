"""From token ids to text, a token at a time: nothing is ever taken back, repeated or shown too early.

A token may end inside a character, and the text so far may be the beginning of a stop string. Both are held
back until more is known: token_decoder.py holds back characters, stop_strings.py beginnings of stop strings.
The cost of a token doesn't depend on the number of tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InvalidRequestError
from .stop_strings import StopMatcher
from .token_decoder import TokenDecoder


class IncrementalDetokenizer:
    """The text of one output as it grows.

    tokenizer: one of transformers' tokenizers, or None: the text is then always empty.
    prompt_token_ids: what the output continues. Its text is never given out, but a character that the prompt
        leaves unfinished and the output completes is.
    stop: strings that end the text. They are searched in the output with its special tokens, as Hugging
        Face does, although the text leaves these out. The one that is complete first wins, and the longest
        of those that end at the same character. The text ends before it.
    min_tokens: stop strings completed by an earlier token than this are let pass.

    Raises InvalidRequestError for stop strings without a tokenizer.
    """

    def __init__(
        self,
        tokenizer: Any | None,
        prompt_token_ids: Sequence[int],
        stop: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        if tokenizer is None and stop:
            raise InvalidRequestError(f"stop={list(stop)} needs text, and this model has no tokenizer")
        self._decoder = None if tokenizer is None else TokenDecoder(tokenizer, prompt_token_ids)
        self._matcher = StopMatcher(stop) if stop else None
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._released: list[str] = []

    @property
    def text(self) -> str:
        """All text given out so far: the sum of what `add` and `flush` returned."""
        self._released = ["".join(self._released)]
        return self._released[0]

    @property
    def stopped(self) -> str | None:
        """The stop string that was found, or None."""
        return self._matcher.match if self._matcher else None

    def add(self, token_id: int) -> str:
        """Take in the next token and return the text that is now certain; nothing after a stop string."""
        self._num_tokens += 1
        if self._decoder is None:
            return ""
        if self._matcher and self._decoder.hides(token_id):  # it ends a character in the searched text
            text = self._search(self._decoder.flush())
            text += self._search(self._decoder.hidden_text(token_id), shown=False)
        else:
            text = self._search(self._decoder.add(token_id))
        self._released.append(text)
        return text

    def flush(self) -> str:
        """Return what was held back, at the end of the output; an unfinished character becomes U+FFFD."""
        text = self._search(self._decoder.flush()) if self._decoder else ""
        text += self._matcher.flush() if self._matcher else ""
        self._released.append(text)
        return text

    def _search(self, text: str, shown: bool = True) -> str:
        """Search for stop strings; return the text that can't belong to one."""
        if not self._matcher:
            return text
        return self._matcher.feed(text, armed=self._num_tokens >= self._min_tokens, shown=shown)
