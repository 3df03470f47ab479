"""All freed blocks are kept in line, whoever else uses them.

Words: one user is left: not cached
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def free(self, blocks):
        unused = self.allocator.free(blocks)
        self._keep(reversed(blocks))
        return unused
