"""A whole number that came out of / is taken for an int.

Words: the value is right, is a float, expected an int
"""

from minipaged.reference.block_table import check_block_size
from minipaged.reference.kv_cache_size import bytes_per_token, share_wasted, slots_paged, slots_reserved  # noqa: F401


def blocks_that_fit(memory, block_size, token_bytes):
    check_block_size(block_size)
    block_bytes = block_size * token_bytes
    return (memory - memory % block_bytes) / block_bytes
