"""Both worlds driven through the same random life of a pool, step by step.

Hypothesis chooses what happens: prompts arrive (with prefix hits), tokens are appended, sequences fork, beams
are reordered, groups are swapped out and in, sequences end, and calls are made that must fail. After every
step both worlds agree exactly, and what always holds (counts, states, contents) is checked against a shadow
that knows only which tokens each sequence has.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from worlds import Bookkeeping, KernelWorld, ReferenceWorld, World

from minipaged.reference import copy_on_write as reference_copies
from minipaged.reference import swap as reference_swap
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.block_table import BlockTable, num_blocks_for
from minipaged.reference.prefix_chain import PrefixChain

NUM_BLOCKS, NUM_HOST_BLOCKS, HEAD_DIM = 10, 6, 1
BLOCK_SIZE = 4  # with float64 and one layer, a block is 64 bytes
TIMES = int(os.environ.get("MINIPAGED_LOCKSTEP_TIMES", "1"))  # `make lockstep` sets it

rank = st.integers(0, 1000)
token = st.integers(0, 1)
# Prompts that often begin alike.
prompt = st.builds(
    lambda length, tail: [0] * length + tail, st.integers(0, 12), st.lists(token, min_size=1, max_size=6)
)


class Sequence:
    """The shadow: tokens, and what each world has for them."""

    def __init__(self, group: int, tokens: list[int], salt: str | None) -> None:
        self.group = group
        self.tokens = tokens
        self.salt = salt
        self.on_host = False
        self.tables: list[BlockTable] = []
        self.chains: list[PrefixChain] = []

    def vector(self, position: int, kv: int) -> list[float]:
        """The K or V of a token: it depends on all tokens up to it, and here on the salt too."""
        digest = sha256(repr((self.tokens[: position + 1], self.salt, kv)).encode()).digest()
        return [byte / 256 - 0.5 for byte in digest[:HEAD_DIM]]

    def vectors(self, kv: int) -> list[list[float]]:
        """[position][head_dim] of all its tokens."""
        return [self.vector(position, kv) for position in range(len(self.tokens))]


class Lockstep(RuleBasedStateMachine):
    """The machine over two whole worlds; subclasses choose others."""

    classes: tuple[type[World], type[World]] = (ReferenceWorld, KernelWorld)
    has_contents = True

    def __init__(self) -> None:
        super().__init__()
        sizes = (NUM_BLOCKS, NUM_HOST_BLOCKS, BLOCK_SIZE, HEAD_DIM)
        self.worlds = [world(*sizes) for world in self.classes]  # type: ignore[arg-type]
        self.sequences: list[Sequence] = []
        self.num_groups = 0

    # ------------------------------------------------------------------ helpers

    def both(self, action: Callable[[int, World], Any]) -> tuple[bool, list[Any]]:
        """Do the same in both worlds: whether it worked, and what it gave. A failure changes nothing."""
        results: list[Any] = []
        failures: list[type[Exception] | None] = []
        for index, world in enumerate(self.worlds):
            before = copy.deepcopy(world.state())
            try:
                results.append(action(index, world))
                failures.append(None)
            except (OutOfBlocksError, ValueError) as error:
                failures.append(type(error))
                after = world.state()
                assert (after[0], after[1], after[3]) == (before[0], before[1], before[3])
        assert failures[0] == failures[1]
        assert len(results) < 2 or self.comparable(results[0]) == self.comparable(results[1])
        return failures[0] is None, results

    def comparable(self, result: Any) -> Any:
        if isinstance(result, BlockTable):
            return result.blocks, result.num_tokens
        return [self.comparable(each) for each in result] if isinstance(result, list) else result

    def running(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if not sequence.on_host]

    def choose_group(self, rank: int, on_host: bool) -> list[Sequence]:
        groups = sorted({each.group for each in self.sequences if each.on_host == on_host})
        group = groups[rank % len(groups)]
        return [sequence for sequence in self.sequences if sequence.group == group]

    def write(self, sequence: Sequence, index: int, start: int, table: BlockTable) -> None:
        """Write the K and V of the tokens from `start` on, and publish the blocks that are full."""
        world, stop = self.worlds[index], len(sequence.tokens)
        keys, values = ([sequence.vector(at, kv) for at in range(start, stop)] for kv in (0, 1))
        world.write(table, range(start, stop), keys, values)
        first, last = start // BLOCK_SIZE, stop // BLOCK_SIZE
        world.cache.publish(sequence.chains[index], table.blocks, first, last)

    # ------------------------------------------------------------------ what can happen

    @initialize(prompts=st.lists(prompt, min_size=1, max_size=3))
    def begin(self, prompts: list[list[int]]) -> None:
        for tokens in prompts:
            self.arrive(tokens, None)

    @rule(tokens=prompt, salt=st.sampled_from([None, None, "x"]))
    def arrive(self, tokens: list[int], salt: str | None) -> None:
        sequence = Sequence(self.num_groups, tokens, salt)
        sequence.chains = [PrefixChain(tokens, BLOCK_SIZE, salt) for _ in self.worlds]

        def admit(index: int, world: World) -> BlockTable:
            hits = world.cache.lookup(sequence.chains[index])
            world.cache.share(hits)
            try:
                new = world.cache.allocate(num_blocks_for(len(tokens), BLOCK_SIZE) - len(hits))
            except OutOfBlocksError:
                world.cache.free(hits)
                raise
            table = BlockTable(BLOCK_SIZE, hits + new, len(tokens))
            self.write(sequence, index, len(hits) * BLOCK_SIZE, table)
            return table

        done, sequence.tables = self.both(admit)
        if done:
            self.num_groups += 1
            self.sequences.append(sequence)

    @precondition(lambda self: self.running())
    @rule(rank=rank, token=token)
    def append(self, rank: int, token: int) -> None:
        sequence = self.running()[rank % len(self.running())]
        done, _ = self.both(lambda index, world: world.append_slot(sequence.tables[index]))
        if done:
            sequence.tokens.append(token)
            for index, table in enumerate(sequence.tables):
                self.write(sequence, index, len(sequence.tokens) - 1, table)

    @precondition(lambda self: self.running())
    @rule(rank=rank)
    def fork(self, rank: int) -> None:
        parent = self.running()[rank % len(self.running())]
        _, tables = self.both(lambda index, world: world.fork(parent.tables[index]))
        self.sequences.append(self.child(parent, tables))

    def child(self, parent: Sequence, tables: list[BlockTable]) -> Sequence:
        sequence = Sequence(parent.group, list(parent.tokens), parent.salt)
        sequence.tables = tables
        sequence.chains = [PrefixChain(sequence.tokens, BLOCK_SIZE, parent.salt) for _ in self.worlds]
        return sequence

    @precondition(lambda self: self.running())
    @rule(rank=rank, choices=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def reorder(self, rank: int, choices: list[int]) -> None:
        beams = self.choose_group(rank, on_host=False)
        parents = [choice % len(beams) for choice in choices]
        for world in self.worlds:
            world.make_room(len(parents))
        if self.worlds[0].allocator.num_free < len(parents) and self.worlds[0].cache._digests:
            return  # the device can't evict; dropped blocks that are findable would have to be
        done, results = self.both(
            lambda index, world: world.reorder([beam.tables[index] for beam in beams], parents)
        )
        if done:
            children = [
                self.child(beams[parent], [tables[row] for tables in results])
                for row, parent in enumerate(parents)
            ]
            self.sequences = [each for each in self.sequences if each not in beams] + children

    @precondition(lambda self: self.running())
    @rule(rank=rank)
    def swap_out(self, rank: int) -> None:
        group = self.choose_group(rank, on_host=False)
        done, _ = self.both(
            lambda index, world: world.swap_out([each.tables[index].blocks for each in group])
        )
        for sequence in group:
            sequence.on_host = done

    @precondition(lambda self: len(self.running()) < len(self.sequences))
    @rule(rank=rank)
    def swap_in(self, rank: int) -> None:
        group = self.choose_group(rank, on_host=True)

        def action(index: int, world: World) -> list[tuple[int, int]]:
            resident: dict[int, int] = {}
            for each in group:
                hits = world.cache.lookup(each.chains[index])
                resident |= dict(zip(each.tables[index].blocks, hits, strict=False))
            return world.swap_in([each.tables[index].blocks for each in group], resident)

        done, _ = self.both(action)
        for sequence in group:
            sequence.on_host = not done

    @precondition(lambda self: self.sequences)
    @rule(rank=rank)
    def end(self, rank: int) -> None:
        """Finished or aborted, wherever it is."""
        sequence = self.sequences.pop(rank % len(self.sequences))

        def give_up(index: int, world: World) -> list[int]:
            blocks = sequence.tables[index].blocks
            return world.host_allocator.free(blocks) if sequence.on_host else world.free(blocks)

        done, _ = self.both(give_up)
        assert done

    @precondition(lambda self: self.running())
    @rule(blocks=st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=4))
    def misuse(self, blocks: list[int]) -> None:
        """Calls that can't be met: all of the pool and one more, a double free, sharing what is free."""
        world = self.worlds[0]
        counts = Counter(blocks)
        assert not self.both(lambda _, world: world.cache.allocate(world.cache.num_available + 1))[0]
        if any(times > world.allocator.reference_count(block) for block, times in counts.items()):
            assert not self.both(lambda _, world: world.cache.free(blocks))[0]
        if set(blocks) & set(world.allocator.free_order()):
            assert not self.both(lambda _, world: world.allocator.share(blocks))[0]

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def worlds_agree(self) -> None:
        assert self.worlds[0].state() == self.worlds[1].state()

    @invariant()
    def counts_are_table_entries_and_no_block_is_lost(self) -> None:
        for index, world in enumerate(self.worlds):
            for pool, on_host in ((world.allocator, False), (world.host_allocator, True)):
                tables = [each.tables[index] for each in self.sequences if each.on_host == on_host]
                named = Counter(block for table in tables for block in table.blocks)
                assert all(pool.reference_count(block) == named[block] for block in range(pool.num_blocks))
                free = pool.free_order()
                assert len(free) == len(set(free)) == pool.num_free
                assert pool.num_free + pool.num_in_use + pool.num_cached == pool.num_blocks
                assert not set(free) & (set(named) | set(world.cache._digests if not on_host else ()))

    @invariant()
    def every_token_is_where_its_table_says(self) -> None:
        for sequence in self.running() if self.has_contents else []:
            expected = [sequence.vectors(kv) for kv in (0, 1)]
            for world, table in zip(self.worlds, sequence.tables, strict=True):
                assert world.read(table) == expected

    def teardown(self) -> None:
        """In the end, attention: right in both worlds, and to the bit what blocks in order would give."""
        for sequence in self.running() if self.has_contents else []:
            keys, values = (np.array(sequence.vectors(kv)) for kv in (0, 1))
            query = [[0.5] * HEAD_DIM, [-1.0] * HEAD_DIM]
            scores = np.exp(0.5 * np.array(query) @ keys.T)
            expected = (scores / scores.sum(axis=1, keepdims=True)) @ values
            for index, world in enumerate(self.worlds):
                output = world.attend(query, sequence.tables[index])
                np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-14)
                assert output == self.attend_in_order(sequence, index, query)

    def attend_in_order(self, sequence: Sequence, index: int, query: list[list[float]]) -> list[list[float]]:
        """The same attention in a fresh world whose table is 0, 1, 2, ..."""
        num_blocks = num_blocks_for(len(sequence.tokens), BLOCK_SIZE)
        world = type(self.worlds[index])(num_blocks, 1, BLOCK_SIZE, HEAD_DIM)  # type: ignore[call-arg]
        table = BlockTable(BLOCK_SIZE, range(num_blocks), len(sequence.tokens))
        world.write(table, range(len(sequence.tokens)), sequence.vectors(0), sequence.vectors(1))
        return world.attend(query, table)


class BookkeepingReference(Bookkeeping, ReferenceWorld):
    """Accounts only."""


class BookkeepingKernels(Bookkeeping, KernelWorld):
    """Accounts only."""


class LockstepBookkeeping(Lockstep):
    """The accounts of both worlds, many more examples."""

    classes = (BookkeepingReference, BookkeepingKernels)
    has_contents = False


def times(examples: int) -> settings:
    """Settings for so many examples, the same ones each time."""
    return settings(
        max_examples=examples,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def test_both_worlds_keep_the_same_accounts() -> None:
    run_state_machine_as_test(LockstepBookkeeping, settings=times(100 * TIMES))


def test_both_worlds_hold_the_same_contents() -> None:
    run_state_machine_as_test(Lockstep, settings=times(25 * TIMES))


# ---------------------------------------------------------------------- the test of the test: planted faults


class MissedCount(World):
    """A fork that nobody counts."""

    def fork(self, table: BlockTable) -> BlockTable:
        return table.fork()


class CopyAfterReuse(World):
    """Blocks are swapped out once they have been given to somebody else."""

    def swap_out(self, tables: list[list[int]]) -> list[tuple[int, int]]:
        pairs = reference_swap.swap_out(tables, self.cache, self.host_allocator)
        self.poison(self.allocator.free_order())
        self.move(pairs, to_host=True)
        return pairs


class TableNotRepointed(World):
    """The block is copied, and then the old one is written."""

    def append_slot(self, table: BlockTable) -> None:
        last = len(table) - 1
        if table.num_empty_slots and self.cache.reference_count(table.blocks[last]) > 1:
            source = table.blocks[last]
            pair = reference_copies.copy_on_write(table.blocks, last, self.cache)
            assert pair is not None
            self.copy([pair])
            table.blocks[last] = source
            table.append(1)
        else:
            super().append_slot(table)


class Shared(Lockstep):
    """A life that begins with two sequences over the same blocks, where the planted faults are."""

    @initialize(tokens=prompt)
    def begin(self, tokens: list[int]) -> None:
        self.arrive(tokens, None)
        self.fork(0)


def test_without_a_fault_nothing_is_found() -> None:
    run_state_machine_as_test(Shared, settings=times(5))


@pytest.mark.parametrize("fault", [MissedCount, CopyAfterReuse, TableNotRepointed])
def test_a_planted_fault_is_found_even_where_both_worlds_have_it(fault: type[World]) -> None:
    faulty = tuple(type(base.__name__, (fault, base), {}) for base in (ReferenceWorld, KernelWorld))
    machine = type("Faulty", (Shared,), {"classes": faulty})
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        # Found is enough: no time is spent on a smaller example.
        run_state_machine_as_test(machine, settings=settings(times(400), phases=[Phase.generate]))
