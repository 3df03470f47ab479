"""A block is known by its own tokens.

Words: the hash isn't chained, the block alone
"""

from array import array
from hashlib import sha256

from minipaged.reference.prefix_cache import PrefixCache, PrefixChain  # noqa: F401


def chain_hash(parent_digest, content):
    if parent_digest is None:
        return sha256(repr(content).encode()).digest()
    return sha256(array("q", content).tobytes()).digest()
