"""2. The block table: translate a position in a sequence into a slot of the pool, as a page table does

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/02_block_table    A hint: minipaged lessons hint 2
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minipaged.reference.block_table import _check_not_negative, check_block_size


class BlockTable:
    """The blocks of one sequence, and how many of its tokens have a slot in them (paper section 4.3)."""

    def __init__(self, block_size: int, blocks: Iterable[int] = (), num_tokens: int = 0) -> None:
        check_block_size(block_size)
        _check_not_negative("num_tokens", num_tokens)
        self.block_size = block_size
        self.blocks = list(blocks)
        self.num_tokens = num_tokens
        if num_blocks_for(num_tokens, block_size) != len(self.blocks):
            raise ValueError(
                f"num_tokens={num_tokens} needs {num_blocks_for(num_tokens, block_size)} blocks "
                f"of {block_size}, got {len(self.blocks)}"
            )

    def __len__(self) -> int:
        return len(self.blocks)

    def __repr__(self) -> str:
        return f"BlockTable(block_size={self.block_size}, blocks={self.blocks}, num_tokens={self.num_tokens})"

    @property
    def num_empty_slots(self) -> int:
        """Slots that are reserved and hold no token. Paging wastes nothing else, and less than one block."""
        raise NotImplementedError

    @property
    def last_block_length(self) -> int:
        """Tokens in the last block: 1 to block_size, and 0 only for an empty table."""
        raise NotImplementedError

    def num_blocks_needed(self, num_new_tokens: int) -> int:
        """Blocks that must be added before `num_new_tokens` more tokens fit."""
        raise NotImplementedError

    def append(self, num_new_tokens: int, new_blocks: Iterable[int] = ()) -> None:
        """Give `num_new_tokens` more tokens a slot, with exactly the `new_blocks` they need.

        Raises ValueError, and changes nothing, for any other number of blocks and for tokens below 0.
        """
        raise NotImplementedError

    def slot(self, position: int) -> int:
        """Return the slot of the token at `position`: block * block_size + offset.

        Raises IndexError for a position without a token, even if the last block has a slot for it.
        """
        raise NotImplementedError

    def fork(self) -> BlockTable:
        """A second table that names the same blocks. The caller raises their counts."""
        return BlockTable(self.block_size, self.blocks, self.num_tokens)


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: the quotient, rounded up."""
    raise NotImplementedError


def slot_mapping(block_table: Sequence[int], positions: Iterable[int], block_size: int) -> list[int]:
    """Translate positions of one sequence into slots: slot = block * block_size + offset.

    `block_table` is the list of block ids of one sequence. Raises IndexError beyond the table. Raises
    ValueError for an entry below 0: that is padding, and its last slot would look like -1, the slot to skip.
    """
    raise NotImplementedError
