"""The links are made from the root on at every call.

Words: made once and kept
"""

from minipaged.reference.prefix_cache import Prefix, PrefixCache, chain_hash  # noqa: F401
from minipaged.reference.prefix_cache import PrefixChain as Right


class PrefixChain(Right):
    def __getitem__(self, index):
        if not 0 <= index < len(self.token_ids) // self.block_size:
            raise IndexError(index)
        link = self._links[0]
        for i in range(index + 1):
            content = tuple(self.token_ids[i * self.block_size : (i + 1) * self.block_size])
            link = Prefix(link, content, self._hash)
        return link
