"""A token id is a byte.

Words: more than one byte
"""

from hashlib import sha256

from minipaged.reference.prefix_cache import PrefixCache, PrefixChain  # noqa: F401


def chain_hash(parent_digest, content):
    if parent_digest is None:
        return sha256(repr(content).encode()).digest()
    return sha256(parent_digest + bytes(token % 256 for token in content)).digest()
