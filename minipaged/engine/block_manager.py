"""Keep every sequence's block table, and with it the promise that no block is lost or written by two.

The bookkeeping is `minipaged.reference`'s own: this file only says when a sequence takes, shares, publishes
and gives up blocks. Its parts are an argument, so that a reader's own allocator can serve a real model.
Lesson: lessons/13_serve_a_model. Page: docs/concepts/block_table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from ..reference.allocator import BlockAllocator, OutOfBlocksError
from ..reference.beam_search import copies_needed, fork_beams
from ..reference.block_table import BlockTable, num_blocks_for
from ..reference.copy_on_write import copy_on_write, num_available_after
from ..reference.prefix_cache import PrefixCache, PrefixChain
from ..reference.swap import swap_in, swap_out
from .pool_check import check_pool
from .request import Sequence


@dataclass(frozen=True)
class Parts:
    """Who keeps the books: the classes and functions of minipaged.reference, or others in their place.

    Each has the name, the arguments and the promises of the one that it stands for.
    """

    allocator_class: type[BlockAllocator] = BlockAllocator
    block_table_class: type[BlockTable] = BlockTable
    prefix_cache_class: type[PrefixCache] = PrefixCache
    copy_on_write: Callable[..., tuple[int, int] | None] = copy_on_write
    fork_beams: Callable[..., list[BlockTable]] = fork_beams
    swap_out: Callable[..., list[tuple[int, int]]] = swap_out
    swap_in: Callable[..., list[tuple[int, int]]] = swap_in


REFERENCE = Parts()


class BlockManager:
    """Gives blocks to sequences: all a call needs, or none and OutOfBlocksError."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        num_host_blocks: int = 0,
        enable_prefix_caching: bool = True,
        parts: Parts = REFERENCE,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.parts = parts
        self.allocator = parts.allocator_class(num_blocks)
        self.cache = parts.prefix_cache_class(self.allocator)
        self.host_allocator = parts.allocator_class(num_host_blocks) if num_host_blocks else None

    @property
    def num_available(self) -> int:
        """Blocks that are free, or cached and so evictable."""
        return self.cache.num_available

    def new_table(self) -> BlockTable:
        """An empty block table."""
        return self.parts.block_table_class(self.block_size)

    def new_chain(self, token_ids: list[int], salt: str | None) -> PrefixChain:
        """The prefix chain of a sequence; it reads `token_ids` as that list grows."""
        return PrefixChain(token_ids, self.block_size, salt)

    def admit(self, sequences: SequenceOf[Sequence], num_spare_blocks: int = 0) -> int:
        """Give a slot to every token of a group's sequences, sharing known prefixes and what is common.

        Returns the number of the first one's tokens found in the cache, which need no computation. A later
        sequence shares the full blocks of an earlier one that begins alike: they are computed once, by the
        earlier one, which must not come after it in a step. Raises OutOfBlocksError, with nothing changed,
        where the blocks don't suffice or fewer than `num_spare_blocks` would be left.
        """
        hits = [self._lookup(sequence) for sequence in sequences]
        owners = [self._longest_match(sequences, i, len(hits[i])) for i in range(len(sequences))]
        num_shared = [max(len(hits[i]), owners[i][1]) for i in range(len(sequences))]
        sizes = [num_blocks_for(sequence.num_tokens, self.block_size) for sequence in sequences]
        num_needed = sum(sizes) - sum(num_shared) + num_spare_blocks
        available = num_available_after([block for found in hits for block in found], self.cache)
        if num_needed > available:
            raise OutOfBlocksError(num_needed, available)
        tables: list[list[int]] = []
        taken: list[int] = []
        try:
            for found, (_, matched) in zip(hits, owners, strict=True):  # pinned before anything is evicted
                if not matched:
                    self.cache.share(found)
                    taken += found
            for found, (owner, matched), size in zip(hits, owners, sizes, strict=True):
                begin = tables[owner][:matched] if matched else found
                if matched:
                    self.cache.share(begin)
                    taken += begin
                new = self.cache.allocate(size - len(begin))
                taken += new
                tables.append(begin + new)
        except BaseException:
            self.cache.free(taken)
            raise
        for sequence, blocks, shared in zip(sequences, tables, num_shared, strict=True):
            sequence.table = self.new_table()
            sequence.table.append(sequence.num_tokens, blocks)
            sequence.num_computed_tokens = shared * self.block_size
        return len(hits[0]) * self.block_size

    def append_slot(self, sequence: Sequence) -> tuple[int, int] | None:
        """Give the newest token of `sequence` a slot, in a block that no other sequence has.

        A running sequence has at most one token without a slot: the one that was just sampled. It goes into
        the last block where that has an empty slot, else into a new one. Returns the pair (source,
        destination) where a shared block must be copied first, else None. Where each token has a slot
        already nothing changes, and nothing is copied. Raises OutOfBlocksError with nothing changed.
        """
        table = sequence.table
        num_new_tokens = sequence.num_tokens - table.num_tokens
        needed = table.num_blocks_needed(num_new_tokens)
        copied = None
        if num_new_tokens and table.num_empty_slots:  # it goes into the last block, which may be shared
            copied = self.parts.copy_on_write(table.blocks, len(table.blocks) - 1, self.cache)
        table.append(num_new_tokens, self.cache.allocate(needed) if needed else ())
        return copied

    def fork(self, sequence: Sequence) -> BlockTable:
        """A table of its own that names the same blocks, for a sequence that begins like this one."""
        self.cache.share(sequence.table.blocks)
        return sequence.table.fork()

    def reorder(self, sequences: SequenceOf[Sequence], parents: SequenceOf[int]) -> list[BlockTable]:
        """The tables of new beams, which continue the sequences named by `parents`; the old are given up."""
        tables = self.parts.fork_beams([sequence.table for sequence in sequences], parents, self.cache)
        for sequence in sequences:
            sequence.table = self.new_table()
        return tables

    def swap_out(self, sequences: SequenceOf[Sequence]) -> list[tuple[int, int]]:
        """Move a group's tables to the host pool. Returns the pairs (block, host block) to copy.

        Raises OutOfBlocksError, with nothing changed, where the host pool lacks blocks.
        """
        if self.host_allocator is None:
            raise OutOfBlocksError(sum(len(sequence.table) for sequence in sequences), 0)
        pairs = self.parts.swap_out(
            [each.table.blocks for each in sequences], self.cache, self.host_allocator
        )
        for sequence in sequences:
            sequence.on_host = True
        return pairs

    def swap_in(self, sequences: SequenceOf[Sequence], num_spare_blocks: int = 0) -> list[tuple[int, int]]:
        """Move a group's tables back, with room for a new token each. Returns the pairs (host block, block).

        Blocks that are still in the prefix cache are used as they are, and not copied. Raises
        OutOfBlocksError, with nothing changed, where the blocks don't suffice.
        """
        assert self.host_allocator is not None
        resident: dict[int, int] = {}
        for sequence in sequences:
            resident |= dict(zip(sequence.table.blocks, self._lookup(sequence), strict=False))
        named = {block for sequence in sequences for block in sequence.table.blocks}
        available = num_available_after([resident[block] for block in named & resident.keys()], self.cache)
        num_moved = len(named - resident.keys())
        needed = num_moved + _num_blocks_to_append(sequences, self.host_allocator) + num_spare_blocks
        if needed > available:
            raise OutOfBlocksError(needed, available)
        tables = [sequence.table.blocks for sequence in sequences]
        pairs = self.parts.swap_in(tables, self.cache, self.host_allocator, resident)
        for sequence in sequences:
            sequence.on_host = False
        return pairs

    def publish(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Set the sequence's `num_computed_tokens`, now that K and V of so many are written.

        Blocks that they fill become findable; those that were full before are published already. Without
        prefix caching nothing is published, and the number is set all the same.
        """
        start = sequence.num_computed_tokens // self.block_size
        sequence.num_computed_tokens = num_computed_tokens
        if self.enable_prefix_caching:
            stop = num_computed_tokens // self.block_size
            self.cache.publish(sequence.chain, sequence.table.blocks, start, stop)

    def free(self, sequence: Sequence) -> None:
        """Give up all blocks of `sequence`: its table is empty then, and none of its tokens is computed.

        The blocks of one that is swapped out (`on_host`) are of the host pool and go back there, and it is on
        the host no more. Calling it again changes nothing.
        """
        blocks = sequence.table.blocks
        sequence.table = self.new_table()
        sequence.num_computed_tokens = 0
        if not sequence.on_host:
            self.cache.free(blocks)
        elif self.host_allocator is not None:
            sequence.on_host = False
            self.host_allocator.free(blocks)

    def reset(self, sequences: Iterable[Sequence]) -> None:
        """Make all blocks free again, whatever the counts say; `sequences` are all that hold some."""
        for sequence in sequences:
            sequence.table = self.new_table()
            sequence.num_computed_tokens = 0
            sequence.on_host = False
        self.allocator = self.parts.allocator_class(self.num_blocks)
        self.cache = self.parts.prefix_cache_class(self.allocator)
        if self.host_allocator is not None:
            self.host_allocator = self.parts.allocator_class(self.host_allocator.num_blocks)

    def _lookup(self, sequence: Sequence) -> list[int]:
        return self.cache.lookup(sequence.chain) if self.enable_prefix_caching else []

    def _longest_match(self, sequences: SequenceOf[Sequence], index: int, at_least: int) -> tuple[int, int]:
        """Which earlier sequence of a group begins most like this one, and for how many full blocks.

        (0, 0) where none has more than `at_least` in common. One token is always left to compute.
        """
        tokens, size = sequences[index].token_ids, self.block_size
        best = (0, 0)
        for i, other in enumerate(sequences[:index]):
            end = min((len(tokens) - 1) // size, len(other.token_ids) // size)
            different = (
                b
                for b in range(end)
                if tokens[b * size : (b + 1) * size] != other.token_ids[b * size : (b + 1) * size]
            )
            matched = next(different, end)
            if matched > max(best[1], at_least):
                best = (i, matched)
        return best

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Prove the invariants of the pool against all live `sequences`, or raise BrokenPoolError."""
        sequences = list(sequences)
        tables = [each.table for each in sequences if not each.on_host]
        on_host = [each.table for each in sequences if each.on_host]
        check_pool(self.allocator, tables, self.num_available)
        if self.host_allocator is not None:
            check_pool(self.host_allocator, on_host, self.host_allocator.num_free)


def _num_blocks_to_append(sequences: SequenceOf[Sequence], host_allocator: BlockAllocator) -> int:
    """Blocks that swapped sequences need for tokens without a slot: new ones, and copies of shared ones."""
    growing = [each for each in sequences if each.num_tokens > each.table.num_tokens]
    new = [each.table.num_blocks_needed(each.num_tokens - each.table.num_tokens) for each in growing]
    tables = [each.table for each in growing]
    return sum(new) + copies_needed(tables, range(len(tables)), host_allocator)
