"""Keep every sequence's block table, and with it the promise that no block is lost or written by two.

The bookkeeping is `minipaged.reference`'s own: this file only says when a sequence takes, shares, publishes
and gives up blocks. Its parts are an argument, so that a reader's own allocator can serve a real model.
Lesson: lessons/13_serve_a_model. Page: docs/concepts/block_table.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import islice, takewhile
from typing import NamedTuple

from ..reference.allocator import BlockAllocator, OutOfBlocksError
from ..reference.beam_search import copies_needed
from ..reference.block_table import BlockTable, num_blocks_for
from ..reference.copy_on_write import num_available_after
from ..reference.prefix_chain import PrefixChain
from .parts import REFERENCE, Parts
from .pool_check import check_pool
from .request import Sequence


class Admission(NamedTuple):
    """How one sequence of a group gets its blocks: it shares the first `num_shared`, and takes new ones."""

    sequence: Sequence
    hits: list[int]  # the blocks that it shares, found in the prefix cache
    owner: Sequence | None  # or the earlier sequence of the group whose blocks it shares
    num_shared: int
    num_blocks: int  # that its tokens fill


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
        sequence shares the full blocks of an earlier one that begins alike: the earlier one computes them,
        and must not come after it in a step. Raises OutOfBlocksError, with nothing changed, where fewer than
        `num_spare_blocks` would be left.
        """
        plan = self._plan(sequences)
        cached = [block for admission in plan for block in admission.hits]
        num_new = sum(admission.num_blocks - admission.num_shared for admission in plan)
        available = num_available_after(cached, self.cache)
        if num_new + num_spare_blocks > available:
            raise OutOfBlocksError(num_new + num_spare_blocks, available)
        self.cache.share(cached)  # before `allocate` evicts them
        new = iter(self.cache.allocate(num_new))
        for sequence, hits, owner, num_shared, num_blocks in plan:
            if owner is not None:
                hits = owner.table.blocks[:num_shared]
                self.cache.share(hits)
            sequence.table = self.new_table()
            sequence.table.append(sequence.num_tokens, [*hits, *islice(new, num_blocks - num_shared)])
            # The owner computes its blocks in this step, in a row before this sequence's.
            sequence.num_computed_tokens = num_shared * self.block_size
        return len(plan[0].hits) * self.block_size

    def append_slot(self, sequence: Sequence) -> tuple[int, int] | None:
        """Give the newest token of `sequence`, if it has no slot yet, one in a block of its own.

        The token goes into the last block where that has an empty slot, else into a new block. Returns the
        pair (source, destination) where a shared block must be copied first, else None. Raises
        OutOfBlocksError with nothing changed.
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
        tables = [sequence.table.blocks for sequence in sequences]
        pairs = self.parts.swap_out(tables, self.cache, self.host_allocator)
        for sequence in sequences:
            sequence.on_host = True
        return pairs

    def swap_in(self, sequences: SequenceOf[Sequence], num_spare_blocks: int = 0) -> list[tuple[int, int]]:
        """Move a group's tables back, with room for a new token each. Returns the pairs (host block, block).

        Blocks that are still in the prefix cache are used as they are, and not copied. Raises
        OutOfBlocksError, with nothing changed, where the blocks don't suffice.
        """
        assert self.host_allocator is not None
        resident: dict[int, int] = {}  # the device block that still holds what a host block holds
        for (
            sequence
        ) in sequences:  # hits end where the first block is unknown: the rest of the table has none
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

    def _plan(self, sequences: SequenceOf[Sequence]) -> list[Admission]:
        """Say for each sequence of a group which blocks it shares. Changes nothing."""
        plan: list[Admission] = []
        for index, sequence in enumerate(sequences):
            num_blocks = num_blocks_for(sequence.num_tokens, self.block_size)
            hits = self._lookup(sequence)
            admission = Admission(sequence, hits, None, len(hits), num_blocks)
            for earlier in sequences[:index]:
                num_common = self._num_common_blocks(sequence.token_ids, earlier.token_ids)
                if num_common > admission.num_shared:
                    admission = Admission(sequence, [], earlier, num_common, num_blocks)
            plan.append(admission)
        return plan

    def _num_common_blocks(self, tokens: list[int], other: list[int]) -> int:
        """Full blocks with which both lists begin. One of the `tokens` is always left to compute."""
        size = self.block_size
        most = min((len(tokens) - 1) // size, len(other) // size)
        common = range(0, most * size, size)
        return sum(1 for _ in takewhile(lambda i: tokens[i : i + size] == other[i : i + size], common))

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Prove the invariants of the pool against all live `sequences`, or raise BrokenPoolError."""
        tables: dict[bool, list[BlockTable]] = {False: [], True: []}  # by whether they are on the host
        for sequence in sequences:
            tables[sequence.on_host].append(sequence.table)
        check_pool(self.allocator, tables[False], self.num_available)
        if self.host_allocator is not None:
            check_pool(self.host_allocator, tables[True], self.host_allocator.num_free)


def _num_blocks_to_append(sequences: SequenceOf[Sequence], host_allocator: BlockAllocator) -> int:
    """Blocks that swapped sequences need for tokens without a slot: new ones, and copies of shared ones.

    Swapping in keeps who shares what, so the host's counts say how many copies there will be.
    """
    growing = [sequence for sequence in sequences if sequence.num_tokens > sequence.table.num_tokens]
    tables = [sequence.table for sequence in growing]
    new = [s.table.num_blocks_needed(s.num_tokens - s.table.num_tokens) for s in growing]
    return sum(new) + copies_needed(tables, range(len(tables)), host_allocator)
