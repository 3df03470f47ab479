"""Blocks are kept in the order of the table.

Words: the head is evicted before the tail
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def free(self, blocks):
        unused = self.allocator.free(blocks)
        self._keep(reversed(unused))
        return unused
