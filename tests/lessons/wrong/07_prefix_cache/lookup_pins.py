"""Who looks a prefix up will use it: its blocks are shared at once.

Words: to look is not to touch
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def lookup(self, chain):
        found = super().lookup(chain)
        self.share(found)
        return found
