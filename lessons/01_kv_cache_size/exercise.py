"""1. The size of the KV cache: what one token costs, how many blocks fit, and how much reservation wastes

README.md explains it. Write each body that raises NotImplementedError; the rest is given.
Grade it: pytest lessons/01_kv_cache_size    A hint: minipaged lessons hint 1
"""

from __future__ import annotations

from collections.abc import Collection

from minipaged.reference.block_table import check_block_size, num_blocks_for


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Bytes that one token takes: a key and a value, for each layer and KV head (paper section 3).

    2 * num_layers * num_kv_heads * head_dim * bytes_per_value. `num_kv_heads` counts the heads that are
    stored: fewer than those of the query under grouped-query attention, 1 under multi-query attention.
    """
    raise NotImplementedError


def blocks_that_fit(memory: int, block_size: int, token_bytes: int) -> int:
    """Whole blocks of `block_size` tokens, each of `token_bytes` bytes, in `memory` bytes.

    Raises ValueError for a block size that is not a positive integer.
    """
    raise NotImplementedError


def slots_reserved(lengths: Collection[int], max_length: int) -> int:
    """Slots taken if each request reserves `max_length` slots at its start.

    lengths: tokens of each request. Raises ValueError for a request that is longer than `max_length`.
    """
    raise NotImplementedError


def slots_paged(lengths: Collection[int], block_size: int) -> int:
    """Slots taken if each request takes blocks as it grows: only its last block may have empty slots.

    lengths: tokens of each request. Raises ValueError for a block size that is not a positive integer.
    """
    raise NotImplementedError


def share_wasted(lengths: Collection[int], num_slots: int) -> float:
    """The share, 0.0 to 1.0, of the `num_slots` taken slots that hold no token.

    lengths: tokens of each request. Returns 0.0 if no slot is taken.
    """
    raise NotImplementedError
