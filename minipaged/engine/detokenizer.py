"""From token ids to text, a token at a time: nothing is ever taken back, repeated or shown too early.

A token may end inside a character, and the text so far may be the beginning of a stop string. Both are held
back until more is known. The cost of a token doesn't depend on how many came before it.

Why not `tokenizers.decoders.DecodeStream`: with tokenizers 0.23.3 it fails ten tests of
tests/engine/test_detokenizer.py. It releases text only where its whole buffer ends with a whole character:
- test_a_prompt_that_ends_inside_a_character: it repeats the prompt ("Hello 삼" instead of "삼").
- test_a_syllable_comes_out_with_its_last_byte: it gives "", "", "", "삼겹살" instead of "", "삼", "겹", "살".
- test_replacement_characters_without_end_are_given_out_as_they_come: 100 tokens give no text at all.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import InvalidRequestError
from .stop_strings import StopMatcher

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_CHARACTER = 4  # bytes of the longest UTF-8 character, hence tokens that can share one
_bytes_of_tokenizer: WeakKeyDictionary[Any, dict[tuple[int, bool], bytes | None]] = WeakKeyDictionary()


class IncrementalDetokenizer:
    """The text of one output as it grows.

    tokenizer: one of transformers' tokenizers, or None: the text is then always empty.
    prompt_token_ids: what the output continues. Its text is never given out, but a character that the prompt
        leaves unfinished and the output completes is.
    stop: strings that end the text. They are searched in the output with its special tokens, as Hugging
        Face does, even where the text leaves these out. The one that is complete first wins, the longest of
        those that end at the same character; it and all behind it are cut off, whatever tokens it came in.
    include_stop_str_in_output: keep the stop string itself, less its special tokens where these are left out.
    min_tokens: stop strings completed by an earlier token than this are let pass.

    Raises InvalidRequestError for stop strings without a tokenizer.
    """

    def __init__(
        self,
        tokenizer: Any | None,
        prompt_token_ids: Sequence[int],
        stop: Sequence[str] = (),
        skip_special_tokens: bool = True,
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        if tokenizer is None and stop:
            raise InvalidRequestError(f"stop={list(stop)} needs text, and this model has no tokenizer")
        self._decoder = None
        if tokenizer is not None:
            self._decoder = TokenDecoder(tokenizer, prompt_token_ids, skip_special_tokens)
        self._matcher = StopMatcher(stop, include_stop_str_in_output) if stop else None
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
        return self._matcher.found if self._matcher else None

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


class TokenDecoder:
    """Token ids in, whole characters out.

    Where a token is known to be a piece of a byte string (every token of a byte-level BPE, `<0xEC>` where a
    tokenizer falls back to bytes), the bytes go through an incremental UTF-8 decoder, which can tell the
    beginning of a character from a broken one. Other tokens are decoded by the tokenizer behind the token
    before them, since the first token of a text may lose its space.

    The result is the tokenizer's own decode of prompt and output, less the prompt. One difference is on
    purpose: after characters in `<0xEC>` pieces an invalid byte becomes U+FFFD, while the tokenizers library
    would turn those characters, too, into U+FFFD.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._bytes_of = _bytes_of_tokenizer.setdefault(tokenizer, {})
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_byte_level = type(getattr(backend, "decoder", None)).__name__ == "ByteLevel"
        errors = "replace" if self._is_byte_level else "minipaged.replace_each_byte"
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors)
        self._context: list[int] = []  # the tokens whose text came out last
        self._pending: list[int] = []  # tokens behind them whose text is not certain
        self._prompt_tail = self._enter(prompt_token_ids)
        self._utf8.decode(self._prompt_tail)

    def add(self, token_id: int) -> str:
        """The text that this token makes certain."""
        data = self._token_bytes(token_id)
        if data == b"":
            return ""
        if data is None:
            return self._decode_bytes(b"", final=True) + self._decode_piece(token_id)
        text = self._end_piece() + self._decode_bytes(data)
        self._context = self._context or [token_id]
        return text

    def hides(self, token_id: int) -> bool:
        """Whether this is a special token, which `add` leaves out."""
        return self._token_bytes(token_id) == b""

    def hidden_text(self, token_id: int) -> str:
        """The text of a special token that `add` leaves out."""
        shown = self._decode(self._context, skip_special_tokens=False)
        return self._decode([*self._context, token_id], skip_special_tokens=False)[len(shown) :]

    def flush(self) -> str:
        """The text of what is unfinished."""
        return self._end_piece() + self._decode_bytes(b"", final=True)

    def _enter(self, prompt_token_ids: Sequence[int]) -> bytes:
        """Take the prompt's last token as context; return the bytes of a character the prompt leaves open."""
        tail = b""
        for token_id in reversed(prompt_token_ids):
            data = self._token_bytes(token_id)
            if data != b"" and not self._context:
                self._context = [token_id]
            if data is None:
                break
            tail = data + tail
            if len(tail) >= _MAX_CHARACTER:
                break
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        utf8.decode(tail)
        return utf8.getstate()[0]

    def _decode_bytes(self, data: bytes, final: bool = False) -> str:
        """The whole characters of `data` and what was left before it; all of it where it is the last."""
        if self._prompt_tail and (final or not _continues(self._prompt_tail, data)):
            self._utf8.reset()  # broken in the prompt: its U+FFFD is the prompt's
        self._prompt_tail = b""
        return self._utf8.decode(data, final)

    def _decode_piece(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._pending_text()
        # A tokenizer of an unknown kind: this may be a character's beginning, but not for more than 4 tokens.
        if text.endswith("\ufffd") and len(self._pending) < _MAX_CHARACTER:
            return ""
        return self._end_piece()

    def _end_piece(self) -> str:
        if not self._pending:
            return ""
        text = self._pending_text()
        self._context, self._pending = self._pending, []
        return text

    def _pending_text(self) -> str:
        before = self._decode(self._context, self._skip_special_tokens)
        return self._decode(self._context + self._pending, self._skip_special_tokens)[len(before) :]

    def _decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _token_bytes(self, token_id: int) -> bytes | None:
        """What a token adds: bytes (none for one that isn't shown), or None where only `decode` knows."""
        key = (token_id, self._skip_special_tokens)
        if key not in self._bytes_of:
            self._bytes_of[key] = self._find_bytes(token_id)
        return self._bytes_of[key]

    def _find_bytes(self, token_id: int) -> bytes | None:
        piece = self._tokenizer.convert_ids_to_tokens(token_id)
        text = self._decode([token_id], self._skip_special_tokens)
        if piece is None or (not text and self._decode([token_id], skip_special_tokens=False)):
            return b""
        if self._is_byte_level:
            return _bytes_of_piece(piece)
        match = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match and text != piece else None


def _continues(start: bytes, data: bytes) -> bool:
    """True where `data` completes the character begun by `start`, or may still do so."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start + data)
    except UnicodeDecodeError as error:
        return error.start > 0
    return True


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes: printable ones stand for themselves (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _bytes_of_piece(piece: str) -> bytes:
    """A piece of byte-level BPE as bytes; an added token, written as it is, as its UTF-8."""
    if all(character in _BYTE_OF for character in piece):
        return bytes(_BYTE_OF[character] for character in piece)
    return piece.encode()


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """U+FFFD for every invalid byte, as tokenizers with byte fallback do; Python's own joins some of them."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("minipaged.replace_each_byte", _replace_each_byte)
