"""What is cached is no room.

Words: cached ones can be handed out
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def allocate(self, num_blocks=1):
        return self.allocator.allocate(num_blocks)
