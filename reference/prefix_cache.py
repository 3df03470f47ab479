"""Find the blocks of a prompt whose keys and values an earlier request has already computed.

The K and V of a block depend on its own tokens and on all tokens before it. So a full block is known by a
chain: its tokens, and the identity of the block before it. A matching hash of the chain is only a candidate:
the tokens decide. Unused blocks stay findable until the pool needs them, least recently used first.
No kernel twin: every engine keeps this on the host. Lesson: lessons/07_prefix_cache.
Page: docs/concepts/prefix_cache.md.
"""

from __future__ import annotations

import operator
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from hashlib import sha256
from typing import Any

from .allocator import BlockAllocator, OutOfBlocksError
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


class PrefixCache:
    """Blocks by the prefix they hold, over an allocator that counts their uses.

    It stands before the allocator: `allocate` evicts cached blocks where the free ones don't suffice, and
    `free` keeps findable blocks cached instead of giving them up.
    """

    def __init__(self, allocator: BlockAllocator) -> None:
        self.allocator = allocator
        self._blocks: dict[Hashable, tuple[Prefix, int]] = {}  # by digest
        self._digests: dict[int, Hashable] = {}  # by block
        self._unused: OrderedDict[int, None] = OrderedDict()  # cached blocks, least recently used first

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: the free and the cached ones."""
        return self.allocator.num_free + len(self._unused)

    @property
    def cached_blocks(self) -> list[int]:
        """Blocks that nobody uses and a prompt may find, the next to be evicted first."""
        return list(self._unused)

    def reference_count(self, block: int) -> int:
        """How many live block-table entries name `block`."""
        return self.allocator.reference_count(block)

    def can_reuse(self, block: int) -> bool:
        """Whether `allocate` may hand `block` out once nobody names it: any, if need be by eviction."""
        return True

    def lookup(self, chain: PrefixChain) -> list[int]:
        """The cached blocks of the longest known prefix, from the first on, up to the first miss.

        At least one token is left to compute, because sampling needs its logits. So a prompt whose blocks are
        all known still gives up the last one. Nothing is pinned yet: see `share`.
        """
        hits: list[int] = []
        for index in range((len(chain.token_ids) - 1) // chain.block_size):
            block = self._find(chain, index)
            if block is None:
                break
            hits.append(block)
        return hits

    def share(self, blocks: Iterable[int]) -> None:
        """Use blocks that `lookup` found, or another table's: one more use of each, none can be evicted."""
        blocks = [operator.index(block) for block in blocks]  # a tensor's items are no keys of a dict
        self.allocator.share(blocks)
        for block in blocks:
            self._unused.pop(block, None)

    def publish(self, chain: PrefixChain, blocks: Sequence[int], start: int, stop: int) -> None:
        """Make full blocks `start` to `stop` - 1 of a table findable. Their K and V must be written.

        Where an equal prefix is findable already, the second copy stays a plain block. Where a different
        one has the same digest, the first keeps its place: a collision costs no more than a miss. A findable
        block is retained by the allocator, once. Raises IndexError, and publishes nothing, where a block is
        not full or not in the table, and ValueError where one is free or findable by another prefix.
        """
        num_full = min(len(chain.token_ids) // chain.block_size, len(blocks))
        if start < 0 or stop > num_full:
            raise IndexError(f"can't publish blocks {start} to {stop - 1}: 0 to {num_full - 1} are full")
        new: dict[Hashable, tuple[Prefix, int]] = {}
        for i in range(start, stop):
            if self._find(chain, i) is None and chain[i].digest not in self._blocks:
                new.setdefault(chain[i].digest, (chain[i], operator.index(blocks[i])))
        ids = [block for _, block in new.values()]
        if len(set(ids)) < len(ids) or self._digests.keys() & ids or not all(map(self.reference_count, ids)):
            raise ValueError(f"can't publish blocks {ids}: each must be in use, and can hold one prefix only")
        for digest, (link, block) in new.items():
            self.allocator.retain(block)
            self._blocks[digest] = (link, block)
            self._digests[block] = digest

    def allocate(self, num_blocks: int = 1) -> list[int]:
        """Take `num_blocks` blocks, evicting cached ones where the free don't suffice; all or nothing."""
        if num_blocks > self.num_available:
            raise OutOfBlocksError(num_blocks, self.num_available)
        while self.allocator.num_free < num_blocks:
            self._evict()
        return self.allocator.allocate(num_blocks)

    def free(self, blocks: Sequence[int]) -> list[int]:
        """Give up one use of each block of a table; keep, and return, those that nobody uses any more.

        The allocator frees the tail before the head, so it is also evicted before it: a head without its tail
        is still a prefix, a tail without its head can't be found.
        """
        unused = self.allocator.free(blocks)
        self._keep(unused)
        return unused

    def is_findable(self, block: int) -> bool:
        """True where `lookup` can return `block`."""
        return block in self._digests

    def _find(self, chain: PrefixChain, index: int) -> int | None:
        """The block that holds link `index`, once its tokens have been compared, and the chain adopts it."""
        link = chain[index]
        if link.digest not in self._blocks:
            return None
        known, block = self._blocks[link.digest]
        if not known.same_tokens(link):
            return None
        chain.adopt(index, known)
        return block

    def _keep(self, unused: Iterable[int]) -> None:
        """Line those of the blocks that are findable up for eviction: nobody uses them any more."""
        self._unused.update((block, None) for block in unused if block in self._digests)

    def _evict(self) -> None:
        """Give the least recently used cached block, findable no more, back to the free stack."""
        block, _ = self._unused.popitem(last=False)
        del self._blocks[self._digests.pop(block)]
        self.allocator.release(block)
