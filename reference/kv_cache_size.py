"""What the KV cache costs: bytes per token, blocks that fit, and the share that reservation wastes.

Every token leaves a key and a value in every layer, for as long as its sequence lives. The number of tokens
that fit decides how many requests can run at once. A reserved slot that is empty serves nobody.
No kernel twin: arithmetic. Lesson: lessons/01_kv_cache_size. Page: docs/concepts/kv_cache.md.
"""

from __future__ import annotations

from collections.abc import Collection

from .block_table import check_block_size, num_blocks_for


def bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_value: int) -> int:
    """Bytes that one token takes: a key and a value, for each layer and KV head (paper section 3).

    2 * num_layers * num_kv_heads * head_dim * bytes_per_value. `num_kv_heads` counts the heads that are
    stored: fewer than those of the query under grouped-query attention, 1 under multi-query attention.
    """
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_value


def token_address(
    block: int,
    layer: int,
    kv: int,
    offset: int,
    *,
    num_layers: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    bytes_per_value: int,
) -> int:
    """Byte address, from the start of a block-major pool, of one token's K (kv=0) or V (kv=1).

    The pool is [num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim]. Within one layer's K or V
    this is the paper's formula: base(block) + offset * num_kv_heads * head_dim * bytes_per_value.
    """
    token_bytes = num_kv_heads * head_dim * bytes_per_value
    base = ((block * num_layers + layer) * 2 + kv) * block_size * token_bytes
    return base + offset * token_bytes


def blocks_that_fit(memory: int, block_size: int, token_bytes: int) -> int:
    """Whole blocks of `block_size` tokens, each of `token_bytes` bytes, in `memory` bytes.

    Raises ValueError for a block size that is not a positive integer.
    """
    check_block_size(block_size)
    return memory // (block_size * token_bytes)


def slots_reserved(lengths: Collection[int], max_length: int) -> int:
    """Slots taken if each request reserves `max_length` slots at its start.

    lengths: tokens of each request. Raises ValueError for a request that is longer than `max_length`.
    """
    if lengths and max(lengths) > max_length:
        raise ValueError(f"a request has {max(lengths)} tokens, max_length is {max_length}")
    return len(lengths) * max_length


def slots_paged(lengths: Collection[int], block_size: int) -> int:
    """Slots taken if each request takes blocks as it grows: only its last block may have empty slots.

    lengths: tokens of each request. Raises ValueError for a block size that is not a positive integer.
    """
    check_block_size(block_size)
    return sum(num_blocks_for(length, block_size) * block_size for length in lengths)


def share_wasted(lengths: Collection[int], num_slots: int) -> float:
    """The share, 0.0 to 1.0, of the `num_slots` taken slots that hold no token.

    lengths: tokens of each request. Returns 0.0 if no slot is taken.
    """
    return (num_slots - sum(lengths)) / num_slots if num_slots else 0.0
