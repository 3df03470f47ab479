"""Grades lesson 7, part 2, the cache. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

from random import Random
from types import ModuleType
from typing import Any

from minipaged.course.checks import TensorItem, check, check_raises, check_true, only_for, trying
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError

A = [5, 6, 7, 8, 1, 2, 3, 4, 9, 8, 7, 6]  # three full blocks of 4
B = [2, 2, 2, 2, 3, 3, 3, 3]


def constant_hash(parent_digest: Any, content: tuple[Any, ...]) -> int:
    """All digests collide."""
    return 0


def content_hash(parent_digest: Any, content: tuple[Any, ...]) -> tuple[Any, ...]:
    """Digests collide where a block's own tokens are equal, whatever came before them."""
    return content


def two_blocks_hash(parent_digest: Any, content: tuple[Any, ...]) -> tuple[Any, ...]:
    """Digests collide where a block's own tokens and those of the block before are equal."""
    return (parent_digest[-1] if parent_digest else None, content)


def new_cache(exercise: ModuleType, num_blocks: int) -> Any:
    return exercise.PrefixCache(BlockAllocator(num_blocks))


def published(exercise: ModuleType, cache: Any, ids: list[int], **options: Any) -> list[int]:
    """Blocks in use that hold these tokens, the full ones findable."""
    blocks: list[int] = cache.allocator.allocate(-(-len(ids) // 4))
    with trying(f"publish of all {len(ids) // 4} full blocks of tokens {ids}, block size 4"):
        cache.publish(exercise.PrefixChain(ids, 4, **options), blocks, 0, len(ids) // 4)
    return blocks


def cached(exercise: ModuleType, cache: Any, ids: list[int]) -> list[int]:
    """The blocks of a request that has ended."""
    blocks = published(exercise, cache, ids)
    with trying(f"free({blocks}), which hold tokens {ids}"):
        cache.free(blocks)
    return blocks


def found(exercise: ModuleType, cache: Any, ids: list[int], **options: Any) -> Any:
    with trying(
        f"lookup of {ids}",
        only_for(IndexError, "a block that isn't full has no link: look at full blocks only"),
    ):
        return cache.lookup(exercise.PrefixChain(ids, 4, **options))


def state(cache: Any) -> list[Any]:
    """All that a refused call must leave as it was."""
    blocks = range(cache.allocator.num_blocks)
    counts = [cache.allocator.reference_count(block) for block in blocks]
    findable = [block for block in blocks if cache.is_findable(block)]
    return [cache.allocator.free_order(), counts, findable, cache.cached_blocks]


STATE = "free blocks, counts, findable blocks and the line for eviction"


# ---- publish and lookup -----------------------------------------------------------------------------------


def test_what_is_published_is_found(exercise: ModuleType) -> None:
    """A prompt finds the blocks of the longest prefix that is known, and one token is left to compute."""
    check_found(exercise, 13, [1, 2, 3])
    for length, want in ((13, [0, 1, 2]), (5, [0]), (9, [0, 1]), (7, [0]), (3, []), (1, []), (0, [])):
        check_found(exercise, length, want)
    for length, want in ((4, []), (8, [0]), (12, [0, 1])):
        check_found(exercise, length, want)


def check_found(exercise: ModuleType, length: int, want: list[int]) -> None:
    cache = new_cache(exercise, 5)
    first = want[0] if want else 0
    cache.allocator.allocate(first)
    blocks = published(exercise, cache, A)
    tried = f"the first 12 were published in blocks {first} to {first + 2}"
    check(f"findable blocks after {tried}", state(cache)[2], blocks, RANGE)
    before = state(cache)
    ids = [*A, 7][:length]
    tried = f"lookup of the first {length} of tokens {[*A, 7]}, after {tried}"
    got = found(exercise, cache, ids)
    check(tried, got, want, lambda got: _wrong_found(got, want, length))
    check(
        f"{STATE} after {tried}",
        state(cache),
        before,
        "to look is not to touch: share is called by who looked",
    )


RANGE = "publish makes blocks start to stop - 1 findable, and no others"


def _wrong_found(got: Any, want: list[int], length: int) -> str:
    if isinstance(got, list) and len(got) > len(want) and length % 4 == 0:
        return (
            "the whole prompt is found and nothing is left to compute: sampling needs the logits of one "
            "token at "
            "least, so only blocks within the first len - 1 tokens count"
        )
    if isinstance(got, list) and len(got) > len(want):
        return "only full blocks within the first len - 1 tokens can be found"
    if got == [] and want[:1] == [0]:  # blocks 1 to 3 were found
        return "block 0 was taken for a miss: 0 is false in Python, so ask whether the block is None"
    if want and got == want[:-1]:
        return (
            "one block less than can be found: the token that is left to compute lies behind these blocks. "
            "The last full block is given up only where the prompt ends with it"
        )
    return "from block 0 on, one block id for each link that _find knows, as a list"


def test_only_the_same_beginning_is_found(exercise: ModuleType) -> None:
    """Known tokens after other tokens, or under another salt, are not found."""
    cache = new_cache(exercise, 6)
    published(exercise, cache, A)
    for ids, want, why in (
        ([5, 6, 7, 8, 0, 2, 3, 4, 9, 8, 7, 6, 0], [0], "token 4 differs: the first block only is known"),
        ([5, 6, 7, 0, 1, 2, 3, 4, 9, 8, 7, 6, 0], [], "token 3 differs: not even the first block is known"),
        (
            [1, 2, 3, 4, 9, 8, 7, 6, 0],
            [],
            "these tokens are known in another place: the chain decides, not the block",
        ),
        ([5, 6, 7, 8, 9, 8, 7, 6, 0], [0], "block 2's tokens are known after two blocks, not after one"),
    ):
        check(
            f"lookup of {ids}, after {A} was published in blocks 0 to 2",
            found(exercise, cache, ids),
            want,
            why,
        )
    tried = f"lookup of {[*A, 0]} with the salt 'a', after it was published without"
    why = "the salt is missing in the chain: requests with different salts share nothing"
    check(tried, found(exercise, cache, [*A, 0], salt="a"), [], why)
    published(exercise, cache, B, salt="a")
    check(
        f"lookup of {[*B, 0]} with the salt 'a', after it was published with it in blocks 3 and 4",
        found(exercise, cache, [*B, 0], salt="a"),
        [3, 4],
        "the same salt and the same tokens are the same chain",
    )
    check(f"lookup of {[*B, 0]} without the salt", found(exercise, cache, [*B, 0]), [], why)


def test_blocks_of_one_token(exercise: ModuleType) -> None:
    """With a block size of 1 all but the last token can be found."""
    cache = new_cache(exercise, 4)
    blocks = cache.allocator.allocate(2)
    with trying("publish of tokens [7, 8], block size 1"):
        cache.publish(exercise.PrefixChain([7, 8], 1), blocks, 0, 2)
    for ids, want in (([7, 8, 9], [0, 1]), ([7, 8], [0]), ([7], []), ([], [])):
        tried = f"lookup of {ids}, block size 1, after [7, 8] was published in blocks 0 and 1"
        with trying(tried, only_for(IndexError, "a prompt of no tokens has no block at all")):
            got = cache.lookup(exercise.PrefixChain(ids, 1))
        check(tried, got, want, "at least one token is left to compute: only the first len - 1 tokens count")


def test_nothing_is_found_past_a_hole(exercise: ModuleType) -> None:
    """The search ends at the first block that isn't known."""
    cache = new_cache(exercise, 4)
    blocks = cache.allocator.allocate(3)
    chain = exercise.PrefixChain(A, 4)
    hole = (
        "it went on past a hole: block 0 isn't known, so a prompt would have to compute it, and block 1 is "
        "then of no "
        "use before it. Stop at the first miss"
    )
    with trying("publish of blocks 1 and 2 of 3"):
        cache.publish(chain, blocks, 1, 3)
    findable = [cache.is_findable(block) for block in range(4)]
    tried = "is_findable of blocks 0 to 3 after publish from 1 to 3"
    check(tried, findable, [False, True, True, False], _wrong_range)
    tried = "lookup where blocks 1 and 2 are published, and 0 is not"
    gap = (
        "block 0 isn't known although 1 and 2 are, so a block that is known says nothing of those before "
        "it, and no search by halves finds the first miss: go from block 0 on, and stop there"
    )
    with trying(tried, only_for((KeyError, TypeError), gap)):
        got = cache.lookup(exercise.PrefixChain([*A, 0], 4))
    check(tried, got, [], hole)
    with trying("publish of block 0 after blocks 1 and 2"):
        cache.publish(chain, blocks, 0, 1)
    why = "once the hole is filled the whole prefix is known"
    check("lookup after block 0 was published, too", found(exercise, cache, [*A, 0]), [0, 1, 2], why)


def _wrong_range(got: list[bool]) -> str:
    if got == [True, True, False, False]:
        return f"{RANGE}. `blocks` is the whole table, so link i is in blocks[i], whatever start is"
    if got == [True, True, True, False]:
        return f"{RANGE}. start was passed over"
    return RANGE


def test_what_lies_behind_stop_is_not_published(exercise: ModuleType) -> None:
    """Full blocks from `stop` on are left alone, because their K and V may be missing."""
    for start, stop, want in ((0, 1, [0]), (0, 2, [0, 1]), (1, 2, [1]), (0, 0, []), (1, 1, [])):
        cache = new_cache(exercise, 4)
        tried = f"publish(chain, blocks, {start}, {stop}) of tokens {A}: three full blocks of 4"
        with trying(tried, only_for(IndexError, "a table may have full blocks behind `stop`")):
            cache.publish(exercise.PrefixChain(A, 4), cache.allocator.allocate(3), start, stop)
        why = RANGE
        got = state(cache)[2]
        if stop in got:
            why = (
                f"block {stop} was published as well. It is full of tokens, but the K and V of block stop "
                "are not written yet: a prompt that finds it reads what is in no memory"
            )
        check(f"findable blocks after {tried}", got, want, why)


def test_a_partial_block_is_not_published(exercise: ModuleType) -> None:
    """Publishing what isn't full, or isn't in the table, is an error that publishes nothing."""
    for length, num_blocks, start, stop in (
        (7, 2, 0, 2),
        (7, 2, 1, 2),
        (12, 2, 0, 3),
        (8, 3, 0, 3),
        (8, 2, -1, 1),
        (3, 1, 0, 1),
        (4, 0, 0, 1),
    ):
        cache = new_cache(exercise, 4)
        blocks = cache.allocator.allocate(num_blocks)
        chain = exercise.PrefixChain(A[:length], 4)
        before = state(cache)
        tried = (
            f"publish of blocks {start} to {stop - 1} of {length} tokens in a table of {num_blocks}, block "
            f"size 4"
        )
        why = (
            "a partial block can't be published: what it will hold isn't known. Full are as many as "
            "len(token_ids) // block_size, and the table must have them"
        )
        if start < 0:
            why = "start is negative: blocks are counted from 0, but Python reads blocks[-1] as the last one"
        elif stop > num_blocks:
            why = f"the table must have them: it has {num_blocks}. A slice or zip() ends there: compare stop"
        check_raises(
            tried,
            IndexError,
            lambda c=cache, h=chain, b=blocks, i=start, j=stop: c.publish(h, b, i, j),
            why,
        )
        why = "some blocks were published before the wrong one was noticed: look at start and stop first"
        check(f"{STATE} after the refused {tried}", state(cache), before, why)
        retained = [block for block in blocks if not cache.allocator.can_reuse(block)]
        check(f"blocks that the allocator retains after the refused {tried}", retained, [], why)
    cache = new_cache(exercise, 4)
    blocks = cache.allocator.allocate(2)
    with trying("publish(chain, blocks, 1, 1), which is nothing"):
        cache.publish(exercise.PrefixChain(A[:7], 4), blocks, 1, 1)
    check(
        "findable blocks after publish(chain, blocks, 1, 1)",
        state(cache)[2],
        [],
        "start to stop - 1 is empty",
    )
    with trying(
        "publish(chain, blocks, 0, 1) of 7 tokens: one full block, in a table of two",
        only_for(IndexError, "block 0 is full"),
    ):
        cache.publish(exercise.PrefixChain(A[:7], 4), blocks, 0, 1)
    check("findable blocks after publish(chain, blocks, 0, 1)", state(cache)[2], [0], "block 0 is full")


def test_a_second_copy_stays_a_plain_block(exercise: ModuleType) -> None:
    """Where an equal prefix is findable already, publishing another copy changes nothing."""
    cache = new_cache(exercise, 6)
    first = published(exercise, cache, A[:8])
    second = published(exercise, cache, A[:8])
    check(
        "findable blocks after tokens 0 to 7 were published in blocks 0, 1 and again in 2, 3",
        state(cache)[2],
        first,
        "an equal prefix is findable already, so the second copy stays a plain block, and the first keeps "
        "its place",
    )
    why = "the second copy replaced the first: the first keeps its place"
    check("lookup after two copies were published", found(exercise, cache, A), first, why)
    retained = [block for block in range(6) if not cache.allocator.can_reuse(block)]
    check(
        "blocks that the allocator retains after that",
        retained,
        first,
        "retain what becomes findable, nothing else",
    )
    tried = "publish of blocks 0 and 1 in a table of one block, where both prefixes are findable already"
    why = (
        "block 1 is not in the table: look at start and stop before anything else, whatever is known already"
    )
    chain = exercise.PrefixChain(A[:8], 4)
    check_raises(tried, IndexError, lambda: cache.publish(chain, second[:1], 0, 2), why)
    again = (
        "publishing again what is findable is harmless: nothing is to be done, and retain can't be called "
        "twice"
    )
    with trying("publish of the same blocks once more", only_for(ValueError, again)):
        cache.publish(exercise.PrefixChain(A[:8], 4), first, 0, 2)
    with trying("free of the second copy"):
        cache.free(second)
    why = "a plain block is free once nobody uses it: it isn't findable, so it isn't kept"
    check("free blocks after the second copy was freed", sorted(state(cache)[0]), [2, 3, 4, 5], why)


def test_what_follows_a_known_beginning_is_published(exercise: ModuleType) -> None:
    """Blocks that are known already are passed by, and those behind them become findable."""
    cache = new_cache(exercise, 4)
    published(exercise, cache, [5, 6, 7, 8])
    ids = [5, 6, 7, 8, 1, 2, 3, 4, 9]
    published(exercise, cache, ids)
    tried = f"5 6 7 8 was published in block 0, and then {ids} in blocks 1, 2 and 3, block size 4"
    why = (
        "block 1 is a second copy of what block 0 holds and stays plain, but nobody has published what "
        "block 2 holds: where one is known go on with the next, for a known beginning is the usual case"
    )
    check(f"findable blocks after {tried}", state(cache)[2], [0, 2], why)
    check(f"lookup of {ids} after {tried}", found(exercise, cache, ids), [0, 2], why)


def test_a_refused_publish_changes_nothing(exercise: ModuleType) -> None:
    """Publishing a block that is free, or findable already by another prefix, is an error."""
    free = "block 3 is free, and only a block in use can be retained: `retain` raises ValueError"
    twice = "one block can't hold two prefixes: `retain` raises ValueError where a block is retained already"
    for table, why in (([3, 0, 1], free), ([0, 3, 1], free), ([0, 0, 1], twice), ([0, 2, 1], twice)):
        cache = new_cache(exercise, 4)
        cache.allocator.allocate(3)
        with trying("publish of other tokens in block 2"):
            cache.publish(exercise.PrefixChain(B, 4), [2], 0, 1)
        before = state(cache)
        tried = f"publish of tokens {A} in blocks {table}, where 3 is free and 2 holds another prefix"
        chain = exercise.PrefixChain(A, 4)
        call = lambda c=cache, h=chain, b=table: c.publish(h, b, 0, 3)  # noqa: E731
        check_raises(tried, ValueError, call, why)
        wrong = next(block for block in table if block != 0 or table.count(0) > 1)
        why = f"block 0 was published before block {wrong} was refused: look at all before any is entered"
        if wrong == 0:
            why = "block 0 was published once before its second place was refused: look at all first"
        if set(state(cache)[2]) - set(before[2]) - {0}:
            why = f"block {wrong} became findable although retain refused it: retain first, and enter it then"
        check(f"{STATE} after the refused {tried}", state(cache), before, why)
        got = [block for block in range(4) if not cache.allocator.can_reuse(block)]
        why = "block 0 stays retained though it isn't findable, so it will never be free: release it again"
        check(f"blocks that the allocator retains after the refused {tried}", got, [2], why)


# ---- collisions -------------------------------------------------------------------------------------------


def test_tokens_decide_where_digests_are_equal(exercise: ModuleType) -> None:
    """Another prompt with the same digest is a miss, and the first keeps its place."""
    cache = new_cache(exercise, 4)
    published(exercise, cache, A[:4], hash_function=constant_hash)
    chain = exercise.PrefixChain(B, 4, hash_function=constant_hash)
    tried = f"lookup of {B}, after {A[:4]} was published with the same digest (a hash that is always 0)"
    with trying(tried):
        got = cache.lookup(chain)
    why = (
        "the hash was trusted, and a stranger's block was found: same_tokens must compare the tokens of "
        "both chains"
    )
    check(tried, got, [], why)
    why = "a chain adopts a link only once its tokens have been compared"
    check(f"content of chain[0] after {tried}", chain[0].content, (2, 2, 2, 2), why)
    with trying(f"publish of {B[:4]} where {A[:4]} has the same digest"):
        cache.publish(chain, cache.allocator.allocate(1), 0, 1)
    why = "the first keeps its place in a collision: with its entry replaced its block would be lost"
    check(
        "findable blocks after another prefix with the same digest was published", state(cache)[2], [0], why
    )
    got = found(exercise, cache, A[:5], hash_function=constant_hash)
    check(f"lookup of {A[:5]} after that", got, [0], why)


def test_blocks_behind_a_collision_are_published(exercise: ModuleType) -> None:
    """A block whose digest a stranger has is passed by, and those behind it become findable."""
    cache = new_cache(exercise, 4)
    published(exercise, cache, [9, 9, 9, 9, 1, 1, 1, 1], hash_function=content_hash)
    published(exercise, cache, [1, 1, 1, 1, 2, 2, 2, 2], hash_function=content_hash)
    tried = (
        "9 9 9 9 1 1 1 1 was published in blocks 0 and 1, and 1 1 1 1 2 2 2 2 in blocks 2 and 3, with a hash "
        "that sees a block's own tokens only"
    )
    why = "block 2 has the digest of block 1 and stays plain. Block 3 has its own: go on behind a collision"
    check(f"findable blocks after {tried}", state(cache)[2], [0, 1, 3], why)
    cache = new_cache(exercise, 4)
    published(exercise, cache, [1, 1, 1, 1, 1, 1, 1, 1], hash_function=content_hash)
    tried = "1 1 1 1 1 1 1 1 was published in blocks 0 and 1, with a hash that sees a block's own tokens only"
    why = "both blocks have one digest: the first keeps its place, also within one call"
    check(f"findable blocks after {tried}", state(cache)[2], [0], why)
    retained = [block for block in range(4) if not cache.allocator.can_reuse(block)]
    check(f"blocks that the allocator retains after {tried}", retained, [0], why)


def test_the_whole_chain_is_compared(exercise: ModuleType) -> None:
    """Equal blocks after different beginnings are different, even where their digests are equal."""
    cache = new_cache(exercise, 4)
    published(exercise, cache, [1, 1, 1, 1, 5, 5, 5, 5], hash_function=content_hash)
    published(exercise, cache, [2, 2, 2, 2], hash_function=content_hash)
    ids = [2, 2, 2, 2, 5, 5, 5, 5, 0]
    check(
        f"lookup of {ids}, after 1 1 1 1 5 5 5 5 was published in blocks 0, 1 and 2 2 2 2 in block 2, with "
        f"a hash "
        "that sees a block's own tokens only",
        found(exercise, cache, ids, hash_function=content_hash),
        [2],
        "block 1 holds 5 5 5 5 after other tokens: compare the whole chain with same_tokens, not only the "
        "block's own",
    )


def test_a_chain_of_another_length_is_different(exercise: ModuleType) -> None:
    """An equal block that was reached by a longer way isn't the same prefix."""
    cache = new_cache(exercise, 4)
    blocks = cache.allocator.allocate(2)
    ids = [1, 1, 1, 1, 5, 5, 5, 5]
    with trying(f"publish of block 1 alone of tokens {ids}, with a hash that is always 0"):
        cache.publish(exercise.PrefixChain(ids, 4, hash_function=constant_hash), blocks, 1, 2)
    tried = f"lookup of [5, 5, 5, 5, 9], after block 1 of {ids} was published (the hash is always 0)"
    why = (
        "5 5 5 5 is known after 1 1 1 1, and not as the beginning. Digests of the links before may be equal, "
        "too: compare the whole chain with same_tokens"
    )
    check(tried, found(exercise, cache, [5, 5, 5, 5, 9], hash_function=constant_hash), [], why)


def test_the_salt_is_compared(exercise: ModuleType) -> None:
    """The root is a link as well: under another salt the same tokens are another prefix."""
    cache = new_cache(exercise, 4)
    published(exercise, cache, A[:4], salt="a", hash_function=constant_hash)
    ids = [5, 6, 7, 8, 1]
    tried = f"lookup of {ids} with the salt 'b', after 5 6 7 8 was published with 'a' (the hash is always 0)"
    why = (
        "all tokens are equal, and the salts are not: the salt is the content of the root, and same_tokens "
        "goes back as far as that"
    )
    check(tried, found(exercise, cache, ids, salt="b", hash_function=constant_hash), [], why)


def test_the_chain_is_compared_back_to_its_root(exercise: ModuleType) -> None:
    """Two equal blocks in a row don't make two prefixes equal."""
    cache = new_cache(exercise, 6)
    for ids in ([1, 5, 7], [2, 5]):
        blocks = cache.allocator.allocate(len(ids))
        with trying(f"publish of tokens {ids}, block size 1, with a hash that sees two blocks only"):
            cache.publish(exercise.PrefixChain(ids, 1, None, two_blocks_hash), blocks, 0, len(ids))
    tried = (
        "lookup of [2, 5, 7, 9], block size 1, after 1 5 7 was published in blocks 0 to 2 and 2 5 in blocks "
        "3 and 4, with a hash that sees a block and the one before it"
    )
    why = (
        "block 2 holds 7 after 1 5, which isn't 7 after 2 5: compare the whole chain with same_tokens, and "
        "not only the last two links"
    )
    with trying(tried, only_for(AttributeError, why)):
        got = cache.lookup(exercise.PrefixChain([2, 5, 7, 9], 1, None, two_blocks_hash))
    check(tried, got, [3, 4], why)


def test_a_known_link_is_adopted(exercise: ModuleType) -> None:
    """A chain takes over the links that it was found equal to, so that it is compared once."""
    cache = new_cache(exercise, 3)
    published(exercise, cache, A[:8])
    one, two = exercise.PrefixChain(A[:9], 4), exercise.PrefixChain(A[:9], 4)
    tried = f"lookup of {A[:9]} by two chains, after its first 8 tokens were published from another one"
    with trying(tried):
        cache.lookup(one)
        cache.lookup(two)
    why = (
        "each chain still has links of its own, so each further comparison goes back to the root: where "
        "_find knows a block it calls chain.adopt(index, known)"
    )
    for index in (0, 1):
        check_true(f"chain[{index}] of both after {tried}", one[index] is two[index], "one link", "two", why)


# ---- free and share ---------------------------------------------------------------------------------------


def test_what_nobody_uses_is_kept_in_line(exercise: ModuleType) -> None:
    """A findable block that nobody uses is cached, the tail before the head; others are free."""
    cache = new_cache(exercise, 5)
    blocks = published(exercise, cache, A[:10])
    with trying("free([0, 1, 2]), where 0 and 1 are findable"):
        unused = cache.free(blocks)
    check("free([0, 1, 2]), where 0 and 1 are findable", unused, [2, 1, 0], "what allocator.free returned")
    why = "the list of blocks is the caller's: read it, and take nothing out"
    check("the list of blocks that was passed to free([0, 1, 2])", blocks, [0, 1, 2], why)
    check(
        "cached_blocks after free([0, 1, 2]), where 0 and 1 are findable",
        cache.cached_blocks,
        [1, 0],
        _wrong_line,
    )
    why = "block 2 isn't findable, so it is free; 0 and 1 are retained, so they are not"
    check("the free blocks after that, of 5", cache.allocator.free_order(), [2, 3, 4], why)
    check("num_available after that", cache.num_available, 5, "free and cached blocks can be handed out")
    why = "nobody uses the blocks, and a prompt finds them: that is what the cache is for"
    check("lookup of the same tokens after that", found(exercise, cache, A[:10]), [0, 1], why)
    why = (
        "to look is not to touch: a prompt that found its blocks may still have to wait, or never run. Share "
        "takes a block out of the line, and free puts it at the end"
    )
    check("cached_blocks after that lookup", cache.cached_blocks, [1, 0], why)
    with trying("free([])"):
        check("free([])", cache.free([]), [], "nothing is given up")


def _wrong_line(got: Any) -> str:
    if got == [0, 1]:
        return (
            "the head is evicted before the tail: a tail without its head can't be found. Keep blocks in "
            "the order "
            "in which the allocator freed them, from the tail on"
        )
    if isinstance(got, list) and 2 in got:
        return "only findable blocks are kept: block 2 is on the free stack already"
    return "findable blocks that fall to a count of 0 stand in line for eviction: _keep(unused)"


def test_a_hit_leaves_the_line(exercise: ModuleType) -> None:
    """A block in use can't be evicted: share takes it out of the line, the last free puts it back."""
    cache = new_cache(exercise, 3)
    cached(exercise, cache, A[:8])
    line = (
        "a hit block is in use and must leave the line for eviction (`_unused`), or it is evicted under "
        "its user"
    )
    with trying("share([0, 1]), where both are cached"):
        cache.share([0, 1])
    check("cached_blocks after share([0, 1]), where both were cached", cache.cached_blocks, [], line)
    counts = [cache.reference_count(block) for block in range(3)]
    check("counts after share([0, 1]), where both were cached", counts, [1, 1, 0], "one more use of each")
    check("num_available after share([0, 1]) of 3", cache.num_available, 1, line)
    why = "a block in use can be shared again, and is in no line: pop(block, None)"
    with trying("share([0, 1]) again", only_for(KeyError, why)):
        cache.share([0, 1])
    with trying("free([0, 1]) with two users"):
        check("free([0, 1]) with two users", cache.free([0, 1]), [], "one user is left")
    check(
        "cached_blocks after free([0, 1]) with two users",
        cache.cached_blocks,
        [],
        "one user is left: not cached",
    )
    with trying("free([0, 1]) by the last user"):
        check("free([0, 1]) by the last user", cache.free([0, 1]), [1, 0], "nobody uses them any more")
    check("cached_blocks after free([0, 1]) by the last user", cache.cached_blocks, [1, 0], _wrong_line)
    once = "blocks may be a generator, which can be gone through only once: blocks = list(blocks)"
    tried = "share([0, 1]) from a generator, where both are cached"
    with trying(tried, only_for(TypeError, once)):
        cache.share(iter([0, 1]))
    counts = [cache.reference_count(block) for block in range(3)]
    check(f"counts after {tried}", counts, [1, 1, 0], once)
    check(f"cached_blocks after {tried}", cache.cached_blocks, [], once)


def test_a_block_that_is_named_twice(exercise: ModuleType) -> None:
    """Each time a block is named is one use more, or one less."""
    cache = new_cache(exercise, 2)
    cached(exercise, cache, A[:4])
    why = "named twice, so used twice: pass the blocks on as they are, each as often as it is named"
    with trying("share([0, 0]), where 0 is cached", only_for((ValueError, KeyError), why)):
        cache.share([0, 0])
    check("the count of block 0 after share([0, 0])", cache.reference_count(0), 2, why)
    with trying("free([0, 0]), where 0 has two users", only_for((ValueError, KeyError), why)):
        check("free([0, 0]), where 0 has two users", cache.free([0, 0]), [0], why)
    check("the count of block 0 after free([0, 0])", cache.reference_count(0), 0, why)
    why = (
        "block 0 was named twice, so its count fell from 2 to 0 in one call: keep what "
        "allocator.free returns instead of counting before"
    )
    check("cached_blocks after free([0, 0])", cache.cached_blocks, [0], why)


def test_what_sharing_and_freeing_refuse(exercise: ModuleType) -> None:
    """Sharing a free block, or freeing one too often, is an error that changes nothing."""
    cache = new_cache(exercise, 4)
    cached(exercise, cache, A[:8])
    before = state(cache)
    tried = "share([0, 2]), where 0 is cached and 2 is free"
    check_raises(tried, ValueError, lambda: cache.share([0, 2]), "block 2 is free: the allocator says so")
    why = "blocks left the line before the allocator had its say: call allocator.share first"
    if state(cache)[1] != before[1]:
        why = "block 0 was shared before block 2 was refused: share all in one call, which looks at all first"
    check(f"{STATE} after the refused {tried}", state(cache), before, why)
    tried = "free([0]), where 0 is cached"
    check_raises(tried, ValueError, lambda: cache.free([0]), "nobody uses block 0: the allocator says so")
    why = "the line changed before the allocator had its say: call allocator.free first"
    check(f"{STATE} after the refused {tried}", state(cache), before, why)
    with trying("share([0]), where 0 is cached"):
        cache.share([0])
    before = state(cache)
    for blocks in ([3, 0], [0, 3]):
        tried = f"free({blocks}), where 0 has one user and 3 is free"
        check_raises(
            tried, ValueError, lambda b=blocks: cache.free(b), "block 3 is free: the allocator says so"
        )
        why = (
            "block 0 was given up before block 3 was refused: free all in one call, which looks at all first"
        )
        check(f"{STATE} after the refused {tried}", state(cache), before, why)


def test_ids_of_another_type(exercise: ModuleType) -> None:
    """Ids may be a tensor's items, which no dictionary finds again."""
    cache = new_cache(exercise, 3)
    cache.allocator.allocate(2)
    why = "a tensor's items are equal to themselves only, as keys of a dict: take operator.index(block)"
    with trying(
        "publish of two blocks, their ids being a tensor's items",
        only_for((ValueError, KeyError, TypeError), why),
    ):
        cache.publish(exercise.PrefixChain(A[:8], 4), [TensorItem(0), TensorItem(1)], 0, 2)
    check("findable blocks after a publish of a tensor's items 0 and 1", state(cache)[2], [0, 1], why)
    with trying("free of a tensor's items 0 and 1", only_for((ValueError, KeyError, TypeError), why)):
        cache.free([TensorItem(0), TensorItem(1)])
    check("cached_blocks after free of a tensor's items 0 and 1", cache.cached_blocks, [1, 0], why)
    with trying("share of a tensor's items 0 and 1", only_for((ValueError, KeyError, TypeError), why)):
        cache.share([TensorItem(0), TensorItem(1)])
    check("cached_blocks after share of a tensor's items 0 and 1", cache.cached_blocks, [], why)


def test_the_least_recently_used_comes_first(exercise: ModuleType) -> None:
    """Who was used again goes to the end of the line."""
    cache = new_cache(exercise, 3)
    for first in (10, 20, 30):
        cached(exercise, cache, [first] * 4)
    check(
        "cached_blocks after blocks 0, 1 and 2 were freed one after the other",
        cache.cached_blocks,
        [0, 1, 2],
        LRU,
    )
    with trying("share([0]) and free([0])"):
        cache.share([0])
        cache.free([0])
    check("cached_blocks after block 0 was used again", cache.cached_blocks, [1, 2, 0], LRU)
    evicts = (
        "no block is free, but cached ones can be handed out, too: evict as many as are missing. An evicted "
        "block is free only once allocator.release was called: without it num_free never grows"
    )
    with trying(
        "allocate(1), with blocks 1, 2 and 0 cached in this order",
        only_for((OutOfBlocksError, KeyError), evicts),
    ):
        taken = cache.allocate(1)
    why = "one block was missing, so one is evicted: stop as soon as the allocator has enough free blocks"
    check("how many blocks are cached after that", len(cache.cached_blocks), 2, why)
    check("allocate(1), with blocks 1, 2 and 0 cached in this order", taken, [1], LRU)
    check("cached_blocks after that", cache.cached_blocks, [2, 0], LRU)


LRU = (
    "the least recently used block is evicted first: the first key of `_unused`; the last one used goes to "
    "its end"
)


# ---- allocate ---------------------------------------------------------------------------------------------


def test_free_blocks_are_taken_first(exercise: ModuleType) -> None:
    """Cached blocks are evicted only where the free ones don't suffice, and no more of them than needed."""
    cache = new_cache(exercise, 4)
    cached(exercise, cache, A[:8])
    for number, want, left in ((0, [], [1, 0]), (2, [2, 3], [1, 0]), (1, [1], [0]), (1, [0], [])):
        tried = (
            f"allocate({number}), with {cache.allocator.num_free} free blocks and cached ones "
            f"{cache.cached_blocks}"
        )
        with trying(tried):
            got = cache.allocate(number)
        why = "free blocks come first, and then cached ones, in line: no more are evicted than are missing"
        check(tried, sorted(got), want, why)
        check(f"cached_blocks after {tried}", cache.cached_blocks, left, why)
        counts = [cache.reference_count(block) for block in got]
        check(f"counts of the blocks of {tried}", counts, [1] * number, "handed out: one user each")
    cache = new_cache(exercise, 2)
    with trying("allocate() without a number"):
        check("allocate() without a number", cache.allocate(), [0], "the default of num_blocks is 1")


def test_several_are_evicted_at_once(exercise: ModuleType) -> None:
    """A large request evicts as many as it needs, from the front of the line."""
    cache = new_cache(exercise, 5)
    cached(exercise, cache, A)
    tried = "allocate(4), with 2 free blocks and cached ones [2, 1, 0]"
    with trying(tried):
        got = cache.allocate(4)
    check(
        tried,
        sorted(got),
        [1, 2, 3, 4],
        "no more are evicted than are missing: two free ones, and 2 and 1 from the line",
    )
    check(f"cached_blocks after {tried}", cache.cached_blocks, [0], "no more are evicted than are missing")
    check(f"findable blocks after {tried}", state(cache)[2], [0], GONE)
    got = found(exercise, cache, A)
    why = GONE if got[:1] == [0] else "the tail was evicted, the head is still a prefix"
    check(f"lookup of {A} after {tried}", got, [0], why)


GONE = (
    "a recycled block keeps its old entry: what is evicted must not be found any more. It goes from "
    "`_blocks` and "
    "from `_digests`"
)


def test_a_recycled_block_is_not_found(exercise: ModuleType) -> None:
    """An evicted block is findable no more, and may be published again with other tokens."""
    cache = new_cache(exercise, 2)
    cached(exercise, cache, A[:8])
    with trying("allocate(2), where both blocks of the pool are cached"):
        blocks = cache.allocate(2)
    check("findable blocks after both were evicted", state(cache)[2], [], GONE)
    check(f"lookup of {A} after both of its blocks were evicted", found(exercise, cache, A), [], GONE)
    retained = [block for block in range(2) if not cache.allocator.can_reuse(block)]
    check(
        "blocks that the allocator retains after both were evicted", retained, [], "release what is evicted"
    )
    with trying(
        "publish of other tokens in the recycled blocks",
        only_for(ValueError, "they are not retained any more"),
    ):
        cache.publish(exercise.PrefixChain(B, 4), blocks, 0, 2)
    check(f"lookup of {A} after its blocks were published with {B}", found(exercise, cache, A), [], GONE)
    why = "a recycled block holds what was published last"
    check(f"lookup of {[*B, 0]} after that", found(exercise, cache, [*B, 0]), blocks, why)
    with trying("free of the recycled blocks"):
        cache.free(blocks)
    with trying("allocate(2) after they were freed"):
        cache.allocate(2)
    with trying(
        f"publish of {A[:8]} where it was published and evicted before",
        only_for((ValueError, KeyError), GONE),
    ):
        cache.publish(exercise.PrefixChain(A, 4), blocks, 0, 2)
    check(
        f"lookup of {A} after it was published again",
        found(exercise, cache, A),
        blocks,
        "published: it is found",
    )


def test_a_block_in_use_is_not_evicted(exercise: ModuleType) -> None:
    """What a request has found stays, however full the pool; a head may go while its tail is in use."""
    cache = new_cache(exercise, 3)
    blocks = cached(exercise, cache, A)
    with trying("share([1, 2]), where 0 to 2 are cached, and allocate(1)"):
        cache.share(blocks[1:])
        taken = cache.allocate(1)
    check(
        "allocate(1), where 0 is cached and 1 and 2 are in use",
        taken,
        [0],
        "0 is the only one that nobody uses",
    )
    why = "the head is gone: there is a hole, and the blocks behind it can't be found. Stop at the first miss"
    check("lookup after the head was evicted", found(exercise, cache, [*A, 0]), [], why)
    check(
        "findable blocks after the head was evicted",
        state(cache)[2],
        [1, 2],
        "the tail still has its entries",
    )
    used = "all blocks are in use, none can be evicted"
    check_raises(
        "allocate(1), where all blocks are in use", OutOfBlocksError, lambda: cache.allocate(1), used
    )


def test_a_refused_allocation_evicts_nothing(exercise: ModuleType) -> None:
    """All or nothing: where too few blocks are available none is evicted."""
    cache = new_cache(exercise, 4)
    cached(exercise, cache, A[:8])
    with trying("allocate(1)"):
        cache.allocate(1)
    before = state(cache)
    tried = "allocate(4), with 1 free block and 2 cached ones"
    why = "with too few blocks the caller expects OutOfBlocksError, to preempt somebody"
    error = check_raises(tried, OutOfBlocksError, lambda: cache.allocate(4), why)
    why = (
        "blocks were evicted before it was clear that they don't suffice: ask num_available first, all or "
        "nothing"
    )
    check(f"{STATE} after the refused {tried}", state(cache), before, why)
    why = "OutOfBlocksError(num_blocks, available): 4 asked; the free one and both cached ones are available"
    check(f"`missing` of the error of {tried}", getattr(error, "missing", None), 1, why)
    check_raises("allocate(-1)", ValueError, lambda: cache.allocate(-1), "a negative number is a mistake")
    check(f"{STATE} after allocate(-1)", state(cache), before, "nothing may change")
    with trying(
        "allocate(3), with 1 free block and 2 cached ones",
        only_for(OutOfBlocksError, "three are available, and all can be handed out"),
    ):
        check(
            "allocate(3), with 1 free block and 2 cached ones",
            sorted(cache.allocate(3)),
            [0, 1, 3],
            "all three",
        )


# ---- lookup again -----------------------------------------------------------------------------------------


def test_each_lookup_looks_anew(exercise: ModuleType) -> None:
    """A request that waits looks again with the same chain, and finds what is in the cache by then."""
    cache = new_cache(exercise, 2)
    chain = exercise.PrefixChain([*A[:8], 9], 4)
    tried = f"lookup of {[*A[:8], 9]} by one chain"
    with trying(f"{tried}, in an empty cache"):
        cache.lookup(chain)
    cached(exercise, cache, A[:8])
    hits = check_again(cache, chain, f"{tried}, once before and once after it was published", [0, 1])
    hits.clear()
    why = "the list that was returned is kept, and the caller may change it: return a new list each time"
    check_again(cache, chain, f"{tried}, again, after the caller emptied the list of hits", [0, 1], why)
    with trying("allocate(1), which evicts block 1, and publish of other tokens in it"):
        blocks = cache.allocate(1)
        cache.publish(exercise.PrefixChain(B[:4], 4), blocks, 0, 1)
    why = (
        "block 1 was found before and is findable, but it was recycled in between and holds other tokens: "
        "look anew at each call, by _find"
    )
    check_again(cache, chain, f"{tried}, again, after block 1 was published with other tokens", [0], why)
    with trying("allocate(1), which evicts block 0"):
        cache.allocate(1)
    check_again(cache, chain, f"{tried}, again, after block 0 was evicted, too", [])


def check_again(cache: Any, chain: Any, tried: str, want: list[int], why: str = "") -> Any:
    anew = (
        "what an earlier lookup found was remembered. Between two lookups blocks are published and evicted: "
        "look anew at each call, by _find"
    )
    with trying(tried):
        got = cache.lookup(chain)
    check(tried, got, want, why or anew)
    return got


def test_a_long_prompt(exercise: ModuleType) -> None:
    """A prompt of 2000 blocks is published and found."""
    cache = new_cache(exercise, 2000)
    ids = list(range(2000))
    why = "a function that calls itself for the next block goes as deep as the prompt is long: use a loop"
    tried = "publish of 2000 tokens, block size 1"
    with trying(tried, only_for(RecursionError, why)):
        cache.publish(exercise.PrefixChain(ids, 1), cache.allocator.allocate(2000), 0, 2000)
    tried = f"lookup of 2000 tokens after {tried}"
    with trying(tried, only_for(RecursionError, why)):
        got = cache.lookup(exercise.PrefixChain(ids, 1))
    check(tried, got, ids[:-1], "all blocks but the one of the last token are known")


# ---- a long life ------------------------------------------------------------------------------------------


def test_a_long_life(exercise: ModuleType) -> None:
    """150 requests in a pool of 8 blocks find what a cache kept by hand finds, and lose no block."""
    random = Random(7)
    cache = new_cache(exercise, 8)
    known: dict[tuple[int, ...], int] = {}  # the block that holds a prefix
    line: list[int] = []  # cached blocks, the next to be evicted first
    live: list[list[int]] = []
    for turn in range(150):
        if live and (len(live) == 3 or random.random() < 0.3):
            blocks = live.pop(random.randrange(len(live)))
            finish(cache, turn, blocks, live, known, line)
            continue
        ids = [random.randrange(2) for _ in range(random.randrange(1, 9))]
        prefixes = [tuple(ids[:end]) for end in range(2, len(ids) + 1, 2)]
        want = []
        for prefix in [p for p in prefixes if len(p) < len(ids)]:
            if prefix not in known:
                break
            want.append(known[prefix])
        chain = exercise.PrefixChain(ids, 2)
        tried = f"round {turn} of a long life, a prompt {ids}, block size 2"
        with trying(tried):
            got = cache.lookup(chain)
            why = "it must find the longest prefix that was published and not evicted, less the last token"
            check(f"lookup in {tried}", got, want, why)
            cache.share(got)
        line[:] = [block for block in line if block not in got]
        missing = -(-len(ids) // 2) - len(got)
        if missing > cache.allocator.num_free + len(line):
            why = "fewer blocks are available: free and cached ones"
            check_raises(
                f"allocate({missing}) in {tried}", OutOfBlocksError, lambda n=missing: cache.allocate(n), why
            )
            finish(cache, turn, got, live, known, line)
            continue
        num_evicted = max(missing - cache.allocator.num_free, 0)
        with trying(tried):
            taken = cache.allocate(missing)
        evicted = set(line[:num_evicted])
        del line[:num_evicted]
        check_true(
            f"allocate({missing}) in {tried}",
            evicted <= set(taken),
            f"blocks {sorted(evicted)} among others",
            str(taken),
            LRU,
        )
        for prefix in [p for p, block in known.items() if block in evicted]:
            del known[prefix]
        blocks = got + taken
        with trying(tried):
            cache.publish(chain, blocks, len(got), len(ids) // 2)
        for prefix, block in list(zip(prefixes, blocks, strict=False))[len(got) :]:
            known.setdefault(prefix, block)
        live.append(blocks)
        add_up(cache, turn, live, known, line)


def finish(cache: Any, turn: int, blocks: list[int], live: Any, known: Any, line: list[int]) -> None:
    with trying(f"free({blocks}) in round {turn} of a long life"):
        cache.free(blocks)
    named = {block for table in live for block in table}
    line += [block for block in reversed(blocks) if block not in named and block in known.values()]
    add_up(cache, turn, live, known, line)


def add_up(cache: Any, turn: int, live: list[list[int]], known: dict[Any, int], line: list[int]) -> None:
    tried = f"after round {turn} of a long life"
    counts = [sum(table.count(block) for table in live) for block in range(8)]
    free = [block for block in range(8) if not counts[block] and block not in line]
    check(f"cached_blocks {tried}", cache.cached_blocks, line, LRU)
    got = state(cache)
    check(
        f"all counts {tried}", got[1], counts, "a block's count is the number of table entries that name it"
    )
    check(f"findable blocks {tried}", got[2], sorted(known.values()), GONE)
    check(
        f"the free blocks {tried}",
        sorted(got[0]),
        free,
        "a block is free, in use or cached, exactly one of these",
    )
