"""An evicted block is free, and that is all.

Words: recycled block keeps its old entry
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def _evict(self):
        block, _ = self._unused.popitem(last=False)
        self.allocator.release(block)
