"""What isn't full is left out without a word.

Words: partial block can't be published
"""

from minipaged.reference.prefix_cache import PrefixCache as Right
from minipaged.reference.prefix_cache import PrefixChain, chain_hash  # noqa: F401


class PrefixCache(Right):
    def publish(self, chain, blocks, start, stop):
        super().publish(
            chain, blocks, max(start, 0), min(stop, len(chain.token_ids) // chain.block_size, len(blocks))
        )
