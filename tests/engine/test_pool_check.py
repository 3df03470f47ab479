"""Whatever is wrong with the books of a pool is told by kind and block, and books in order pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minipaged.engine.pool_check import check_pool
from minipaged.errors import BrokenPoolError
from minipaged.reference.allocator import BlockAllocator
from minipaged.reference.block_table import BlockTable


@pytest.fixture
def books() -> tuple[BlockAllocator, list[BlockTable]]:
    """Of 8 blocks, table A has 0 and 1, B shares block 0 and has 2, 3 is cached, and 4 to 7 are free."""
    allocator = BlockAllocator(8)
    first, second, third, fourth = allocator.allocate(4)
    allocator.share([first])
    allocator.retain(fourth)
    allocator.free([fourth])
    return allocator, [BlockTable(4, [first, second], 7), BlockTable(4, [first, third], 5)]


def check(books: tuple[BlockAllocator, list[BlockTable]], num_available: int = 5) -> None:
    check_pool(*books, num_available)


def test_books_in_order_pass(books: tuple[BlockAllocator, list[BlockTable]]) -> None:
    check(books)


Damage = Callable[[BlockAllocator, list[BlockTable]], object]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda a, t: t[0].blocks.__setitem__(1, 8), "names block 8: the pool has 0 to 7"),
        (lambda a, t: t[0].blocks.__setitem__(1, -1), "names block -1: the pool has 0 to 7"),
        (lambda a, t: t[0].blocks.__setitem__(1, None), "names block None"),
        (lambda a, t: t[0].blocks.__setitem__(1, 0), "block 0 has been handed out twice: one table names it"),
        (lambda a, t: t[1].blocks.append(6), "has 3 blocks of 4 for 5 tokens: 2 are needed"),
        (lambda a, t: t[0].blocks.pop(), "has 1 blocks of 4 for 7 tokens: 2 are needed"),
        (lambda a, t: a.free([0]), "block 0 has been handed out twice, or shared without being counted"),
        (lambda a, t: a.free([1]), "block 1 was given up too early: its count is 0, 1 table entry names it"),
        (lambda a, t: a.share([1]), "block 1: its count is 2, 1 table entry names it"),
        (lambda a, t: a.allocate(1), "block 4 was not given up: its count is 1, 0 table entries name it"),
        (lambda a, t: a._free.append(9), "the free stack holds block 9"),
        (lambda a, t: a._free.append(5), "block 5 is on the free stack twice"),
        (lambda a, t: a._free.append(2), "block 2 is on the free stack while a table names it"),
        (lambda a, t: setattr(a, "_num_in_use", 2), "num_in_use is 2, and tables name 3 blocks"),
    ],
)
def test_what_is_wrong_is_told(
    books: tuple[BlockAllocator, list[BlockTable]], damage: Damage, told: str
) -> None:
    damage(*books)
    with pytest.raises(BrokenPoolError, match=told):
        check(books)


def test_a_free_count_that_is_not_the_stacks(books: tuple[BlockAllocator, list[BlockTable]]) -> None:
    class Miscounting(BlockAllocator):
        @property
        def num_free(self) -> int:
            return len(self._free) - 1

    with pytest.raises(BrokenPoolError, match="num_free is 7, and the free stack holds 8 blocks"):
        check_pool(Miscounting(8), [], 8)


def test_a_block_that_is_nowhere(books: tuple[BlockAllocator, list[BlockTable]]) -> None:
    """Block 4 leaves the stack and nobody has it: 5, 6, 7 and the cached 3 are left to be handed out."""
    books[0]._free.pop()
    with pytest.raises(BrokenPoolError, match=r"of 8, 4 can be handed out, 3 are in use; .*: \[3, 4\]"):
        check(books, num_available=4)


def test_a_cached_block_that_nobody_can_evict(books: tuple[BlockAllocator, list[BlockTable]]) -> None:
    with pytest.raises(BrokenPoolError, match=r"of 8, 4 can be handed out, 3 are in use; .*: \[3\]"):
        check(books, num_available=4)
