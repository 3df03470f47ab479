"""A hit raises the count, and that is all.

Words: must leave the line
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def share(self, blocks):
        self.allocator.share(blocks)
