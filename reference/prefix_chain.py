"""Name each full block of a sequence by a chain: its own tokens, and the link of the block before it.

The K and V of a block depend on its own tokens and on all tokens before it. So two blocks hold the same K and
V only if their whole chains are equal. A matching hash of the chain is only a candidate: `same_tokens` then
compares the tokens themselves. prefix_cache.py finds blocks by these links.
No kernel twin: every engine keeps this on the host. Lesson: lessons/07_prefix_cache, part 1.
Page: docs/concepts/prefix_cache.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from hashlib import sha256
from typing import Any

from .block_table import check_block_size

HashFunction = Callable[[Any, tuple[Any, ...]], Hashable]


def chain_hash(parent_digest: Any, content: tuple[Any, ...]) -> Hashable:
    """SHA-256 over the parent's digest and a block's token ids; the root has no parent and hashes (salt,)."""
    if parent_digest is None:
        return sha256(repr(content).encode()).digest()
    return sha256(parent_digest + array("q", content).tobytes()).digest()


class Prefix:
    """One link of the chain: a full block's token ids and, through `parent`, all tokens before them."""

    __slots__ = ("content", "digest", "parent")

    def __init__(self, parent: Prefix | None, content: tuple[Any, ...], hash_function: HashFunction) -> None:
        self.parent = parent
        self.content = content
        self.digest: Hashable = hash_function(parent.digest if parent else None, content)

    def same_tokens(self, other: Prefix) -> bool:
        """Compare the tokens themselves, back to the first link that both chains share."""
        mine: Prefix | None = self
        theirs: Prefix | None = other
        while mine and theirs and mine is not theirs and mine.content == theirs.content:
            mine, theirs = mine.parent, theirs.parent
        return mine is theirs


class PrefixChain:
    """The links of one sequence's full blocks, each made when it is first asked for.

    It reads `token_ids`, a list that grows as the sequence does. Sequences with different `salt`s share
    nothing, whatever their tokens.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        block_size: int,
        salt: str | None = None,
        hash_function: HashFunction = chain_hash,
    ) -> None:
        check_block_size(block_size)
        if salt is not None and not isinstance(salt, str):  # 0 and False are equal, and so might share
            raise TypeError(f"salt must be a string or None, got {salt!r}")
        self.token_ids = token_ids
        self.block_size = block_size
        self._hash = hash_function
        self._links = [Prefix(None, (salt,), hash_function)]  # the root; the link of block i is at i + 1

    def __getitem__(self, index: int) -> Prefix:
        """The link of full block `index`, made once. Raises IndexError where the block isn't full (yet)."""
        if index < 0:
            raise IndexError(f"block {index} can't be asked for: blocks are counted from 0")
        while len(self._links) <= index + 1:
            start = (len(self._links) - 1) * self.block_size
            content = tuple(self.token_ids[start : start + self.block_size])
            if len(content) < self.block_size:
                raise IndexError(f"block {index} is not full: the sequence has {len(self.token_ids)} tokens")
            self._links.append(Prefix(self._links[-1], content, self._hash))
        return self._links[index + 1]

    def fork(self, token_ids: Sequence[int]) -> PrefixChain:
        """The chain of a copy of this sequence, `token_ids`, that may go on in another way."""
        chain = PrefixChain(token_ids, self.block_size, self._links[0].content[0], self._hash)
        chain._links = list(self._links)
        return chain

    def adopt(self, index: int, link: Prefix) -> None:
        """Take an equal link that another sequence made, so that later comparisons end at once."""
        link.parent = self._links[index]
        self._links[index + 1] = link
        if index + 2 < len(self._links):
            self._links[index + 2].parent = link
