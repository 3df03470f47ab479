"""Find the first of several stop strings in a text that comes in parts, and hold back what may be one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class StopMatcher:
    """Finds the first of several strings to be complete in a text that comes in parts.

    For each string it keeps how much of it the text ends with (Knuth, Morris and Pratt, SIAM Journal on
    Computing 6(2), 1977). The most of any string is what must be held back.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.match: str | None = None
        self._strings = sorted(strings, key=len, reverse=True)  # of those that end together the longest wins
        self._borders = [_borders(string) for string in self._strings]
        self._matched = [0] * len(self._strings)  # so many characters of each string end the text
        self._held: list[str] = []  # an entry per character held back, "" for one that is not shown

    def feed(self, text: str, armed: bool = True, shown: bool = True) -> str:
        """Take in text and return what can't belong to a stop string. Where not armed, none is found.

        shown: False for text that is searched but never returned.
        """
        if self.match is not None:
            return ""
        for character in text:
            self._held.append(character if shown else "")
            complete = self._step(character)
            if armed and complete is not None:
                self.match = complete
                return self._release(len(self._held) - len(complete))
        return self._release(len(self._held) - max(self._matched))

    def flush(self) -> str:
        """Return what was held back: the text has ended, and no stop string came of it."""
        self._matched = [0] * len(self._strings)
        return "" if self.match is not None else self._release(len(self._held))

    def _release(self, count: int) -> str:
        released, self._held = self._held[:count], self._held[count:]
        return "".join(released)

    def _step(self, character: str) -> str | None:
        """Count one more character of the text; return the longest string that it completes."""
        complete = None
        for i, (string, borders) in enumerate(zip(self._strings, self._borders, strict=True)):
            length = _extend(string, borders, self._matched[i], character)
            self._matched[i] = length
            if length == len(string):
                complete = complete or string
        return complete


def _extend(string: str, borders: list[int], length: int, character: str) -> int:
    """How much of `string` a text ends with after `character`, if it ended with `length` before it."""
    while length and (length == len(string) or string[length] != character):
        length = borders[length - 1]
    return length + (string[length] == character)


@lru_cache(maxsize=64)  # the samples of a request share their stop strings
def _borders(string: str) -> list[int]:
    """For each beginning of a string: the longest shorter one that it also ends with."""
    borders = [0]
    for character in string[1:]:
        borders.append(_extend(string, borders, borders[-1], character))
    return borders
