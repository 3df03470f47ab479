"""Blocks are published one by one, until one isn't full.

Words: published before the wrong one was noticed
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def publish(self, chain, blocks, start, stop):
        for index in range(start, stop):
            digest = chain[index].digest
            if self._find(chain, index) is None and digest not in self._blocks:
                self.allocator.retain(blocks[index])
                self._blocks[digest] = (chain[index], blocks[index])
                self._digests[blocks[index]] = digest
