"""The classes and functions that keep the blocks, as one argument: a reader's own can take their place.

`LLM(parts=Parts(allocator_class=MyAllocator))` serves a real model with MyAllocator.
Lesson: lessons/13_serve_a_model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..reference.allocator import BlockAllocator
from ..reference.beam_search import fork_beams
from ..reference.block_table import BlockTable
from ..reference.copy_on_write import copy_on_write
from ..reference.prefix_cache import PrefixCache
from ..reference.swap import swap_in, swap_out


@dataclass(frozen=True)
class Parts:
    """What keeps the blocks: minipaged.reference's own, or others with the same arguments and promises."""

    allocator_class: type[BlockAllocator] = BlockAllocator
    block_table_class: type[BlockTable] = BlockTable
    prefix_cache_class: type[PrefixCache] = PrefixCache
    copy_on_write: Callable[..., tuple[int, int] | None] = copy_on_write
    fork_beams: Callable[..., list[BlockTable]] = fork_beams
    swap_out: Callable[..., list[tuple[int, int]]] = swap_out
    swap_in: Callable[..., list[tuple[int, int]]] = swap_in


REFERENCE = Parts()
