"""The block's own tokens are compared, and the digest vouches for what was before.

Words: compare the whole chain
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def _find(self, chain, index):
        link = chain[index]
        known = self._blocks.get(link.digest)
        return known[1] if known and known[0].content == link.content else None
