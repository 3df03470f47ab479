"""Two worlds that must agree: plain Python over lists, and the kernels over tensors.

A world is a pool with its allocator, its prefix cache and its host pool, behind one list-based interface.
Both worlds are told the same things; tests compare their bookkeeping exactly and their contents to the bit.
Freed blocks are poisoned with NaN at once, so that whoever still needed them is found out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from minipaged.kernels import allocator as device
from minipaged.kernels import attention as device_attention
from minipaged.kernels import attention_cpu, beam_search, block_table, copy_on_write, swap
from minipaged.reference import attention
from minipaged.reference import beam_search as reference_beam_search
from minipaged.reference import copy_on_write as reference_copies
from minipaged.reference import swap as reference_swap
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.block_table import BlockTable, slot_mapping, write_kv
from minipaged.reference.prefix_cache import PrefixCache

# Without a GPU, Triton interprets and Numba simulates.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN = math.nan
Vector = list[float]


def ids(blocks: Sequence[int]) -> Tensor:
    """Block ids as kernels take them."""
    return torch.tensor(list(blocks), dtype=torch.int32, device=DEVICE)


class DeviceAllocator:
    """The device's allocator in the reference's clothes: lists in, lists out, refusals as its errors."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = device.BlockAllocator(num_blocks, DEVICE)
        self.num_blocks = num_blocks
        self.retain, self.release = self.blocks.retain, self.blocks.release
        self.reference_count, self.free_order = self.blocks.reference_count, self.blocks.free_order

    @property
    def num_free(self) -> int:
        return self.blocks.num_free

    @property
    def num_available(self) -> int:
        return self.num_free

    @property
    def num_in_use(self) -> int:
        return self.blocks.num_in_use

    @property
    def num_cached(self) -> int:
        return self.blocks.num_cached

    def allocate(self, num_blocks: int = 1) -> list[int]:
        if num_blocks == 0:  # a launch is not worth its time under interpretation
            return []
        table = ids([-1] * num_blocks).unsqueeze(0)
        missing = int(self.blocks.allocate(ids([num_blocks]), table, ids([0])))
        if missing:
            raise OutOfBlocksError(num_blocks, num_blocks - missing)
        return table[0, :num_blocks].tolist()

    def share(self, blocks: Sequence[int]) -> None:
        if blocks and (refused := int(self.blocks.share(ids(blocks)))):
            raise ValueError(f"{refused} of {blocks} are free")

    def free(self, blocks: Sequence[int]) -> list[int]:
        unused, refused = self.blocks.free(ids(blocks))
        if refused:
            raise ValueError(f"double free: {int(refused)} in {blocks}")
        return unused[unused >= 0].tolist()


class World(ABC):
    """A pool of one layer and one KV head, and all that keeps account of it."""

    allocator: BlockAllocator | DeviceAllocator
    host_allocator: BlockAllocator | DeviceAllocator

    def __init__(self, block_size: int, head_dim: int) -> None:
        self.block_size = block_size
        self.head_dim = head_dim
        self.cache = PrefixCache(self.allocator)  # type: ignore[arg-type]
        self.copies: list[tuple[int, int]] = []  # all that were ever asked for

    def free(self, blocks: Sequence[int]) -> list[int]:
        """Give up a table, and poison what is free now."""
        unused = self.cache.free(blocks)
        self.poison(self.allocator.free_order())
        return unused

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table over the same blocks."""
        self.cache.share(table.blocks)
        return table.fork()

    def append_slot(self, table: BlockTable) -> None:
        """Make room for one more token: a copy of a shared last block, or a new block."""
        if table.num_empty_slots:
            pair = reference_copies.copy_on_write(table.blocks, len(table) - 1, self.cache)
            self.copy([pair] if pair else [])
            table.append(1)
        else:
            table.append(1, self.cache.allocate(1))

    def make_room(self, num_blocks: int) -> None:
        """Evict cached blocks until so many are free, or none is cached any more."""
        while self.allocator.num_free < num_blocks and self.allocator.num_cached:
            self.cache._evict()
        self.poison(self.allocator.free_order())

    def swap_out(self, tables: list[list[int]]) -> list[tuple[int, int]]:
        """Move tables to the host pool, contents too."""
        pairs = reference_swap.swap_out(tables, self.cache, self.host_allocator)
        self.move(pairs, to_host=True)
        self.poison(self.allocator.free_order())
        return pairs

    def swap_in(self, tables: list[list[int]], resident: dict[int, int]) -> list[tuple[int, int]]:
        """Move tables back."""
        pairs = reference_swap.swap_in(tables, self.cache, self.host_allocator, resident)
        self.move(pairs, to_host=False)
        return pairs

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy blocks within the pool, and remember that it was asked for."""
        self.copies += pairs
        self.copy_blocks([pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def state(self) -> tuple[object, ...]:
        """The bookkeeping, to be equal in both worlds."""
        pools = (self.allocator, self.host_allocator)
        counts = [[pool.reference_count(block) for block in range(pool.num_blocks)] for pool in pools]
        return counts, [pool.free_order() for pool in pools], list(self.cache._unused), self.copies

    @abstractmethod
    def reorder(self, tables: list[BlockTable], parents: list[int]) -> list[BlockTable]:
        """Reorder beams, copies included. The caller has seen to it that nothing need be evicted."""

    @abstractmethod
    def write(
        self, table: BlockTable, positions: Sequence[int], keys: list[Vector], values: list[Vector]
    ) -> None:
        """Write the K and V of tokens to their slots."""

    @abstractmethod
    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        """Copy whole blocks within the pool."""

    @abstractmethod
    def move(self, pairs: list[tuple[int, int]], to_host: bool) -> None:
        """Copy whole blocks between the pool and the host's."""

    @abstractmethod
    def poison(self, blocks: Sequence[int]) -> None:
        """Fill blocks with NaN."""

    @abstractmethod
    def read(self, table: BlockTable) -> list[list[Vector]]:
        """[K and V][position][head_dim] of a table's tokens."""

    @abstractmethod
    def attend(self, query: list[Vector], table: BlockTable) -> list[Vector]:
        """Attention of one query [num_heads][head_dim] over all tokens of a table."""


class ReferenceWorld(World):
    """Plain Python: the pool is a list of blocks, a block is [K, V], each a list of slots."""

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, head_dim: int) -> None:
        self.allocator = BlockAllocator(num_blocks)
        self.host_allocator = BlockAllocator(num_host_blocks)
        super().__init__(block_size, head_dim)
        self.pool = [self._nothing() for _ in range(num_blocks)]
        self.host_pool = [self._nothing() for _ in range(num_host_blocks)]

    def _nothing(self) -> list[list[list[Vector]]]:
        return [[[[NAN] * self.head_dim] for _ in range(self.block_size)] for _ in range(2)]

    def reorder(self, tables: list[BlockTable], parents: list[int]) -> list[BlockTable]:
        new_tables, pairs = reference_beam_search.reorder_beams(tables, parents, self.cache)
        self.copy(pairs)
        self.poison(self.allocator.free_order())
        return new_tables

    def write(
        self, table: BlockTable, positions: Sequence[int], keys: list[Vector], values: list[Vector]
    ) -> None:
        key_cache, value_cache = ([block[kv] for block in self.pool] for kv in (0, 1))
        slots = slot_mapping(table.blocks, positions, self.block_size)
        write_kv([[key] for key in keys], [[value] for value in values], key_cache, value_cache, slots)

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        reference_copies.copy_blocks(self.pool, sources, destinations)

    def move(self, pairs: list[tuple[int, int]], to_host: bool) -> None:
        pools = (self.pool, self.host_pool) if to_host else (self.host_pool, self.pool)
        reference_swap.swap_blocks(*pools, [pair[0] for pair in pairs], [pair[1] for pair in pairs])

    def poison(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.pool[block] = self._nothing()

    def read(self, table: BlockTable) -> list[list[Vector]]:
        places = [divmod(slot, self.block_size) for slot in map(table.slot, range(table.num_tokens))]
        return [[self.pool[block][kv][offset][0] for block, offset in places] for kv in (0, 1)]

    def attend(self, query: list[Vector], table: BlockTable) -> list[Vector]:
        key_cache, value_cache = ([block[kv] for block in self.pool] for kv in (0, 1))
        return attention.decode_attention(
            query, key_cache, value_cache, table.blocks, table.num_tokens, scale=0.5
        )


class KernelWorld(World):
    """Tensors: allocator and beams by Triton, copies and swaps by Numba; attention as the engine has it."""

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, head_dim: int) -> None:
        self.allocator = DeviceAllocator(num_blocks)
        self.host_allocator = DeviceAllocator(num_host_blocks)
        super().__init__(block_size, head_dim)
        shape = (1, 2, block_size, 1, head_dim)
        self.pool = torch.full((num_blocks, *shape), NAN, dtype=torch.float64, device=DEVICE)
        self.host_pool = swap.host_pool(self.pool, num_host_blocks)

    def reorder(self, tables: list[BlockTable], parents: list[int]) -> list[BlockTable]:
        width = max([len(table) for table in tables], default=0) + 1
        rows = torch.full((len(tables), width), -1, dtype=torch.int32, device=DEVICE)
        for row, table in enumerate(tables):
            rows[row, : len(table)] = ids(table.blocks)
        lengths = ids([table.num_tokens for table in tables])
        done = beam_search.reorder_beams(rows, ids(parents), self.allocator.blocks, lengths, self.block_size)
        if missing := int(done.refused):
            raise OutOfBlocksError(missing, 0) if missing > 0 else ValueError(f"parents: {parents}")
        self.cache._keep(done.unused[done.unused >= 0].tolist())
        pairs = zip(done.sources.tolist(), done.destinations.tolist(), strict=True)
        self.copy([pair for pair in pairs if pair[0] >= 0])
        self.poison(self.allocator.free_order())
        return [
            BlockTable(self.block_size, [block for block in row if block >= 0], length)
            for row, length in zip(done.block_tables.tolist(), done.num_tokens.tolist(), strict=True)
        ]

    def write(
        self, table: BlockTable, positions: Sequence[int], keys: list[Vector], values: list[Vector]
    ) -> None:
        if not keys:
            return
        key_cache, value_cache = self.pool[:, 0, 0], self.pool[:, 0, 1]
        rows = ids(table.blocks).unsqueeze(0)
        where = ids(positions)
        slots = block_table.launch_slot_mapping(rows, where, torch.zeros_like(where), self.block_size)
        tokens = (self.pool.new_tensor(vectors).unsqueeze(1) for vectors in (keys, values))
        block_table.launch_write_kv(*tokens, key_cache, value_cache, slots)

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        if self.pool.is_cuda:
            copy_on_write.copy_blocks(self.pool, sources, destinations)
        elif sources:
            pairs = np.array([sources, destinations], dtype=np.int64).T.copy()
            words = copy_on_write.as_words(self.pool).numpy()
            copy_on_write.launch_copy_blocks(words, words, pairs)

    def move(self, pairs: list[tuple[int, int]], to_host: bool) -> None:
        pools = (self.pool, self.host_pool) if to_host else (self.host_pool, self.pool)
        if self.pool.is_cuda:
            swap.swap_blocks(*pools, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        elif pairs:
            words = [copy_on_write.as_words(pool).numpy() for pool in pools]
            copy_on_write.launch_copy_blocks(*words, np.array(pairs, dtype=np.int64))

    def poison(self, blocks: Sequence[int]) -> None:
        self.pool[list(blocks)] = NAN

    def read(self, table: BlockTable) -> list[list[Vector]]:
        slots = [table.slot(position) for position in range(table.num_tokens)]
        return [self.pool[:, 0, kv].flatten(0, 1)[slots, 0].tolist() for kv in (0, 1)]

    def attend(self, query: list[Vector], table: BlockTable) -> list[Vector]:
        decode = (device_attention if self.pool.is_cuda else attention_cpu).decode_attention
        output = decode(
            self.pool.new_tensor([query]),
            self.pool[:, 0, 0],
            self.pool[:, 0, 1],
            ids(table.blocks).unsqueeze(0),
            ids([table.num_tokens]),
            scale=0.5,
        )
        return output[0].tolist()


class Bookkeeping:
    """Mixed into a world: it keeps account and moves nothing, which is some fifty times faster."""

    def write(self, *_: object) -> None:
        """Leave the pool alone."""

    def copy_blocks(self, *_: object) -> None:
        """Leave the pool alone."""

    def move(self, *_: object, to_host: bool) -> None:
        """Leave the pool alone."""

    def poison(self, *_: object) -> None:
        """Leave the pool alone."""
