"""The chain adopts the known link before its tokens have been compared.

Words: only once its tokens have been compared
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def _find(self, chain, index):
        link = chain[index]
        if link.digest not in self._blocks:
            return None
        known, block = self._blocks[link.digest]
        same = known.same_tokens(link)
        chain.adopt(index, known)
        return block if same else None
