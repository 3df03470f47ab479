"""Grades lesson 10. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from minipaged.course.checks import check_true, show
from minipaged.course.memory_drawing import try_launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNTOUCHED = -7
Table = list[list[int]]
Why = Callable[[list[int], list[int]], str]


def apart(values: Any, dtype: torch.dtype, filler: int = UNTOUCHED) -> torch.Tensor:
    """A tensor with room before and behind it, so that a wrong index reaches nothing else."""
    tensor = torch.as_tensor(values, dtype=dtype)
    around = torch.full((tensor.numel() + 8192,), filler, dtype=dtype, device=DEVICE)
    inside = around[4096 : 4096 + tensor.numel()].view(tensor.shape)
    inside.copy_(tensor)
    return inside


def slots_by_hand(tables: Table, positions: list[int], sequences: list[int], block_size: int) -> list[int]:
    """The definition, a token at a time."""
    slots = []
    for position, sequence in zip(positions, sequences, strict=True):
        slot = -1
        if position >= 0 and 0 <= sequence < len(tables):
            row = tables[sequence]
            if position // block_size < len(row) and row[position // block_size] >= 0:
                slot = row[position // block_size] * block_size + position % block_size
        slots.append(slot)
    return slots


def check_mapping(
    exercise: ModuleType,
    tables: Table,
    positions: list[int],
    sequences: list[int],
    block_size: int,
    why: str,
    *,
    tile: int = 8,
    view: torch.Tensor | None = None,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.int64, torch.int64),
) -> None:
    """Launch `_slot_mapping_kernel`, and compare the slots, and what lies around them."""
    block_tables = apart(tables, torch.int32) if view is None else view
    position_ids, sequence_ids = apart(positions, dtypes[0]), apart(sequences, dtypes[1])
    num_tokens = len(positions)
    memory = torch.full((num_tokens + 8192,), UNTOUCHED, dtype=torch.int64, device=DEVICE)
    slots = memory[4096 : 4096 + num_tokens]
    programs = -(-num_tokens // tile)
    tried = (
        f"block_tables {show(tables)}, positions {show(positions)}, sequence_ids {show(sequences)}, "
        f"BLOCK_SIZE {block_size}: {programs} program{'s' if programs > 1 else ''}, TILE {tile}"
    )
    if view is not None:
        tried += f"; block_tables is a view with strides {view.stride()}"

    def launch() -> None:
        exercise._slot_mapping_kernel[(programs,)](
            block_tables, position_ids, sequence_ids, slots, num_tokens, *block_tables.shape,
            *block_tables.stride(), BLOCK_SIZE=block_size, TILE=tile,
        )  # fmt: skip

    drawing = try_launch(
        tried,
        _why_outside(positions, sequences, tile, why),
        launch,
        ["block_tables", "slots"],
        block_tables=block_tables,
        positions=position_ids,
        sequence_ids=sequence_ids,
        slots=slots,
    )
    got = slots.tolist()
    expected = slots_by_hand(tables, positions, sequences, block_size)
    check_true(
        tried,
        got == expected,
        show(expected),
        f"{show(got)}\n{drawing}",
        lambda _: _reason(got, expected, tables, positions, sequences, block_size, tile, why),
    )
    slots.fill_(UNTOUCHED)
    check_true(
        f"memory around the slots, after {tried}",
        bool((memory == UNTOUCHED).all()),
        "unchanged",
        "written to",
        "the last program has lanes past num_tokens: they need a mask in tl.store",
    )


def _why_outside(positions: list[int], sequences: list[int], tile: int, why: str) -> str:
    """Why a program may leave its arrays, for these tokens."""
    if len(positions) % tile and all(position >= 0 for position in positions):
        return (
            f"{len(positions)} tokens are no multiple of TILE {tile}: lanes past num_tokens must be masked, "
            f"in every tl.load and tl.store. {why}"
        )
    return why


def _reason(
    got: list[int],
    expected: list[int],
    tables: Table,
    positions: list[int],
    sequences: list[int],
    block_size: int,
    tile: int,
    why: str,
) -> str:
    """The misconception that gives these very slots."""
    if all(slot == UNTOUCHED for slot in got):
        return "no slot was written: tl.store(slot_ptr + tokens, slots, mask=...)"
    if len(got) > tile and all(slot == UNTOUCHED for slot in got[tile:]):
        return (
            "all programs worked on the first tokens: tl.arange starts at 0 in every program, "
            "add tl.program_id(0) * TILE"
        )
    wrapped = [(slot + 2**31) % 2**32 - 2**31 for slot in expected]
    if got == wrapped or (max(expected) >= 2**31 and min(got) < 0):
        return (
            "block * BLOCK_SIZE needs more than 32 bits here and has overflowed: make blocks 64-bit "
            "before you multiply"
        )
    if got == slots_by_hand(tables, positions, [0] * len(positions), block_size):
        return "each token was looked up in row 0: sequence_ptr says which row of the table is a token's own"
    if any(position < 0 <= slot for position, slot in zip(positions, got, strict=True)):
        return "padding got a slot: a position below 0 is no position, and that slot would be overwritten"
    power = 1 << (block_size - 1).bit_length()
    if power != block_size and got == slots_by_hand(tables, positions, sequences, power):
        return "the block size was rounded up to a power of two: any size is allowed"
    return why


def test_one_token(exercise: ModuleType) -> None:
    """A slot is block * BLOCK_SIZE + offset."""
    why = "the block is the table's entry at column position // BLOCK_SIZE, the offset position % BLOCK_SIZE"
    check_mapping(exercise, [[3]], [0], [0], 4, why, tile=1)
    check_mapping(exercise, [[3]], [2], [0], 4, why, tile=1)
    check_mapping(exercise, [[3, 1]], [5], [0], 4, why, tile=1)
    check_mapping(exercise, [[0, 2]], [3], [0], 4, "block 0 is a block like any other", tile=1)


def test_a_tile_of_tokens(exercise: ModuleType) -> None:
    """A program turns TILE tokens into slots at once."""
    why = "every lane has its own position, and looks up the block of its own position"
    check_mapping(exercise, [[3, 1]], [0, 1, 2, 3, 4, 5, 6, 7], [0] * 8, 4, why, tile=8)
    check_mapping(exercise, [[9, 4, 6]], [8, 0, 5, 3], [0] * 4, 4, why, tile=4)


def test_several_programs(exercise: ModuleType) -> None:
    """Program i has the tokens from i * TILE on."""
    why = "program i has the tokens tl.program_id(0) * TILE + tl.arange(0, TILE)"
    check_mapping(exercise, [[3, 1]], [0, 1, 4, 5], [0] * 4, 4, why, tile=2)
    check_mapping(exercise, [[3, 1]], [7, 6, 5, 4, 3, 2], [0] * 6, 4, why, tile=2)


def test_the_ragged_end(exercise: ModuleType) -> None:
    """Lanes past num_tokens touch nothing."""
    why = "the last program has lanes past num_tokens: mask them in tl.load and in tl.store"
    check_mapping(exercise, [[3, 1]], [0, 1, 2], [0] * 3, 4, why, tile=4)
    check_mapping(exercise, [[3, 1]], [0, 1, 2, 3, 4], [0] * 5, 4, why, tile=4)
    check_mapping(exercise, [[3, 1]], [6], [0], 4, why, tile=16)


def test_each_token_has_its_own_sequence(exercise: ModuleType) -> None:
    """A token is looked up in the row of its sequence."""
    why = "the entry at (row, column) lies row * table_row_stride + column * table_column_stride entries on"
    check_mapping(exercise, [[3, 1], [5, 2]], [0, 5], [1, 1], 4, why, tile=2)
    check_mapping(exercise, [[3, 1], [5, 2], [0, 7]], [0, 4, 4, 1], [2, 0, 1, 1], 4, why, tile=4)


def test_padding(exercise: ModuleType) -> None:
    """A position below 0 gets the slot -1, whatever its sequence id is."""
    why = "a position below 0 is padding: its slot is -1, and no table entry is read for it"
    check_mapping(exercise, [[3, 1]], [-1], [0], 4, why, tile=1)
    check_mapping(exercise, [[3, 1], [5, 2]], [0, -1, 4, -1], [0, 0, 1, 1], 4, why, tile=4)
    check_mapping(exercise, [[3, 1], [5, 2]], [1, -1, -1, 5], [1, -1, 9, 0], 4, why, tile=4)
    check_mapping(exercise, [[3, 1], [5, 2]], [1, -5, -4, 5], [1, 1, 1, 0], 4, why, tile=4)
    check_mapping(exercise, [[8], [8]], [-1, -2, -3], [1, 1, 0], 1, why, tile=4)


def test_tokens_without_a_block(exercise: ModuleType) -> None:
    """A token beyond its table, of no sequence, or whose entry is below 0, gets the slot -1."""
    far = "the position lies beyond the max_blocks of its row: the next entry belongs to another sequence"
    check_mapping(exercise, [[3, 1], [5, 2]], [8, 7], [0, 0], 4, far, tile=2)
    check_mapping(exercise, [[3, 1], [5, 2]], [11, 1000], [0, 1], 4, far, tile=2)
    row = (
        "a sequence id that is no row of the table (below 0, or num_sequences and more) has no entry to read"
    )
    check_mapping(exercise, [[3, 1], [5, 2]], [0, 0], [2, 1], 4, row, tile=2)
    check_mapping(exercise, [[3, 1], [5, 2]], [0, 4, 1], [-1, 1, 50], 4, row, tile=4)
    entry = "an entry below 0 is no block: -1 * 4 + 3 would pass for the slot -1 or for another one"
    check_mapping(exercise, [[3, -1]], [4, 3], [0, 0], 4, entry, tile=2)
    check_mapping(exercise, [[-1, 2], [-9, 0]], [3, 4, 1, 6], [0, 0, 1, 1], 4, entry, tile=4)


def test_a_table_that_is_a_view(exercise: ModuleType) -> None:
    """Rows and columns are table_row_stride and table_column_stride entries apart."""
    why = (
        "the table is a view of a larger one: the next row begins table_row_stride entries on, not max_blocks"
    )
    larger = apart([[3, 1, 90, 91, 92], [5, 2, 93, 94, 95], [0, 7, 96, 97, 98]], torch.int32)
    check_mapping(
        exercise, [[3, 1], [5, 2], [0, 7]], [0, 5, 4, 1], [1, 1, 2, 0], 4, why, tile=4, view=larger[:, :2]
    )
    why = "the entries of a row are table_column_stride apart, here not 1"
    check_mapping(
        exercise, [[3, 90, 92], [5, 93, 95]], [4, 5, 8, 1], [1, 0, 1, 0], 4, why, tile=4, view=larger[:2, ::2]
    )
    why = "this table is transposed: its columns are further apart than its rows"
    transposed = apart([[3, 5], [1, 2]], torch.int32).t()
    check_mapping(exercise, [[3, 1], [5, 2]], [0, 5, 4, 1], [1, 1, 0, 0], 4, why, tile=4, view=transposed)


def test_block_sizes(exercise: ModuleType) -> None:
    """Any block size is right, a power of two or not."""
    why = "column = position // BLOCK_SIZE and offset = position % BLOCK_SIZE, for any BLOCK_SIZE"
    for block_size in (1, 3, 5, 16):
        tables = [[3, 0, 4, 1, 5, 9, 2, 6], [8, 7, 10, 11, 12, 13, 14, 15]]
        positions = [0, 1, 2, 3, 5, 6, 7, 0]
        check_mapping(exercise, tables, positions, [0, 0, 0, 0, 1, 1, 1, 1], block_size, why, tile=8)


def test_slots_past_32_bits(exercise: ModuleType) -> None:
    """A slot may be 2^31 and more: the product needs 64 bits."""
    why = "block * BLOCK_SIZE needs 64 bits"
    last = 2**31 // 16
    for dtypes in ((torch.int64, torch.int64), (torch.int32, torch.int32), (torch.int32, torch.int64)):
        check_mapping(exercise, [[last - 1]], [15], [0], 16, why, tile=1, dtypes=dtypes)
        check_mapping(exercise, [[last, 2**31 - 1]], [0, 18], [0, 0], 16, why, tile=2, dtypes=dtypes)
        check_mapping(exercise, [[2 * last]], [3], [0], 16, why, tile=1, dtypes=dtypes)


def test_the_launch(exercise: ModuleType) -> None:
    """`launch_slot_mapping` serves a batch of any size."""
    tables = [[7 * row + column for column in range(7)] for row in range(40)]
    for num_tokens in (1, 128, 300):
        positions = [(11 * token) % 29 - 1 for token in range(num_tokens)]
        sequences = [token % 40 for token in range(num_tokens)]
        tried = f"launch_slot_mapping with {num_tokens} tokens of 40 sequences, block size 4"
        slots: list[int] = []
        arguments = apart(tables, torch.int32), apart(positions, torch.int32), apart(sequences, torch.int64)
        drawing = try_launch(
            tried,
            "the last program has lanes past num_tokens: mask them in tl.load and in tl.store",
            lambda arguments=arguments, slots=slots: slots.extend(
                exercise.launch_slot_mapping(*arguments, 4).tolist()
            ),
            ["positions", "slot"],
            positions=arguments[1],
        )
        wrong = [
            token
            for token, slot in enumerate(slots_by_hand(tables, positions, sequences, 4))
            if slot != slots[token]
        ]
        check_true(
            tried,
            not wrong,
            "the slot of every token",
            f"wrong slots for {len(wrong)} tokens, the first is token {wrong[0] if wrong else ''}\n{drawing}",
            "the kernel must work for the TILE, the programs and the dtypes that the launch chooses",
        )


def numbered(num_tokens: int, num_kv_heads: int, head_dim: int, first: int) -> torch.Tensor:
    """K or V of tokens in which no two elements are alike."""
    count = num_tokens * num_kv_heads * head_dim
    return (first + torch.arange(count, dtype=torch.float32)).view(num_tokens, num_kv_heads, head_dim)


def check_write(
    exercise: ModuleType,
    slots: Sequence[int],
    why: str,
    *,
    num_blocks: int = 3,
    block_size: int = 2,
    num_kv_heads: int = 1,
    head_dim: int = 4,
    tile: int | None = None,
    views: bool = False,
) -> None:
    """Launch `_write_kv_kernel`, and compare every element of both caches, and what lies around them."""
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    keys = apart(numbered(len(slots), num_kv_heads, head_dim, 1), torch.float32)
    values = apart(numbered(len(slots), num_kv_heads, head_dim, 1001), torch.float32)
    if views:  # one pool of K and V, heads before slots; keys and values a slice of a larger projection
        pool = apart(torch.full((num_blocks, 2, num_kv_heads, block_size, head_dim), -1.0), torch.float32)
        key_cache, value_cache = pool[:, 0].transpose(1, 2), pool[:, 1].transpose(1, 2)
        both = apart(torch.cat([keys, values, keys], dim=2).cpu(), torch.float32)
        keys, values = both[:, :, :head_dim], both[:, :, head_dim : 2 * head_dim]
    else:
        key_cache, value_cache = (apart(torch.full(shape, -1.0), torch.float32) for _ in range(2))
    tile = tile or 1 << (num_kv_heads * head_dim - 1).bit_length()
    tried = (
        f"slots {list(slots)} in caches of {num_blocks} blocks of {block_size}, {num_kv_heads} heads of "
        f"{head_dim}, TILE {tile}" + (", all tensors views" if views else "")
    )
    slot_ids = apart(list(slots), torch.int64)
    expected = [torch.full(shape, -1.0), torch.full(shape, -1.0)]
    for cache, tokens in zip(expected, (keys, values), strict=True):
        for token, slot in enumerate(slots):
            if 0 <= slot < num_blocks * block_size:
                cache[slot // block_size, slot % block_size] = tokens[token].cpu()

    def launch() -> None:
        exercise._write_kv_kernel[(len(slots),)](
            keys, values, key_cache, value_cache, slot_ids, num_blocks * block_size, *keys.stride(),
            *values.stride(), *key_cache.stride(), *value_cache.stride(), BLOCK_SIZE=block_size,
            NUM_KV_HEADS=num_kv_heads, HEAD_DIM=head_dim, TILE=tile,
        )  # fmt: skip

    drawing = try_launch(
        tried,
        why,
        launch,
        ["key_cache", "value_cache"],
        keys=keys,
        values=values,
        key_cache=key_cache,
        value_cache=value_cache,
        slots=slot_ids,
    )
    for name, cache, want in zip(
        ("key_cache", "value_cache"), (key_cache, value_cache), expected, strict=True
    ):
        got = cache.cpu()
        wrong = (got != want).nonzero().tolist()
        place = tuple(wrong[0]) if wrong else (0, 0, 0, 0)
        check_true(
            f"{name} after {tried}",
            not wrong,
            f"{want[place]:g} at {list(place)} (block, offset, head, dim)",
            f"{got[place]:g}\n{drawing}",
            lambda _, g=got, w=want, p=place: why if views else _why_written(g, w, p, slots, block_size, why),
        )


def _why_written(
    got: torch.Tensor,
    want: torch.Tensor,
    place: tuple[int, ...],
    slots: Sequence[int],
    block_size: int,
    why: str,
) -> str:
    if bool((got == -1).all()):
        return "nothing was written: a program loads the slot of its token, and stores K and V there"
    if place[0] * block_size + place[1] not in slots and want[place] == -1:
        if min(slots) < 0:
            return "something was written for padding: a slot of -1 is no slot, skip the token"
        return "a slot was written that belongs to no token of this launch"
    if want[place] > 0 and abs(float(got[place]) - float(want[place])) >= 900:
        return "K and V are mixed up"
    return why


def test_k_and_v_go_into_their_slot(exercise: ModuleType) -> None:
    """Program i writes the K and V of token i into block slot // BLOCK_SIZE at offset slot % BLOCK_SIZE."""
    why = "the block is slot // BLOCK_SIZE, the offset slot % BLOCK_SIZE; add index * stride for each axis"
    check_write(exercise, [0], why)
    check_write(exercise, [3], why)
    check_write(exercise, [4, 1], why)
    check_write(exercise, [5, 0, 2], why, num_kv_heads=2, head_dim=8, block_size=3)


def test_padding_is_not_written(exercise: ModuleType) -> None:
    """A token whose slot is -1, or none of the cache, is skipped, and the tokens after it are not."""
    why = "slot -1 is padding: written, it would land in the slot before the first one, or in the last one"
    check_write(exercise, [-1], why)
    check_write(exercise, [-1, 2, -1, 3], why)
    check_write(exercise, [1, -5, 0], why)
    past = "a slot from num_slots on lies behind the cache: skip the token"
    check_write(exercise, [6, 1], past)
    check_write(exercise, [10**9, 5], past)


def test_elements_that_do_not_fill_the_tile(exercise: ModuleType) -> None:
    """Lanes past NUM_KV_HEADS * HEAD_DIM touch nothing: they would write into the next slot."""
    why = (
        "3 heads of 5 are 15 elements in a tile of 16: without a mask the last lane writes into the next slot"
    )
    check_write(exercise, [0, 3], why, num_kv_heads=3, head_dim=5)
    check_write(exercise, [2, 1], "lanes past NUM_KV_HEADS * HEAD_DIM must be masked", head_dim=3, tile=16)


def test_more_elements_than_the_tile(exercise: ModuleType) -> None:
    """Where the tile is smaller than NUM_KV_HEADS * HEAD_DIM, the program goes on to the last element."""
    why = "a tile holds fewer elements than the token has: loop over range(0, NUM_KV_HEADS * HEAD_DIM, TILE)"
    check_write(exercise, [1, 4], why, num_kv_heads=2, head_dim=4, tile=4)
    check_write(exercise, [1, 4], why, num_kv_heads=3, head_dim=6, tile=4)


def test_caches_that_are_views(exercise: ModuleType) -> None:
    """Every axis has a stride of its own: K and V lie side by side in one pool, heads before slots."""
    why = (
        "these tensors are views: from one head to the next it is *_head_stride elements, from one slot to "
        "the next *_slot_stride, from one dim to the next *_dim_stride"
    )
    check_write(exercise, [1, 4], why, num_kv_heads=2, head_dim=4, views=True)
    check_write(exercise, [5, -1, 0, 2], why, num_kv_heads=3, head_dim=5, views=True)
    check_write(exercise, [5, -1, 0, 2], why, num_kv_heads=3, head_dim=5, tile=4, views=True)


def far_caches() -> tuple[torch.Tensor, torch.Tensor]:
    """[5, 2, 1, 4] with blocks 2^30 elements apart: address space, of which only a few pages are used."""
    size = 4 * 2**30 + 64
    if DEVICE == "cuda":
        memory = torch.zeros(size, dtype=torch.float16, device=DEVICE)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = torch.frombuffer(mmap.mmap(-1, 2 * size, flags=flags), dtype=torch.float16)
    return (
        memory.as_strided((5, 2, 1, 4), (2**30, 4, 4, 1)),
        memory.as_strided((5, 2, 1, 4), (2**30, 4, 4, 1), 32),
    )


def test_a_large_pool(exercise: ModuleType) -> None:
    """In a pool of more than 2^32 elements, block * stride needs 64 bits."""
    key_cache, value_cache = far_caches()
    keys, values = torch.ones(1, 1, 4), torch.full((1, 1, 4), 2.0)
    keys, values = (tokens.to(torch.float16).to(DEVICE) for tokens in (keys, values))
    slots = torch.tensor([9], device=DEVICE)
    tried = f"slot 9 in caches [5, 2, 1, 4] with strides {key_cache.stride()}: block 4 lies 2^32 elements on"
    why = "index * stride has overflowed 32 bits: make token, block, offset, head and dim 64-bit first"
    drawing = try_launch(
        tried,
        why,
        lambda: exercise.launch_write_kv(keys, values, key_cache, value_cache, slots),
        ["key_cache", "value_cache"],
        key_cache=key_cache,
        value_cache=value_cache,
    )
    for name, cache, want in (("key_cache", key_cache, 1.0), ("value_cache", value_cache, 2.0)):
        got = cache[4, 1, 0].tolist()
        check_true(
            f"{name}[4, 1] after {tried}", got == [want] * 4, show([want] * 4), f"{show(got)}\n{drawing}", why
        )
