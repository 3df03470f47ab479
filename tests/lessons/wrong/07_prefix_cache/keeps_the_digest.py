"""The evicted block's prefix is forgotten, the block's digest is not.

Words: recycled block keeps its old entry
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def _evict(self):
        block, _ = self._unused.popitem(last=False)
        del self._blocks[self._digests[block]]
        self.allocator.release(block)
