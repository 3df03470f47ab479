"""Grades lesson 13. Lessons 2, 3 and 5 lend the learner's own parts; with --solutions, the library's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from minipaged.course.checks import WrongAnswerError, check, check_raises, check_true, only_for, trying
from minipaged.course.learner import Learner, complete
from minipaged.engine import block_manager
from minipaged.engine.parts import REFERENCE, Parts
from minipaged.engine.request import Sequence
from minipaged.errors import LearnerError
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.block_table import BlockTable
from minipaged.reference.copy_on_write import copy_on_write

# What Hugging Face's generate answers, greedily, in float32: SmolLM2-135M-Instruct, its own chat template.
QUESTION = "What is a page table?"
ANSWER = (
    "A page table is a fundamental concept in computer architecture that describes the layout of memory in"
)
ANSWER_IDS = [49, 3013, 3252, 314, 253, 4959, 1909, 281, 2583, 6277, 338, 6601, 260, 10220, 282, 3500, 281]


def manager(exercise: ModuleType, num_blocks: int = 8, **options: Any) -> Any:
    """The learner's BlockManager over blocks of 4 tokens, with the methods that the lesson left out."""
    complete(exercise.BlockManager, block_manager.BlockManager)
    return exercise.BlockManager(num_blocks, 4, **options)


def sequence(blocks: Any, num_tokens: int, table: Iterable[int] = (), num_slots: int = 0) -> Sequence:
    """A sequence of the tokens 0, 1, 2, ..., whose table is made by hand."""
    token_ids = list(range(num_tokens))
    own = blocks.parts.block_table_class(4)
    own.append(num_slots, list(table))
    chain = blocks.new_chain(token_ids, None)
    return Sequence(token_ids, chain, own, None, num_prompt_tokens=num_tokens, seed=0)  # type: ignore[arg-type]


def placed(blocks: Any, num_tokens: int, num_slots: int | None = None) -> Sequence:
    """A sequence whose tokens, or the first `num_slots` of them, have slots in newly allocated blocks."""
    num_slots = num_tokens if num_slots is None else num_slots
    return sequence(blocks, num_tokens, blocks.cache.allocate(-(-num_slots // 4)), num_slots)


def hold_cached(blocks: Any, num_blocks: int) -> None:
    """Leave so many blocks in the cache: findable, and used by nobody."""
    gone = placed(blocks, num_blocks * 4)
    blocks.cache.publish(gone.chain, gone.table.blocks, 0, num_blocks)
    blocks.cache.free(gone.table.blocks)


def counts(blocks: Any) -> list[int]:
    """How many table entries the allocator thinks name each block."""
    return [blocks.allocator.reference_count(block) for block in range(blocks.num_blocks)]


def state(blocks: Any, *sequences: Sequence) -> tuple[Any, ...]:
    """All that a refused call must leave as it was."""
    tables = [(list(each.table.blocks), each.table.num_tokens) for each in sequences]
    return tables, counts(blocks), blocks.allocator.free_order()


def test_a_slot_in_the_last_block(exercise: ModuleType) -> None:
    """A new token goes into the last block while that has an empty slot."""
    blocks = manager(exercise)
    one = placed(blocks, 6, num_slots=5)
    with trying("append_slot: 6 tokens, 5 with a slot, in blocks [0, 1] of 4"):
        copied = blocks.append_slot(one)
    check(
        "append_slot: 6 tokens, 5 with a slot, in blocks [0, 1] of 4", copied, None, "nobody shares block 1"
    )
    check(
        "its blocks then",
        one.table.blocks,
        [0, 1],
        "block 1 has three empty slots: no new block. Tokens that are not computed yet may have a slot: "
        "num_tokens - table.num_tokens have none",
    )
    why = (
        "the table counts the new token: table.append. Whether it has a slot is told by table.num_tokens and "
        "sequence.num_tokens, since a token gets its slot before it is computed"
    )
    check("tokens with a slot then", one.table.num_tokens, 6, why)


def test_a_slot_in_a_new_block(exercise: ModuleType) -> None:
    """After the last slot of a block comes a new block, not a token earlier or later."""
    blocks = manager(exercise)
    for num_tokens, expected in ((1, [0]), (5, [1, 2]), (9, [3, 4, 5])):
        one = placed(blocks, num_tokens, num_slots=num_tokens - 1)
        tried = f"append_slot: {num_tokens} tokens, {num_tokens - 1} with a slot, blocks of 4"
        with trying(tried):
            check(tried, blocks.append_slot(one), None, "the token goes into a new block: nothing to copy")
        why = "the blocks so far are full to the last slot: the cache gives one more"
        check(f"its blocks after {tried}", one.table.blocks, expected, why)
        check(
            f"tokens with a slot after {tried}", one.table.num_tokens, num_tokens, "table.append counts them"
        )


def test_a_shared_last_block_is_copied(exercise: ModuleType) -> None:
    """Before a token goes into a block that another table names, the writer gets a copy of its own."""
    blocks = manager(exercise)
    one = placed(blocks, 6)
    blocks.cache.share(one.table.blocks)
    two = sequence(blocks, 7, one.table.blocks, 6)
    why = "block 1 is in two tables and has an empty slot: parts.copy_on_write(blocks, last index, cache)"
    with trying("append_slot: two tables [0, 1] with 6 tokens, one gets a seventh"):
        pair = blocks.append_slot(two)
    if pair is None and two.table.blocks == [0, 2]:
        why += ". It was called here, and its pair is lost: return the pair, or nobody copies the content"
    check("append_slot: two tables [0, 1] with 6 tokens, one gets a seventh", pair, (1, 2), why)
    check("the writer's blocks", two.table.blocks, [0, 2], "its last entry names the copy from now on")
    check("the other's blocks", one.table.blocks, [0, 1], "the other sequence keeps the block")
    check(
        "the counts of blocks 0 to 2",
        counts(blocks)[:3],
        [2, 1, 1],
        lambda got: (
            "parts.copy_on_write has given up the writer's use of block 1, which is lost when given up twice"
            if got[1] == 0
            else "the writer gives up its use of block 1, as parts.copy_on_write does"
        ),
    )
    one.token_ids.append(99)
    with trying("append_slot for the other one, which is alone now"):
        pair = blocks.append_slot(one)
    check("append_slot for the other one, which is alone now", pair, None, "the last user writes in place")


def test_a_full_shared_block_is_not_copied(exercise: ModuleType) -> None:
    """A full block is never written again, however many share it."""
    blocks = manager(exercise)
    one = placed(blocks, 8)
    blocks.cache.share(one.table.blocks)
    two = sequence(blocks, 9, one.table.blocks, 8)
    tried = "append_slot: two tables [0, 1] with 8 tokens, one gets a ninth"
    why = "block 1 is full, so the token goes into a new block: only a block with an empty slot is written to"
    with trying(tried):
        check(tried, blocks.append_slot(two), None, why)
    check(f"the writer's blocks after {tried}", two.table.blocks, [0, 1, 2], why)
    check("the counts of blocks 0 to 2", counts(blocks)[:3], [2, 2, 1], why)


def test_no_new_token_no_slot(exercise: ModuleType) -> None:
    """A sequence whose tokens all have a slot needs nothing, and no copy either."""
    blocks = manager(exercise)
    one = placed(blocks, 6)
    blocks.cache.share(one.table.blocks)
    two = sequence(blocks, 6, one.table.blocks, 6)
    before = state(blocks, one, two)
    tried = "append_slot: two tables [0, 1], all 6 tokens have a slot"
    why = "nothing will be written, so nothing is copied: look at how many tokens have no slot yet"
    with trying(tried):
        check(tried, blocks.append_slot(two), None, why)
    check(f"tables, counts and free blocks after {tried}", state(blocks, one, two), before, why)


def test_a_full_pool_is_no_obstacle(exercise: ModuleType) -> None:
    """A token for which the last block has a slot needs no block, and the last block may be taken."""
    blocks = manager(exercise, num_blocks=2)
    one = placed(blocks, 6, num_slots=5)
    why = "block 1 has an empty slot and one user: no block is needed, so none has to be available"
    for tried in ("a sixth token, both blocks of the pool are in use", "no new token, both are in use"):
        with trying(f"append_slot: {tried}", only_for(OutOfBlocksError, why)):
            check(f"append_slot: {tried}", blocks.append_slot(one), None, why)
    blocks = manager(exercise, num_blocks=2)
    one = placed(blocks, 5, num_slots=4)
    tried = "append_slot: a fifth token, one block of the pool's 2 is free"
    why = "one block is needed and one is there: whether others need it is the scheduler's to decide"
    with trying(tried, only_for(OutOfBlocksError, why)):
        blocks.append_slot(one)
    check(f"its blocks after {tried}", one.table.blocks, [0, 1], why)


def test_append_slot_is_all_or_nothing(exercise: ModuleType) -> None:
    """Where the pool is full, OutOfBlocksError comes and nothing has changed."""
    why = "whatever can fail comes before whatever changes: the table must not count a token that has no slot"
    why_error = (
        "the scheduler preempts a request when OutOfBlocksError reaches it: without, a token has no slot"
    )
    blocks = manager(exercise, num_blocks=2)
    one = placed(blocks, 9, num_slots=8)
    before = state(blocks, one)
    tried = "append_slot: a ninth token, both blocks of the pool are full"
    check_raises(tried, OutOfBlocksError, lambda: blocks.append_slot(one), why_error)
    check(f"table, counts and free blocks after {tried}", state(blocks, one), before, why)
    blocks = manager(exercise, num_blocks=2)
    one = placed(blocks, 6)
    blocks.cache.share(one.table.blocks)
    two = sequence(blocks, 7, one.table.blocks, 6)
    before = state(blocks, one, two)
    tried = "append_slot: a copy is needed, and no block is left for it"
    check_raises(tried, OutOfBlocksError, lambda: blocks.append_slot(two), why_error)
    check(f"tables, counts and free blocks after {tried}", state(blocks, one, two), before, why)


def test_a_cached_block_is_as_good_as_a_free_one(exercise: ModuleType) -> None:
    """Where no block is free, one that is only cached is evicted, for a new block as for a copy."""
    blocks = manager(exercise, num_blocks=2)
    hold_cached(blocks, 1)
    one = placed(blocks, 5, num_slots=4)
    tried = "append_slot: a fifth token in a pool of 2, where 1 block is cached and none is free"
    why = "self.cache.allocate evicts what is only cached; self.allocator knows of free blocks alone"
    with trying(tried, only_for(OutOfBlocksError, why)):
        check(tried, blocks.append_slot(one), None, "the token goes into a new block: nothing to copy")
    check(f"its blocks after {tried}", one.table.blocks, [1, 0], why)
    blocks = manager(exercise, num_blocks=4)
    hold_cached(blocks, 2)
    one = placed(blocks, 6)
    blocks.cache.share(one.table.blocks)
    two = sequence(blocks, 7, one.table.blocks, 6)
    tried = "append_slot: tables [2, 3] and [2, 3] with 6 tokens, one gets a seventh; 2 blocks are cached"
    why = "parts.copy_on_write takes self.cache, which evicts block 1 for the copy; no block is free"
    with trying(tried, only_for(OutOfBlocksError, why)):
        check(tried, blocks.append_slot(two), (3, 1), why)


def test_fork_shares_all_blocks(exercise: ModuleType) -> None:
    """A fork names the same blocks, each with one more user, in a table of its own."""
    blocks = manager(exercise)
    one = placed(blocks, 6)
    with trying("fork of a sequence with blocks [0, 1]"):
        table = blocks.fork(one)
    check("the fork's blocks", table.blocks, [0, 1], "it begins alike, so it names the same blocks")
    check("the fork's tokens", table.num_tokens, 6, "as many tokens have a slot")
    why = "each block is in two tables now: with one use, the first that ends takes it from the other"
    check("the counts of blocks 0 and 1 after the fork", counts(blocks)[:2], [2, 2], why)
    two = sequence(blocks, 7)
    two.table = table
    with trying("append_slot for the fork"):
        blocks.append_slot(two)
    why = "the fork's table is the parent's own: what one appends, the other sees"
    check("the parent's blocks after the fork got a seventh token", one.table.blocks, [0, 1], why)
    check("the parent's tokens after the fork got a seventh", one.table.num_tokens, 6, why)


def test_publish_makes_full_blocks_findable(exercise: ModuleType) -> None:
    """Once the K and V of a full block are written, a later prompt may find it; not before."""
    blocks = manager(exercise)
    one = placed(blocks, 14)
    one.num_prompt_tokens = 9
    for computed, expected in (
        (3, []),
        (4, [0]),
        (10, [0, 1]),
        (11, [0, 1]),
        (12, [0, 1, 2]),
        (14, [0, 1, 2]),
    ):
        tried = f"publish(sequence of 14 tokens, {computed}), blocks of 4"
        why = "cache.publish(chain, blocks, start, stop): `blocks` is the whole table, start to stop - 1 full"
        with trying(tried, only_for(IndexError, why)):
            blocks.publish(one, computed)
        found = [block for block in one.table.blocks if blocks.cache.is_findable(block)]
        check(
            f"the findable blocks after {tried}",
            found,
            expected,
            partial(_why_findable, one, computed),
        )
        check(
            f"num_computed_tokens after {tried}",
            one.num_computed_tokens,
            computed,
            "publish sets sequence.num_computed_tokens to this number, and adds nothing: nobody else does",
        )


def _why_findable(one: Sequence, computed: int, found: list[int]) -> str:
    """Too many blocks are findable, or too few."""
    if len(found) > computed // 4:
        return f"{computed} tokens fill {computed // 4} blocks: only what is written in full can be reused"
    if found and len(found) == one.num_prompt_tokens // 4:
        return (
            "the prompt has 9 of these tokens. An answer is found as well, where the next prompt repeats it"
        )
    if not found and one.num_computed_tokens == computed:
        return (
            "a full block is missing: start is the old num_computed_tokens // block_size, taken before the "
            "new number is set, and stop the new one // block_size. Round both down, or nothing is left"
        )
    return (
        f"{computed} tokens fill {computed // 4} blocks: each can be reused from now on, wherever in a block "
        f"the computed tokens end"
    )


def test_publish_keeps_users_apart(exercise: ModuleType) -> None:
    """Sequences with different salts share nothing: a block is published under its sequence's own chain."""
    blocks = manager(exercise)
    one = placed(blocks, 9)
    one.chain = blocks.new_chain(one.token_ids, "a user")
    with trying("publish(sequence of 9 tokens, 4), whose chain has a salt"):
        blocks.publish(one, 4)
    why = "publish with sequence.chain: it knows the salt, which keeps users apart"
    for salt, expected in ((None, []), ("a user", [0])):
        found = blocks.cache.lookup(blocks.new_chain(one.token_ids, salt))
        check(f"what the same tokens find with salt {salt!r}, published with 'a user'", found, expected, why)


def test_publish_begins_where_it_stopped(exercise: ModuleType) -> None:
    """Each block is published once: a step costs as much as it adds."""
    blocks = manager(exercise)
    one = placed(blocks, 13)
    spans: list[tuple[int, int]] = []
    blocks.cache.publish = lambda chain, table, start, stop: spans.append((start, stop))
    with trying("publish(6), publish(7) and publish(12) of a sequence of 13 tokens, blocks of 4"):
        for computed in (6, 7, 12):
            blocks.publish(one, computed)
    check(
        "blocks published by publish(6), then publish(7), then publish(12) of 13 tokens, blocks of 4",
        [block for start, stop in spans for block in range(start, stop)],
        [0, 1, 2],
        lambda got: (
            "a prefill may fill several blocks in a step: publish all of them, start to stop - 1"
            if len(got) < 3
            else "each once: start is what was full before, the old num_computed_tokens // block_size"
        ),
    )


def test_without_prefix_caching_nothing_is_published(exercise: ModuleType) -> None:
    """With enable_prefix_caching=False no block is findable, and progress is noted all the same."""
    blocks = manager(exercise, enable_prefix_caching=False)
    one = placed(blocks, 9)
    with trying("publish(sequence of 9 tokens, 8) without prefix caching"):
        blocks.publish(one, 8)
    found = [block for block in one.table.blocks if blocks.cache.is_findable(block)]
    check("findable blocks without prefix caching", found, [], "look at enable_prefix_caching")
    check("num_computed_tokens without prefix caching", one.num_computed_tokens, 8, "it is noted either way")


def test_free_gives_everything_back(exercise: ModuleType) -> None:
    """A sequence that ends gives up each of its blocks once, and starts from nothing."""
    blocks = manager(exercise)
    one = placed(blocks, 6)
    one.num_computed_tokens, one.num_prompt_tokens = 6, 5
    blocks.cache.share(one.table.blocks)
    two = sequence(blocks, 6, one.table.blocks, 6)
    with trying("free of one of two sequences with blocks [0, 1]"):
        blocks.free(one)
    check(
        "the counts of blocks 0 and 1 then",
        counts(blocks)[:2],
        [1, 1],
        lambda got: (
            "nothing was given up: take the blocks before the table is emptied, since its list is theirs"
            if got == [2, 2]
            else "one use of each, not the block itself"
        ),
    )
    check(
        "its own blocks then", one.table.blocks, [], "a new, empty table: nothing names the blocks any more"
    )
    check("its tokens with a slot then", one.table.num_tokens, 0, "a new, empty table")
    check(
        "its computed tokens then",
        one.num_computed_tokens,
        0,
        "its K and V are gone: all to be computed again",
    )
    why = "a preempted request goes on from its tokens: it gives up blocks alone"
    check("its tokens then", one.token_ids, [0, 1, 2, 3, 4, 5], why)
    check("the other one's blocks then", two.table.blocks, [0, 1], "the other sequence goes on")
    why = only_for(ValueError, "a preempted request may be aborted: free twice")
    with trying("free, called again for the same sequence", why):
        blocks.free(one)
    check("the counts after a second free", counts(blocks)[:2], [1, 1], "calling it again changes nothing")
    with trying("free of the second sequence"):
        blocks.free(two)
    found = [block for block in range(8) if blocks.cache.is_findable(block)]
    why = "`free` doesn't know what is written: only `publish`, which wasn't called, makes a block findable"
    check("findable blocks at the end", found, [], why)
    check("free blocks at the end", blocks.allocator.num_free, 8, "nobody uses a block")
    check_true(
        "the tables of two sequences after free",
        one.table is not two.table,
        "two empty tables",
        "one and the same",
        "each sequence has an empty table of its own: what one appends, the other would see",
    )


def test_freed_blocks_stay_findable(exercise: ModuleType) -> None:
    """Blocks go back through the cache, so that what was published can still be found, or evicted."""
    blocks = manager(exercise, num_blocks=3)
    one = placed(blocks, 9)
    with trying("publish(sequence of 9 tokens, 9), then free"):
        blocks.publish(one, 9)
        blocks.free(one)
    why = "self.cache.free keeps published blocks for later; self.allocator.free doesn't tell the cache"
    check("blocks that can be handed out then, of 3", blocks.num_available, 3, why)
    again = sequence(blocks, 9)
    with trying("admitting the same 9 tokens again"):
        check("tokens of the same prompt found in the cache", blocks.admit([again]), 8, why)


def test_the_tail_is_evicted_before_the_head(exercise: ModuleType) -> None:
    """What is freed is evicted from its end, so that the head can still be found."""
    blocks = manager(exercise, num_blocks=3)
    blocks.cache.allocate(3)
    one = sequence(blocks, 9, [2, 0, 1], 9)
    blocks.cache.publish(one.chain, one.table.blocks, 0, 2)
    with trying("free of a sequence with blocks [2, 0, 1], of which 2 and 0 are findable"):
        blocks.free(one)
    blocks.cache.allocate(2)  # block 1, and one that has to be evicted
    check(
        "the findable blocks after free of [2, 0, 1], with 2 and 0 findable, when another took 2 of the 3",
        blocks.cache.lookup(sequence(blocks, 9).chain),
        [2],
        "the tail is evicted before the head where the cache gets the blocks as they stand in the table",
    )


def test_free_of_a_sequence_on_the_host(exercise: ModuleType) -> None:
    """The blocks of a sequence that is swapped out belong to the host's pool, and go back there."""
    blocks = manager(exercise, num_host_blocks=4)
    one = placed(blocks, 6)
    one.num_computed_tokens = 6
    other = placed(blocks, 4)
    blocks.swap_out([one])
    why = "its table names blocks of the host pool (on_host): host_allocator.free, not the cache"
    with trying("free of a sequence that is swapped out", only_for(ValueError, why)):
        blocks.free(one)
    check("free blocks of the host pool, of 4", blocks.host_allocator.num_free, 4, why)
    check("free blocks of the pool, of 8", blocks.allocator.num_free, 7, why)
    check("on_host then", one.on_host, False, "it has no blocks: on the host no more")
    why_computed = "its K and V on the host are gone too: all to be computed again"
    check("its computed tokens then", one.num_computed_tokens, 0, why_computed)
    with trying("free, called again"):
        blocks.free(one)
        blocks.free(other)
    check(
        "free blocks of both pools at the end",
        (blocks.allocator.num_free, blocks.host_allocator.num_free),
        (8, 4),
        why,
    )


def test_the_parts_are_those_that_were_given(exercise: ModuleType) -> None:
    """Tables and copies come from `parts`, so that a reader's own can serve."""

    class OwnTable(BlockTable):
        def fork(self) -> BlockTable:
            return OwnTable(self.block_size, self.blocks, self.num_tokens)

    asked: list[int] = []

    def own_copy(table: Any, index: int, allocator: Any) -> Any:
        asked.append(index)
        return copy_on_write(table, index, allocator)

    blocks = manager(exercise, parts=Parts(block_table_class=OwnTable, copy_on_write=own_copy))
    one = placed(blocks, 6, num_slots=5)
    with trying("append_slot, fork and free with parts of one's own"):
        blocks.append_slot(one)
        check(
            "entries that parts.copy_on_write was asked about",
            asked,
            [1],
            "the last block's: index 1 of [0, 1]",
        )
        fork = blocks.fork(one)
        blocks.free(one)
    check("the kind of a fork's table", type(fork).__name__, "OwnTable", "the table's own fork() makes it")
    check("the kind of an empty table", type(one.table).__name__, "OwnTable", "self.new_table() makes it")


SMALL_TESTS = [
    test_a_slot_in_the_last_block,
    test_a_slot_in_a_new_block,
    test_a_shared_last_block_is_copied,
    test_a_full_shared_block_is_not_copied,
    test_no_new_token_no_slot,
    test_a_full_pool_is_no_obstacle,
    test_append_slot_is_all_or_nothing,
    test_a_cached_block_is_as_good_as_a_free_one,
    test_fork_shares_all_blocks,
    test_publish_makes_full_blocks_findable,
    test_publish_keeps_users_apart,
    test_free_gives_everything_back,
    test_freed_blocks_stay_findable,
]


def pass_small_tests(exercise: ModuleType) -> None:
    """A model is slow to load, and says less of what is wrong."""
    for small in SMALL_TESTS:
        small(exercise)


@contextmanager
def one_thread() -> Iterator[None]:
    """Small matrices: on a busy machine threads that wait for each other take ten times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def own_parts(request: pytest.FixtureRequest) -> tuple[Parts, bool]:
    """The learner's block table, allocator and copy-on-write, and whether they can cache prefixes."""
    if request.config.option.solutions or request.config.option.submission:
        return REFERENCE, True
    folders = ["02_block_table", "03_allocator", "05_copy_on_write"]
    paths = [Path(__file__).parents[1] / folder for folder in folders]
    for path in paths:
        try:
            Learner.load([path])
        except LearnerError as error:
            number = int(path.name[:2])
            raise WrongAnswerError(
                "serving with your own block table, allocator and copy-on-write",
                f"lesson {number} solved",
                str(error),
                f"lesson {number} comes first: pytest lessons/{path.name}",
            ) from error
    own = Learner.load(paths)
    return own.parts, own.can_cache


def serve(exercise: ModuleType, request: pytest.FixtureRequest, model: str, **options: Any) -> Any:
    """An engine that serves with all that the learner wrote, and proves that no block is lost."""
    from minipaged import LLM

    parts, can_cache = own_parts(request)
    complete(exercise.BlockManager, block_manager.BlockManager)
    return LLM(
        model,
        device="cpu",
        parts=parts,
        block_manager_class=exercise.BlockManager,
        enable_prefix_caching=can_cache,
        check_invariants=True,
        **options,
    )


def check_served(llm: Any, prompts: list[list[int]], expected: list[list[int]], what: str) -> None:
    """Three greedy samples of each prompt share it, are copied when they part, and all say the same."""
    from minipaged import SamplingParams

    copies: list[tuple[int, int]] = []
    llm.engine.observers.append(lambda step: copies.extend(step.copies))
    params = SamplingParams(n=3, temperature=0, max_tokens=len(expected[0]), ignore_eos=True)
    with trying(f"serving {what} with what you wrote"):
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, output, want in zip(prompts, outputs, expected, strict=True):
        for sample in output.outputs:
            check(
                f"token ids of sample {sample.index} for a prompt of {len(prompt)} tokens, {what}",
                sample.token_ids,
                want,
                "K or V was read from a wrong place: a block is written by two, or wasn't copied",
            )
    check_true(
        f"copies while 3 samples of each prompt were served, {what}",
        len(copies) >= 2,
        "at least 2: the samples share a last block that isn't full",
        str(len(copies)),
        "append_slot returns the pair of each copy, for the engine to carry it out",
    )
    allocator = llm.engine.blocks.allocator
    check(
        f"free and cached blocks after everything has ended, {what}",
        allocator.num_free + allocator.num_cached,
        allocator.num_blocks,
        "every sequence that ends gives its blocks back",
    )


def test_a_tiny_model(
    exercise: ModuleType, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A tiny random model says the same through your pool as through Hugging Face's generate."""
    pass_small_tests(exercise)
    with one_thread():
        serve_a_tiny_model(exercise, request, tmp_path_factory.mktemp("tiny"))


def serve_a_tiny_model(exercise: ModuleType, request: pytest.FixtureRequest, folder: Path) -> None:
    """Against Hugging Face's generate, in a large pool and in one that is too small for all."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float64).eval()
    prompts = [list(range(20, 20 + length)) for length in (1, 6, 8, 14)]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=11, do_sample=False)
        expected.append(answer[0, len(prompt) :].tolist())
    model.save_pretrained(folder)
    llm = serve(exercise, request, str(folder), dtype="float64", block_size=4, num_blocks=60)
    check_served(llm, prompts, expected, "a tiny random model")
    # A pool that is too small for all: requests are preempted, give their blocks up and come back.
    llm = serve(exercise, request, str(folder), dtype="float64", block_size=4, num_blocks=13)
    check_served(llm, prompts, expected, "a tiny random model in a pool of 13 blocks")
    assert llm.stats().num_preemptions > 0


def test_smollm2(exercise: ModuleType, request: pytest.FixtureRequest) -> None:
    """SmolLM2, a real model, answers through your pool what it answers in Hugging Face's generate."""
    pass_small_tests(exercise)
    with one_thread():
        llm = serve(exercise, request, "smollm2-135m", dtype="float32", num_blocks=64)
        prompt = llm.chat_token_ids([{"role": "user", "content": QUESTION}])
        check_served(llm, [prompt], [ANSWER_IDS], f"SmolLM2 asked {QUESTION!r}")
    check("the text", llm.tokenizer.decode(ANSWER_IDS), ANSWER, "that is what Hugging Face answers")
