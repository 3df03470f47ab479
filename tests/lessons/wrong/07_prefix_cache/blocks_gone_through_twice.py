"""Blocks are a list, of course.

Words: which can be gone through only once
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def share(self, blocks):
        self.allocator.share(blocks)
        for block in blocks:
            self._unused.pop(block, None)
