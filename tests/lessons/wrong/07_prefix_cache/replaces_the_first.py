"""The newest copy of a prefix is the one to be found.

Words: second copy
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def publish(self, chain, blocks, start, stop):
        if start < 0 or stop > min(len(chain.token_ids) // chain.block_size, len(blocks)):
            raise IndexError(stop)
        for index in range(start, stop):
            if blocks[index] in self._digests:
                continue
            digest = chain[index].digest
            self.allocator.retain(blocks[index])
            self._blocks[digest] = (chain[index], blocks[index])
            self._digests[blocks[index]] = digest
