"""The tokens' digests are combined in a way that forgets their order.

Words: order counts
"""

from hashlib import sha256

from minipaged.reference.prefix_cache import PrefixCache, PrefixChain  # noqa: F401


def chain_hash(parent_digest, content):
    if parent_digest is None:
        return sha256(repr(content).encode()).digest()
    return sha256(parent_digest + repr(sorted(content)).encode()).digest()
