"""Blocks leave the line, and then the allocator is asked.

Words: before the allocator had its say
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def share(self, blocks):
        blocks = list(blocks)
        for block in blocks:
            self._unused.pop(block, None)
        self.allocator.share(blocks)
