"""Equal digests mean equal tokens.

Words: the hash was trusted, same_tokens
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def _find(self, chain, index):
        known = self._blocks.get(chain[index].digest)
        return None if known is None else known[1]
