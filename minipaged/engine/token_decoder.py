"""Token ids in, whole characters out: the part of a token's text that is certain.

Why not `tokenizers.decoders.DecodeStream`: with tokenizers 0.23.3 it fails ten tests of
tests/engine/test_detokenizer.py. It releases text only if its whole buffer ends with a whole character:
- test_a_prompt_that_ends_inside_a_character: it repeats the prompt ("Hello 삼" instead of "삼").
- test_a_syllable_comes_out_with_its_last_byte: it gives "", "", "", "삼겹살" instead of "", "삼", "겹", "살".
- test_replacement_characters_without_end_are_given_out_as_they_come: 100 tokens give no text at all.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_CHARACTER = 4  # bytes of the longest UTF-8 character, hence tokens that can share one


class Piece(NamedTuple):
    """What one token adds to a text.

    kind: "bytes" for a token that always stands for `data`, which may end inside a character. "hidden" for a
    special token, and for an id that the tokenizer doesn't know: the text leaves it out. "text" if only the
    tokenizer can tell, from the token and the one before it.
    """

    kind: Literal["bytes", "hidden", "text"]
    data: bytes = b""


_pieces_of_tokenizer: WeakKeyDictionary[Any, dict[int, Piece]] = WeakKeyDictionary()


class TokenDecoder:
    """The text of prompt and output, less the prompt, a token at a time.

    The data of tokens that stand for bytes (all tokens of a byte-level BPE, `<0xEC>` if a tokenizer falls
    back to bytes) goes through an incremental UTF-8 decoder. It can tell the beginning of a character from a
    broken one. The tokenizer decodes other tokens behind the token before them, since the first token of a
    text may lose its space.

    The result is the tokenizer's own decode of prompt and output, less the prompt. One difference is on
    purpose: after characters in `<0xEC>` pieces an invalid byte becomes U+FFFD, while the tokenizers library
    would turn those characters, too, into U+FFFD.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._pieces = _pieces_of_tokenizer.setdefault(tokenizer, {})
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
        kind, data = self._piece(token_id)
        if kind == "hidden":
            return ""
        if kind == "text":
            return self._decode_bytes(b"", final=True) + self._decode_piece(token_id)
        text = self._end_piece() + self._decode_bytes(data)
        self._context = self._context or [token_id]
        return text

    def hides(self, token_id: int) -> bool:
        """Whether this is a special token, which `add` leaves out."""
        return self._piece(token_id).kind == "hidden"

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
            kind, data = self._piece(token_id)
            if kind != "hidden" and not self._context:
                self._context = [token_id]
            if kind == "text":
                break
            tail = data + tail
            if len(tail) >= _MAX_CHARACTER:
                break
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        utf8.decode(tail)
        return utf8.getstate()[0]

    def _decode_bytes(self, data: bytes, final: bool = False) -> str:
        """The whole characters of `data` and the bytes left before it; if it is the last, all of it."""
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
        before = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(before) :]

    def _decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return self._tokenizer.decode(
            token_ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )

    def _piece(self, token_id: int) -> Piece:
        """What a token adds; found out once per tokenizer."""
        if token_id not in self._pieces:
            self._pieces[token_id] = self._new_piece(token_id)
        return self._pieces[token_id]

    def _new_piece(self, token_id: int) -> Piece:
        written = self._tokenizer.convert_ids_to_tokens(token_id)
        text = self._decode([token_id])
        if written is None or (not text and self._decode([token_id], skip_special_tokens=False)):
            return Piece("hidden")
        if self._is_byte_level:
            data = _bytes_of_piece(written)
            return Piece("bytes", data) if data else Piece("hidden")
        match = _BYTE_PIECE.fullmatch(written)
        return Piece("bytes", bytes([int(match[1], 16)])) if match and text != written else Piece("text")


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
