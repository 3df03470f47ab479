"""The root is the root: its digest is the same for all.

Words: the salt is missing
"""

from array import array
from hashlib import sha256

from minipaged.reference.prefix_cache import PrefixCache, PrefixChain  # noqa: F401


def chain_hash(parent_digest, content):
    if parent_digest is None:
        return sha256(b"root").digest()
    return sha256(parent_digest + array("q", content).tobytes()).digest()
