"""Prove that the books of a pool add up: every block free, in use or cached, and never two of these.

With `check_invariants` the engine asks this in every step. Nothing that it looks at is taken for granted, so
that the first thing a wrong allocator or block table does wrong is told in one sentence, by block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..errors import BrokenPoolError
from ..reference.allocator import BlockAllocator
from ..reference.block_table import BlockTable, num_blocks_for


def check_pool(allocator: BlockAllocator, tables: Sequence[BlockTable], num_available: int) -> None:
    """Raise BrokenPoolError unless the allocator's books are what `tables`, all that are alive, say.

    num_available: blocks that can be handed out, with those that a prefix cache can evict.
    """
    num_blocks = allocator.num_blocks
    for table in tables:
        _check_table(table, num_blocks)
    named = Counter(block for table in tables for block in table.blocks)
    for block in range(num_blocks):
        _check_count(block, allocator.reference_count(block), named[block])
    free = allocator.free_order()
    _check_free(free, num_blocks, named)
    if allocator.num_free != len(free):
        raise BrokenPoolError(
            f"num_free is {allocator.num_free}, and the free stack holds {len(free)} blocks"
        )
    if allocator.num_in_use != len(named):
        raise BrokenPoolError(f"num_in_use is {allocator.num_in_use}, and tables name {len(named)} blocks")
    if num_available != allocator.num_free + allocator.num_cached:
        lost = sorted(set(range(num_blocks)) - set(free) - set(named))
        raise BrokenPoolError(
            f"a block is lost: of {num_blocks}, {num_available} can be handed out, {len(named)} are in use; "
            f"neither free nor in use: {lost}"
        )


def _check_table(table: BlockTable, num_blocks: int) -> None:
    """What a block table must be: ids of this pool, none twice, as many as its tokens need."""
    for block in table.blocks:
        if not isinstance(block, int) or not 0 <= block < num_blocks:
            raise BrokenPoolError(f"a block table names block {block!r}: the pool has 0 to {num_blocks - 1}")
    if twice := [block for block, times in Counter(table.blocks).items() if times > 1]:
        raise BrokenPoolError(f"block {twice[0]} has been handed out twice: one table names it twice")
    needed = num_blocks_for(table.num_tokens, table.block_size)
    if len(table.blocks) != needed:
        raise BrokenPoolError(
            f"a block table has {len(table.blocks)} blocks of {table.block_size} for {table.num_tokens} "
            f"tokens: {needed} are needed"
        )


def _check_count(block: int, count: int, named: int) -> None:
    """A block's reference count is the number of table entries that name it."""
    if count == named:
        return
    entries = "1 table entry names" if named == 1 else f"{named} table entries name"
    kind = f"block {block}: its count is {count}"
    if named > 1 and count == 1:
        kind = f"block {block} has been handed out twice, or shared without being counted: its count is 1"
    elif named > count:
        kind = f"block {block} was given up too early: its count is {count}"
    elif named == 0:
        kind = f"block {block} was not given up: its count is {count}"
    raise BrokenPoolError(f"{kind}, {entries} it")


def _check_free(free: Sequence[int], num_blocks: int, named: Counter[int]) -> None:
    """The free stack holds blocks of this pool, each once, and none that a table names."""
    for block, times in Counter(free).items():
        if not 0 <= block < num_blocks:
            raise BrokenPoolError(f"the free stack holds block {block}: the pool has 0 to {num_blocks - 1}")
        if times > 1:
            raise BrokenPoolError(f"block {block} is on the free stack twice: two requests would get it")
        if block in named:
            raise BrokenPoolError(f"block {block} is on the free stack while a table names it")
