"""Link i of the list is that of block i.

Words: _links begins with the root
"""

from minipaged.reference.prefix_cache import PrefixCache, chain_hash  # noqa: F401
from minipaged.reference.prefix_cache import PrefixChain as Right


class PrefixChain(Right):
    def __getitem__(self, index):
        super().__getitem__(index)
        return self._links[index]
