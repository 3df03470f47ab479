"""Each block's link hangs on the root.

Words: each link's parent is the link before it
"""

from minipaged.reference.prefix_cache import Prefix, PrefixCache, chain_hash  # noqa: F401
from minipaged.reference.prefix_cache import PrefixChain as Right


class PrefixChain(Right):
    def __getitem__(self, index):
        if index < 0:
            raise IndexError(index)
        while len(self._links) <= index + 1:
            start = (len(self._links) - 1) * self.block_size
            content = tuple(self.token_ids[start : start + self.block_size])
            if len(content) < self.block_size:
                raise IndexError(index)
            self._links.append(Prefix(self._links[0], content, self._hash))
        return self._links[index + 1]
