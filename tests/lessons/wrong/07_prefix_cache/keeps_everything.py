"""Whatever was freed stands in line.

Words: only findable blocks are kept
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def free(self, blocks):
        unused = self.allocator.free(blocks)
        for block in unused:
            self._unused[block] = None
        return unused
