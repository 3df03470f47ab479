"""Where the free blocks don't suffice the whole line is evicted.

Words: stop as soon as the allocator has enough free blocks
"""

EDITS = {
    "while self.allocator.num_free < num_blocks:\n            self._evict()": (
        "while self.allocator.num_free < num_blocks and self._unused:\n"
        "            while self._unused:\n"
        "                self._evict()"
    ),
}
