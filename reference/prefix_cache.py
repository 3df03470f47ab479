"""Find the blocks of a prompt whose keys and values an earlier request has already computed.

prefix_chain.py names a full block by a chain: its tokens, and the link of the block before it. The cache maps
these links to physical blocks. A block that no table names stays findable until the pool needs it. The least
recently used block is evicted first.
No kernel twin: every engine keeps this on the host. Lesson: lessons/07_prefix_cache, part 2.
Page: docs/concepts/prefix_cache.md.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from .allocator import BlockAllocator, OutOfBlocksError
from .prefix_chain import Prefix, PrefixChain


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
