"""Capital letters make no difference between two salts.

Words: capital letters included
"""

from minipaged.reference import prefix_cache
from minipaged.reference.prefix_cache import PrefixCache, PrefixChain  # noqa: F401


def chain_hash(parent_digest, content):
    if parent_digest is None and content[0] is not None:
        content = (content[0].lower(),)
    return prefix_cache.chain_hash(parent_digest, content)
