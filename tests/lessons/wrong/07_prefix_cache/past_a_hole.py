"""Every block that is known is worth having.

Words: past a hole, first miss
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def lookup(self, chain):
        indices = range((len(chain.token_ids) - 1) // chain.block_size)
        blocks = [self._find(chain, index) for index in indices]
        return [block for block in blocks if block is not None]
