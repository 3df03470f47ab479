"""What there is of a block is its content.

Words: partial block, no link yet
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
            if not content:
                raise IndexError(index)
            self._links.append(Prefix(self._links[-1], content, self._hash))
        return self._links[index + 1]
