"""Python has a hash function already.

Words: hash(2**61) == hash(1), is no digest
"""

from minipaged.reference.prefix_cache import PrefixCache, PrefixChain  # noqa: F401


def chain_hash(parent_digest, content):
    return hash((parent_digest, content))
