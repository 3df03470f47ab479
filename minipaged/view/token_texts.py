"""The text of each token of a sequence, for the slots that the block view draws."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from ..engine.request import Sequence
from ..engine.token_decoder import TokenDecoder


class TokenTexts:
    """Decodes the tokens of sequences, each token once.

    A character of several tokens belongs to its last token, and the others have an empty text. Special tokens
    have an empty text too. Without a tokenizer there are no texts.
    """

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        self._known: WeakKeyDictionary[Sequence, tuple[TokenDecoder, list[str]]] = WeakKeyDictionary()

    def of(self, sequence: Sequence, start: int, stop: int) -> list[str]:
        """Return the texts of the tokens from `start` to `stop`."""
        if self._tokenizer is None:
            return []
        if sequence not in self._known:
            self._known[sequence] = TokenDecoder(self._tokenizer, []), []
        decoder, texts = self._known[sequence]
        texts += [decoder.add(token_id) for token_id in sequence.token_ids[len(texts) : stop]]
        return texts[start:stop]
