"""Blocks are evicted until they suffice, or none is left.

Words: before it was clear that they don't suffice
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def allocate(self, num_blocks=1):
        while self.allocator.num_free < num_blocks and self._unused:
            self._evict()
        return self.allocator.allocate(num_blocks)
