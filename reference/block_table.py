"""Translate a token's position in its sequence into its place in the pool, as a page table does.

A sequence believes that its tokens lie side by side. Its block table says where they really are: entry i
names the physical block of positions i * block_size to (i + 1) * block_size - 1.
Twin: kernels/block_table.py. Lesson: lessons/02_block_table. Page: docs/concepts/block_table.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any


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
        return len(self.blocks) * self.block_size - self.num_tokens

    @property
    def last_block_length(self) -> int:
        """Tokens in the last block: 1 to block_size, and 0 only for an empty table."""
        return self.num_tokens - max(len(self.blocks) - 1, 0) * self.block_size

    def num_blocks_needed(self, num_new_tokens: int) -> int:
        """Blocks that must be added before `num_new_tokens` more tokens fit."""
        return num_blocks_for(self.num_tokens + num_new_tokens, self.block_size) - len(self.blocks)

    def append(self, num_new_tokens: int, new_blocks: Iterable[int] = ()) -> None:
        """Give `num_new_tokens` more tokens a slot, with exactly the `new_blocks` they need.

        Raises ValueError, and changes nothing, for any other number of blocks and for tokens below 0.
        """
        _check_not_negative("num_new_tokens", num_new_tokens)
        new_blocks = list(new_blocks)
        needed = self.num_blocks_needed(num_new_tokens)
        if len(new_blocks) != needed:
            raise ValueError(
                f"appending {num_new_tokens} tokens to {self.num_tokens} needs {needed} new blocks, "
                f"got {len(new_blocks)}"
            )
        self.blocks.extend(new_blocks)
        self.num_tokens += num_new_tokens

    def slot(self, position: int) -> int:
        """Return the slot of the token at `position`: block * block_size + offset.

        Raises IndexError for a position without a token, even if the last block has a slot for it.
        """
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"position {position} is outside the {self.num_tokens} tokens of this sequence")
        return slot_mapping(self.blocks, [position], self.block_size)[0]

    def fork(self) -> BlockTable:
        """A second table that names the same blocks. The caller raises their counts."""
        return BlockTable(self.block_size, self.blocks, self.num_tokens)


def check_positive(name: str, value: int) -> None:
    """Raise ValueError unless `value` is a positive integer."""
    if not _is_integer(value) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")


def check_block_size(block_size: int) -> None:
    """Raise ValueError unless `block_size` is a positive integer. It need not be a power of two."""
    check_positive("block_size", block_size)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # to Python True is an integer too


def _check_not_negative(name: str, value: int) -> None:
    if not _is_integer(value):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: the quotient, rounded up."""
    return -(-num_tokens // block_size)


def slot_mapping(block_table: Sequence[int], positions: Iterable[int], block_size: int) -> list[int]:
    """Translate positions of one sequence into slots: slot = block * block_size + offset.

    `block_table` is the list of block ids of one sequence. Raises IndexError beyond the table. Raises
    ValueError for an entry below 0: that is padding, and its last slot would look like -1, the slot to skip.
    """
    check_block_size(block_size)
    slots = []
    for position in positions:
        index, offset = divmod(position, block_size)
        if not 0 <= index < len(block_table):
            raise IndexError(f"position {position} is beyond a table of {len(block_table)} blocks")
        if block_table[index] < 0:
            raise ValueError(f"entry {index} of the block table is {block_table[index]}: not a block")
        slots.append(block_table[index] * block_size + offset)
    return slots


def write_kv(
    keys: Sequence[Any], values: Sequence[Any], key_cache: Any, value_cache: Any, slots: Sequence[int]
) -> None:
    """Store the K and V of new tokens in the slots that `slot_mapping` gave them.

    keys, values: one entry per token, [num_kv_heads][head_dim]. key_cache, value_cache:
    [num_blocks][block_size][num_kv_heads][head_dim], changed in place. A slot of -1 is skipped: padding.
    Raises ValueError, and writes nothing, where a slot is outside the cache or the lengths differ.
    """
    if not len(keys) == len(values) == len(slots):
        raise ValueError(f"{len(keys)} keys, {len(values)} values and {len(slots)} slots: must be as many")
    block_size = len(key_cache[0])
    num_slots = len(key_cache) * block_size
    for slot in slots:
        if not -1 <= slot < num_slots:
            raise ValueError(f"slot {slot} is outside the {num_slots} slots of the cache (-1 means skip)")
    for key, value, slot in zip(keys, values, slots, strict=True):
        if slot >= 0:
            block, offset = divmod(slot, block_size)
            key_cache[block][offset] = deepcopy(key)  # the caller may use its buffer again
            value_cache[block][offset] = deepcopy(value)
