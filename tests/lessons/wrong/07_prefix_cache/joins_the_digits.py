"""The token ids are written one after the other and hashed as text.

Words: where one id ends and the next begins is lost
"""

from hashlib import sha256

from minipaged.reference.prefix_cache import PrefixCache, PrefixChain  # noqa: F401


def chain_hash(parent_digest, content):
    if parent_digest is None:
        return sha256(repr(content).encode()).digest()
    return sha256(parent_digest + "".join(map(str, content)).encode()).digest()
