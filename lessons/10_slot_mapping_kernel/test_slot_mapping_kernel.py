"""Grades lesson 10. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from minipaged.course.checks import check_true, show
from minipaged.course.memory_drawing import try_launch, undefined_lanes
from minipaged.kernels._triton_arguments import CacheShape, TableStrides, write_strides_for

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
    is_why: bool = False,
) -> None:
    """Launch `_slot_mapping_kernel`, and compare the slots, and what lies around them.

    `is_why`: any wrong slot is explained by `why`; by default it depends on which slots came.
    """
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
            TableStrides(*block_tables.stride()), BLOCK_SIZE=block_size, TILE=tile,
        )  # fmt: skip

    drawing, recorded = try_launch(
        tried,
        lambda outside: _why_outside(outside, why),
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
        why
        if is_why
        else lambda _: _reason(got, expected, tables, positions, sequences, block_size, tile, why),
    )
    strays = [
        (access.program, token)
        for access in recorded.accesses
        for token in access.index
        if access.array == "slots" and access.program != f"program ({token // tile})"
    ]
    check_true(
        f"who wrote the slots of {tried}",
        not strays,
        f"program i: tokens i * {tile} to i * {tile} + {tile - 1}",
        f"{strays[0][0]}: token {strays[0][1]}\n{drawing}" if strays else "",
        "the launch has a program for each tile of tokens: one that goes on to others repeats their work",
    )
    slots.fill_(UNTOUCHED)
    check_true(
        f"memory around the slots, after {tried}",
        bool((memory == UNTOUCHED).all()),
        "unchanged",
        "written to",
        "the last program has lanes past num_tokens: they need a mask in tl.store",
    )


def _why_outside(outside: str, why: str) -> str:
    """Why a program has left an array: the lists of tokens end with num_tokens, whatever the table is."""
    if any(f"{name}[" in outside for name in ("positions", "sequence_ids", "slots")):
        return "lanes past num_tokens must be masked, in every tl.load and tl.store"
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
    zeros = [tables[0][0] == 0 and slot < block_size for slot in expected]
    if any(zeros) and all(slot == -1 for slot, is_zero in zip(got, zeros, strict=True) if is_zero):
        return "block 0 is a block like any other, only an entry below 0 is none: >= 0, not > 0"
    for ids in (positions, sequences):
        if got == [-1 if number == 0 else slot for number, slot in zip(ids, expected, strict=True)]:
            return (
                "position 0 and sequence id 0 are like any other, only what is below 0 is none: >= 0, not > 0"
            )
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
    why = "the entry at (row, column) lies row * table_strides.row + column * table_strides.column entries on"
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
    check_mapping(exercise, [[3, 1], [5, 2]], [0, 4, 1], [-2, 1, -7], 4, row, tile=4)
    none = "a table without columns has no entry to read, not the first one either: mask the load"
    check_mapping(exercise, [[]], [0, -1], [0, 0], 4, none, tile=2)
    entry = "an entry below 0 is no block: -1 * 4 + 3 would pass for the slot -1 or for another one"
    check_mapping(exercise, [[3, -1]], [4, 3], [0, 0], 4, entry, tile=2)
    check_mapping(exercise, [[-1, 2], [-9, 0]], [3, 4, 1, 6], [0, 0, 1, 1], 4, entry, tile=4)


def test_a_table_that_is_a_view(exercise: ModuleType) -> None:
    """Rows and columns are table_strides.row and table_strides.column entries apart."""
    why = "the table is a view of another: the next row begins table_strides.row entries on, not max_blocks"
    larger = apart([[3, 1, 90, 91, 92], [5, 2, 93, 94, 95], [0, 7, 96, 97, 98]], torch.int32)
    check_mapping(
        exercise, [[3, 1], [5, 2], [0, 7]], [0, 5, 4, 1], [1, 1, 2, 0], 4, why, tile=4, view=larger[:, :2]
    )
    why = "the entries of a row are table_strides.column apart, here not 1"
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
    why = "a position or a sequence id may be 2^32 and more: cut to 32 bits it is 0, a token of another place"
    check_mapping(exercise, [[3, 1]], [2**32, 5], [0, 0], 4, why, tile=2, is_why=True)
    check_mapping(exercise, [[3, 1]], [4 * 2**32, 5], [0, 0], 4, why, tile=2, is_why=True)  # column 2^32
    check_mapping(exercise, [[3, 1]], [0, 5], [2**32, 0], 4, why, tile=2, is_why=True)


def test_lanes_that_no_load_defines(exercise: ModuleType) -> None:
    """A lane that `mask` hides holds anything on a GPU, unless `other` says what."""
    why = "a token without a block gets the slot -1"
    tables = [[3, 0], [5, 2]]
    for positions, rows in (([0, 4, 1], [0, 0, 1]), ([-1, 4, 8, 0], [0, 0, 1, 2])):
        check_mapping(exercise, tables, positions, rows, 4, why, tile=4)
        with undefined_lanes():
            check_mapping(exercise, tables, positions, rows, 4, why, tile=4)


def test_the_launch(exercise: ModuleType) -> None:
    """`launch_slot_mapping` serves a batch of any size."""
    tables = [[7 * row + column for column in range(7)] for row in range(40)]
    for num_tokens in (1, 128, 300):
        positions = [(11 * token) % 29 - 1 for token in range(num_tokens)]
        sequences = [token % 40 for token in range(num_tokens)]
        tried = f"launch_slot_mapping with {num_tokens} tokens of 40 sequences, block size 4"
        slots: list[int] = []
        arguments = apart(tables, torch.int32), apart(positions, torch.int32), apart(sequences, torch.int64)
        drawing, _ = try_launch(
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


def numbered(num_tokens: int, num_kv_heads: int, head_dim: int, first: float) -> torch.Tensor:
    """K or V of tokens in which no two elements are alike."""
    count = num_tokens * num_kv_heads * head_dim
    return (first + torch.arange(count, dtype=torch.float64)).view(num_tokens, num_kv_heads, head_dim)


def spread(tensor: torch.Tensor, heads: int, step: int) -> torch.Tensor:
    """The same numbers in a view: `heads` foreign heads behind those of a token, dims `step` apart."""
    *outer, num_heads, head_dim = tensor.shape
    larger = torch.full((*outer, num_heads + heads, head_dim * step), UNTOUCHED, dtype=tensor.dtype)
    view = apart(larger, tensor.dtype)[..., :num_heads, ::step]
    view.copy_(tensor)
    return view


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
    first: float = 1,
    dtype: torch.dtype = torch.float32,
    pool: bool = False,
    views: dict[str, tuple[int, int]] | None = None,
) -> None:
    """Launch `_write_kv_kernel`, and compare every element of both caches, and what lies around them.

    `pool`: all tensors are views, K and V side by side. `views`: arguments of `spread` for those named.
    """
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    keys = apart(numbered(len(slots), num_kv_heads, head_dim, first), dtype)
    values = apart(numbered(len(slots), num_kv_heads, head_dim, first + 1000), dtype)
    if pool:  # heads before slots; keys and values a slice of a larger projection
        both_caches = apart(torch.full((num_blocks, 2, num_kv_heads, block_size, head_dim), -1.0), dtype)
        key_cache, value_cache = both_caches[:, 0].transpose(1, 2), both_caches[:, 1].transpose(1, 2)
        both = apart(torch.cat([keys, values, keys], dim=2).cpu(), dtype)
        keys, values = both[:, :, :head_dim], both[:, :, head_dim : 2 * head_dim]
    else:
        key_cache, value_cache = (apart(torch.full(shape, -1.0), dtype) for _ in range(2))
    arrays = {"keys": keys, "values": values, "key_cache": key_cache, "value_cache": value_cache}
    for name, arguments in (views or {}).items():
        arrays[name] = spread(arrays[name], *arguments)
    keys, values, key_cache, value_cache = arrays.values()
    tile = tile or 1 << (num_kv_heads * head_dim - 1).bit_length()
    tried = (
        f"slots {list(slots)} in caches of {num_blocks} blocks of {block_size}, {num_kv_heads} "
        f"head{'s' * (num_kv_heads > 1)} of {head_dim}, TILE {tile}"
        + (", all tensors views" if pool else "")
        + "".join(f", {name} with strides {arrays[name].stride()}" for name in views or {})
        + (f", {str(dtype).removeprefix('torch.')}" if dtype != torch.float32 else "")
    )
    slot_ids = apart(list(slots), torch.int64)
    expected = [torch.full(shape, -1.0, dtype=dtype) for _ in range(2)]
    for cache, tokens in zip(expected, (keys, values), strict=True):
        for token, slot in enumerate(slots):
            if 0 <= slot < num_blocks * block_size:
                cache[slot // block_size, slot % block_size] = tokens[token].cpu()

    strides = write_strides_for(keys, values, key_cache, value_cache)

    def launch() -> None:
        exercise._write_kv_kernel[(len(slots),)](
            keys, values, key_cache, value_cache, slot_ids, num_blocks * block_size, strides,
            SHAPE=CacheShape(block_size, num_kv_heads, head_dim), TILE=tile,
        )  # fmt: skip

    drawing, _ = try_launch(tried, why, launch, ["key_cache", "value_cache"], **arrays, slots=slot_ids)
    for name, cache, want in zip(
        ("key_cache", "value_cache"), (key_cache, value_cache), expected, strict=True
    ):
        got = cache.cpu()
        wrong = (got != want).nonzero().tolist()
        place = tuple(wrong[0]) if wrong else (0, 0, 0, 0)
        wanted, came = (f"{each[place].item():.10g}" for each in (want, got))
        check_true(
            f"{name} after {tried}",
            not wrong,
            f"{wanted} at {list(place)} (block, offset, head, dim)",
            f"{came}\n{drawing}",
            lambda _, g=got, w=want, p=place, n=name: (
                why if pool or views else _why_written(n, g, w, p, slots, block_size, why)
            ),
        )


def _why_written(
    name: str,
    got: torch.Tensor,
    want: torch.Tensor,
    place: tuple[int, ...],
    slots: Sequence[int],
    block_size: int,
    why: str,
) -> str:
    if bool((got == -1).all()):
        return (
            f"nothing was written to {name}: a program loads the slot of its token, and stores K and V there"
        )
    if place[0] * block_size + place[1] not in slots and want[place] == -1:
        if min(slots) < 0:
            return "something was written for padding: a slot of -1 is no slot, skip the token"
        if place[1] == 0 and any(slot // block_size == place[0] for slot in slots):
            return "the token went to slot 0 of its block: add slot % BLOCK_SIZE times the stride of a slot"
        return f"a slot was written that belongs to no token of this launch. {why}"
    if min(want[place], got[place]) > 0 and abs(float(got[place]) - float(want[place])) >= 900:
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
    why = (
        "the last turn has one element left: range(0, NUM_KV_HEADS * HEAD_DIM, TILE) ends behind the last one"
    )
    check_write(exercise, [1, 4], why, head_dim=5, tile=4)
    check_write(exercise, [1], why, head_dim=1)


def test_elements_that_no_load_defines(exercise: ModuleType) -> None:
    """Lanes past the elements of a token hold anything on a GPU, and reach no cache."""
    why = "lanes past NUM_KV_HEADS * HEAD_DIM must be masked"
    check_write(exercise, [0, 3, -1], why, num_kv_heads=3, head_dim=5)
    with undefined_lanes():
        check_write(exercise, [0, 3, -1], why, num_kv_heads=3, head_dim=5)


def test_caches_that_are_views(exercise: ModuleType) -> None:
    """Every axis has a stride of its own: K and V lie side by side in one pool, heads before slots."""
    why = (
        "these tensors are views: from one head to the next it is strides.*.head elements, from one slot to "
        "the next strides.*.slot, from one dim to the next strides.*.dim"
    )
    check_write(exercise, [1, 4], why, num_kv_heads=2, head_dim=4, pool=True)
    check_write(exercise, [5, -1, 0, 2], why, num_kv_heads=3, head_dim=5, pool=True)
    check_write(exercise, [5, -1, 0, 2], why, num_kv_heads=3, head_dim=5, tile=4, pool=True)


def test_each_tensor_has_strides_of_its_own(exercise: ModuleType) -> None:
    """K and V, and their caches, may lie in memory each in its own way."""
    names = {"keys": "key", "values": "value", "key_cache": "key_cache", "value_cache": "value_cache"}
    for name, field in names.items():
        why = (
            f"{name} alone is a view here: strides.{field} are its own and serve no other tensor. From one "
            f"token, or slot, to the next it is not heads times strides.{field}.head"
        )
        check_write(exercise, [0, 3], why, head_dim=2, views={name: (1, 1)})
    for name, field in names.items():
        why = (
            f"from one dim of {name} to the next it is strides.{field}.dim elements, here not 1. "
            f"{name} alone is a view here, so strides.{field} serve no other tensor"
        )
        check_write(exercise, [0, 3], why, head_dim=2, views={name: (0, 2)})


def test_numbers_stay_as_they_are(exercise: ModuleType) -> None:
    """K and V are copied, not computed with: every dtype keeps all of its digits."""
    why = "K and V are stored as they were loaded, in their own dtype: a cast on the way rounds them"
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        check_write(exercise, [2], why, head_dim=2, first=0.1, dtype=dtype)
    special = [0.0, -0.0, float("nan"), float("inf")]
    keys, values = (apart([[numbers]], torch.float32) for numbers in (special, special[::-1]))
    key_cache, value_cache = (apart([[[[-1.0] * 4]]], torch.float32) for _ in range(2))
    tried = "keys [0, -0, NaN, inf] and values [inf, NaN, -0, 0] in slot 0"
    drawing, _ = try_launch(
        tried,
        why,
        lambda: exercise.launch_write_kv(keys, values, key_cache, value_cache, apart([0], torch.int64)),
        ["key_cache", "value_cache"],
        key_cache=key_cache,
        value_cache=value_cache,
    )
    for name, tokens, cache in (("key_cache", keys, key_cache), ("value_cache", values, value_cache)):
        check_true(
            f"{name} after {tried}",
            torch.equal(cache.view(torch.int32).flatten(), tokens.view(torch.int32).flatten()),
            show(tokens.flatten().tolist()),
            f"{show(cache.flatten().tolist())}\n{drawing}",
            "every element is stored, whatever it is: a slot still holds what an earlier token left there",
        )


def far(shape: tuple[int, ...], axis: int, dtype: torch.dtype = torch.float16, first: int = 0) -> Any:
    """A tensor whose indices of `axis` lie 2^30 elements apart: address space, hardly any memory."""
    strides = [4] * len(shape)
    strides[-1], strides[axis] = 1, 2**30
    size = 4 * 2**30 + 64
    if DEVICE == "cuda":
        memory = torch.zeros(size, dtype=dtype, device=DEVICE)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = torch.frombuffer(mmap.mmap(-1, dtype.itemsize * size, flags=flags), dtype=dtype)
    return memory.as_strided(shape, tuple(strides), first)


def test_a_large_table(exercise: ModuleType) -> None:
    """Row 4 of a table lies 2^32 entries on: row * stride needs 64 bits."""
    if DEVICE == "cuda":  # a GPU has no address space without memory
        return
    tables = far((5, 2), 0, torch.int32)
    rows = [[0, 3], [0, 0], [0, 0], [0, 0], [0, 6]]
    tables[0, 1], tables[4, 1] = 3, 6
    why = "row * table_strides.row has overflowed 32 bits: make rows and columns 64-bit first"
    wide = far((1, 5), 1, torch.int32)
    wide[0, 4] = 6
    why_column = "column * table_strides.column has overflowed 32 bits: make rows and columns 64-bit first"
    for dtypes in ((torch.int64, torch.int64), (torch.int32, torch.int32)):
        check_mapping(exercise, rows, [5], [4], 4, why, tile=1, view=tables, dtypes=dtypes, is_why=True)
        row = [[0, 0, 0, 0, 6]]
        check_mapping(exercise, row, [17], [0], 4, why_column, tile=1, view=wide, dtypes=dtypes, is_why=True)


def test_tokens_heads_and_dims_far_apart(exercise: ModuleType) -> None:
    """Token 4, or head 4, or dim 4, lies 2^32 elements on: index * stride needs 64 bits."""
    if DEVICE == "cuda":
        return
    for axis, shape, what in ((0, (5, 1, 4), "token"), (1, (1, 5, 4), "head"), (2, (1, 1, 5), "dim")):
        keys, values = far(shape, axis), far(shape, axis, first=32)
        keys[-1, -1], values[-1, -1] = 1, 2
        caches = [apart(torch.full((1, 1, *shape[1:]), -1.0), torch.float16) for _ in range(2)]
        slots = torch.tensor([-1] * (shape[0] - 1) + [0], device=DEVICE)
        tried = f"keys and values {list(shape)} with strides {keys.stride()}, slots {slots.tolist()}"
        why = f"{what} * {what}_stride has overflowed 32 bits: make token, head and dim 64-bit first"
        drawing, _ = try_launch(
            tried,
            why,
            lambda k=keys, v=values, c=caches, s=slots: exercise.launch_write_kv(k, v, *c, s),
            ["keys", "values"],
            keys=keys,
            values=values,
        )
        for name, cache, want in zip(("key_cache", "value_cache"), caches, (1.0, 2.0), strict=True):
            got = cache[0, 0, -1].tolist()
            check_true(
                f"{name}[0, 0, {shape[1] - 1}] after {tried}",
                got == [want] * shape[2],
                show([want] * shape[2]),
                f"{show(got)}\n{drawing}",
                why,
            )


def test_a_large_pool(exercise: ModuleType) -> None:
    """In a pool of more than 2^32 elements, block * stride needs 64 bits."""
    key_cache, value_cache = far((5, 2, 1, 4), 0), far((5, 2, 1, 4), 0, first=32)
    keys, values = torch.ones(1, 1, 4), torch.full((1, 1, 4), 2.0)
    keys, values = (tokens.to(torch.float16).to(DEVICE) for tokens in (keys, values))
    slots = torch.tensor([9], device=DEVICE)
    tried = f"slot 9 in caches [5, 2, 1, 4] with strides {key_cache.stride()}: block 4 lies 2^32 elements on"
    why = "index * stride has overflowed 32 bits: make token, block, offset, head and dim 64-bit first"
    drawing, _ = try_launch(
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
