"""popitem() takes an item, and one is as good as another.

Words: least recently used block is evicted first
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def _evict(self):
        block, _ = self._unused.popitem()
        del self._blocks[self._digests.pop(block)]
        self.allocator.release(block)
