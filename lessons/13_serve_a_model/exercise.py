"""13. Serve a real model: run a real engine on your block table, allocator and copy-on-write

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/13_serve_a_model    A hint: minipaged lessons hint 13
"""

from __future__ import annotations

from minipaged.engine.parts import REFERENCE, Parts
from minipaged.engine.request import Sequence
from minipaged.reference.block_table import BlockTable
from minipaged.reference.prefix_chain import PrefixChain


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

    def append_slot(self, sequence: Sequence) -> tuple[int, int] | None:
        """Give the newest token of `sequence`, if it has no slot yet, one in a block of its own.

        The token goes into the last block where that has an empty slot, else into a new block. Returns the
        pair (source, destination) where a shared block must be copied first, else None. Raises
        OutOfBlocksError with nothing changed.
        """
        raise NotImplementedError

    def fork(self, sequence: Sequence) -> BlockTable:
        """A table of its own that names the same blocks, for a sequence that begins like this one."""
        raise NotImplementedError

    def publish(self, sequence: Sequence, num_computed_tokens: int) -> None:
        """Set the sequence's `num_computed_tokens`, now that K and V of so many are written.

        Blocks that they fill become findable; those that were full before are published already. Without
        prefix caching nothing is published, and the number is set all the same.
        """
        raise NotImplementedError

    def free(self, sequence: Sequence) -> None:
        """Give up all blocks of `sequence`: its table is empty then, and none of its tokens is computed.

        The blocks of one that is swapped out (`on_host`) are of the host pool and go back there, and it is on
        the host no more. Calling it again changes nothing.
        """
        raise NotImplementedError
