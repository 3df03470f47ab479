"""As many are evicted as are asked for.

Words: no more are evicted than are missing
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def allocate(self, num_blocks=1):
        if num_blocks <= self.num_available and self.allocator.num_free < num_blocks:
            for _ in range(min(num_blocks, len(self._unused))):
                self._evict()
        return super().allocate(num_blocks)
