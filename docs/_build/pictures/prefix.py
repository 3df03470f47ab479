"""A picture of the prefix cache: blocks known by a chain of hashes, and the line for eviction."""

from __future__ import annotations

from typing import NamedTuple

from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.prefix_cache import PrefixCache, PrefixChain

from .svg import Drawing, Point

SYSTEM = "You are a kind teacher and be brief"
PROMPTS = (f"{SYSTEM} What is a page table", f"{SYSTEM} Why is the sky blue")
BLOCK_SIZE, NUM_BLOCKS, WANTED = 4, 6, 3


class Known(NamedTuple):
    """A full block of a prompt: its words, the beginning of its hash, and its physical block."""

    words: str
    digest: str
    block: int


class Scene(NamedTuple):
    """The cache when both prompts have ended."""

    chains: list[list[Known]]
    cached: list[int]  # the next to be evicted first
    free: list[int]
    evicted: list[int]  # by a request for WANTED blocks


def scene() -> Scene:
    """Serve two prompts that begin alike, one after the other, in a pool that others have used."""
    pool = BlockAllocator(NUM_BLOCKS)
    pool.allocate(NUM_BLOCKS)
    pool.free([4, 1, 5, 0, 3, 2])
    cache, chains = PrefixCache(pool), []
    words = sorted({word for prompt in PROMPTS for word in prompt.split()})
    for prompt in PROMPTS:
        spoken = prompt.split()
        chain = PrefixChain([words.index(word) for word in spoken], BLOCK_SIZE)
        found = cache.lookup(chain)
        cache.share(found)
        blocks = found + cache.allocate(-(-len(spoken) // BLOCK_SIZE) - len(found))
        full = len(spoken) // BLOCK_SIZE
        parts = [" ".join(spoken[i : i + BLOCK_SIZE]) for i in range(0, len(spoken), BLOCK_SIZE)]
        cache.publish(chain, blocks, len(found), full)
        cache.free(blocks)
        chains.append([Known(parts[i], chain[i].digest.hex()[:6], blocks[i]) for i in range(full)])
    cached, free = cache.cached_blocks, pool.free_order()
    cache.allocate(WANTED)
    return Scene(chains, cached, free, [block for block in cached if block not in cache.cached_blocks])


def chain(drawing: Drawing) -> str:
    """Two prompts share a chain of hashes; unused blocks wait in line to be evicted."""
    now = scene()
    first, second = now.chains
    shared = [known for known, other in zip(first, second, strict=True) if known == other]
    ends = (first[len(shared) :], second[len(shared) :])
    (_chain_narrow if drawing.is_narrow else _chain_wide)(drawing, shared, ends)
    y = drawing.height + 34
    drawing.text((0, y), "Used by nobody: evicted from the left", "bold")
    pitch = 62
    for number, block in enumerate(now.cached):
        gone = block in now.evicted
        drawing.label((number * pitch, y + 20), (46, 34), str(block), "lit" if gone else "cached", "bold")
        if number:
            drawing.arrow([(number * pitch - 2, y + 37), (number * pitch - 14, y + 37)])
    drawing.text((0, y + 70), "least recently used, tails before heads", "quiet small")
    words = f"A request for {WANTED} blocks takes {_list(now.free)}, free, and evicts {_list(now.evicted)}."
    lines = (
        [words]
        if not drawing.is_narrow
        else [words.partition(" takes ")[0], "takes " + words.partition(" takes ")[2]]
    )
    for number, line in enumerate(lines):
        drawing.text((0, y + 94 + 20 * number), line, "accent")
    told = [
        f"block {each.block} holds “{each.words}” under hash {each.digest}"
        for each in [*shared, *ends[0], *ends[1]]
    ]
    return (
        f"Each hash is made of the one before it and the block's own tokens: {', '.join(told)}. Both prompts "
        f"share the first {len(shared)} blocks. In line for eviction: {_list(now.cached)}. {words}"
    )


def _list(blocks: list[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, blocks[:-1])), str(blocks[-1])]))


def _node(drawing: Drawing, corner: Point, known: Known, width: float = 150) -> None:
    """A link of the chain above the block it finds."""
    x, y = corner
    drawing.label((x, y), (width, 46), [known.words, f"hash {known.digest}"], "h0", "small")
    drawing.label((x + width / 2 - 55, y + 46), (110, 22), f"physical block {known.block}", "plate", "tiny")


def _chain_wide(drawing: Drawing, shared: list[Known], ends: tuple[list[Known], list[Known]]) -> None:
    """From left to right: the root, what both share, and two branches."""
    drawing.label((0, 77), (80, 46), ["root", "hash of salt"], "plate", "tiny")
    x = 80.0
    for known in shared:
        drawing.arrow([(x, 100), (x + 30, 100)], "h0")
        _node(drawing, (x + 30, 77), known)
        x += 180
    for number, branch in enumerate(ends):
        y = 24 + number * 112
        drawing.text((x + 50, y - 12), f"prompt {'AB'[number]}", "quiet small")
        drawing.curve((x, 100), (x + 50, y + 23), "h0")
        for known in branch:
            _node(drawing, (x + 50, y), known)


def _chain_narrow(drawing: Drawing, shared: list[Known], ends: tuple[list[Known], list[Known]]) -> None:
    """From top to bottom: the root, what both share, and two branches side by side."""
    drawing.label((125, 0), (100, 40), ["root", "hash of salt"], "plate", "tiny")
    y = 40.0
    for known in shared:
        drawing.arrow([(175, y), (175, y + 24)], "h0")
        _node(drawing, (95, y + 24), known, 160)
        y += 92
    for number, branch in enumerate(ends):
        middle = 82 + number * 186
        drawing.arrow([(175, y), (175, y + 14), (middle, y + 14), (middle, y + 48)], "h0")
        drawing.text((middle + 8, y + 30), f"prompt {'AB'[number]}", "quiet small")
        for known in branch:
            _node(drawing, (middle - 82, y + 48), known, 164)
