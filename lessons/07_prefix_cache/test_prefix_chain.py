"""Grades lesson 7, part 1, the chain. Read the tests if you like: they are the specification in numbers."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

from minipaged.course.checks import check, check_raises, check_true, only_for, trying

A = [5, 6, 7, 8, 1, 2, 3, 4, 9, 8, 7, 6]  # three full blocks of 4


# ---- chain_hash -------------------------------------------------------------------------------------------


def test_a_digest_is_that_of_the_whole_chain(exercise: ModuleType) -> None:
    """The digest of a block depends on its tokens and on all that came before."""
    with trying(
        "chain_hash(None, (None,)), the root without a salt",
        only_for((TypeError, AttributeError), "the root's parent_digest is None"),
    ):
        root = exercise.chain_hash(None, (None,))
    tried = "chain_hash(root, (1, 2)) and chain_hash(other, (1, 2)), where other = chain_hash(root, (3, 4))"
    with trying(tried):
        other = exercise.chain_hash(root, (3, 4))
        one, two = exercise.chain_hash(root, (1, 2)), exercise.chain_hash(other, (1, 2))
    why = (
        "the hash isn't chained: it is that of the block alone. K and V depend on all tokens before the "
        "block, so "
        "the parent's digest must be hashed as well"
    )
    check_true(tried, one != two, "two digests", "the same digest twice", why)
    tried = "chain_hash(root, (1, 2)), twice"
    why = "the same chain must have the same digest whenever it is hashed"
    check_true(tried, exercise.chain_hash(root, (1, 2)) == one, "the same digest", "another digest", why)
    with trying(
        "a digest as the key of a dict",
        only_for(TypeError, "a digest is looked up in a dict: it must be hashable"),
    ):
        {one: 1}  # noqa: B018


def test_other_tokens_have_another_digest(exercise: ModuleType) -> None:
    """Different tokens have different digests."""
    reasons = {
        ((1, 2), (2, 1)): "order counts",
        ((1, 23), (12, 3)): "the ids' digits were joined: where one id ends and the next begins is lost",
        ((1, 2), (257, 2)): "a token id takes more than one byte",
        ((1, 2), (65537, 2)): "a token id takes more than two bytes",
        ((1, 2), (2**32 + 1, 2)): "a token id may take 8 bytes",
        ((1, 2), (2**61, 2)): "Python's hash(2**61) == hash(1): its own hash is no digest",
        ((1, 2, 3, 4), (1, 2, 3, 5)): "all tokens count, the last one too",
        ((1, 2, 3, 4), (0, 2, 3, 4)): "all tokens count, the first one too",
        ((0, 0), (0, 0, 0)): "the number of tokens counts",
    }
    for (one, two), why in reasons.items():
        with trying(
            f"chain_hash(root, {one}) and chain_hash(root, {two})",
            only_for((ValueError, OverflowError, struct.error), why),
        ):
            root = exercise.chain_hash(None, (None,))
            digests = exercise.chain_hash(root, one), exercise.chain_hash(root, two)
        tried = f"chain_hash(root, {one}) and chain_hash(root, {two})"
        check_true(tried, digests[0] != digests[1], "two digests", "the same digest twice", why)


def test_a_digest_is_long_enough(exercise: ModuleType) -> None:
    """2000 blocks have 2000 digests."""
    tried = "chain_hash(root, (i, 2)) for i from 0 to 1999"
    with trying(tried):
        root = exercise.chain_hash(None, (None,))
        got = len({exercise.chain_hash(root, (i, 2)) for i in range(2000)})
    why = (
        "the digest is too short: a byte has 256 values, so of a few hundred blocks many share a digest, and "
        "the cache keeps only the first of these. Keep all bytes of the hash"
    )
    check(f"different digests of {tried}", got, 2000, why)


def test_a_digest_does_not_grow(exercise: ModuleType) -> None:
    """A digest has one size, whatever it is the digest of."""
    with trying("chain_hash(None, (None,)), and chain_hash(parent, (1, 2, 3, 4)) 100 times"):
        digests = [exercise.chain_hash(None, (None,))]
        for _ in range(100):
            digests.append(exercise.chain_hash(digests[-1], (1, 2, 3, 4)))
    with trying("chain_hash(root, 400 tokens)"):
        wide = exercise.chain_hash(digests[0], tuple(range(400)))
    for tried, late in (("that of link 100", digests[100]), ("that of a block of 400 tokens", wide)):
        early, size = len(repr(digests[1])), len(repr(late))
        why = (
            "the digest holds what it should stand for: it grows with the tokens, so a long prompt takes "
            "memory and time for all its tokens again in each link. Hash the parent's digest and the content"
        )
        check_true(
            f"how long the digest of link 1 is in print, and {tried}",
            size <= 8 * early,  # bytes take one to four characters each in print
            "about the same",
            f"{early} and {size} characters",
            why,
        )


def test_another_salt_has_another_root(exercise: ModuleType) -> None:
    """The root's digest is that of its salt."""
    salts = [None, "a", "A", "b", "ab", "é", "", "None"]
    for i, one in enumerate(salts):
        for two in salts[:i]:
            tried = f"chain_hash(None, ({one!r},)) and chain_hash(None, ({two!r},)), two roots"
            with trying(
                tried, only_for((TypeError, AttributeError), "the root hashes its salt: a string, or None")
            ):
                same = exercise.chain_hash(None, (one,)) == exercise.chain_hash(None, (two,))
            why = "the salt is missing in the digest: requests with different salts must share nothing"
            if {one, two} == {None, "None"}:
                why = "str(None) is the text 'None', which may be a salt, too: hash repr(salt), for example"
            elif {one, two} == {None, ""}:
                why = "an empty string is a salt: only None is none, so don't ask whether the salt is empty"
            if one and two and one.lower() == two.lower():
                why = "a salt counts as it stands, capital letters included: hash the string itself"
            check_true(tried, not same, "two digests", "the same digest twice", why)


# ---- PrefixChain ------------------------------------------------------------------------------------------


def test_the_first_link(exercise: ModuleType) -> None:
    """chain[0] is the link of block 0, as soon as that is full."""
    root = "_links begins with the root, so the link of block 0 is at 1, and the root is its parent"
    full = "4 tokens fill a block of 4: the last block may end where the tokens end, and is full then"
    for length, why in ((5, root), (4, full)):
        tried = f"chain[0] of tokens {A[:length]}, block size 4"
        with trying(tried, only_for(IndexError, why)):
            link = exercise.PrefixChain(A[:length], 4)[0]
        check(f"content of {tried}", link.content, (5, 6, 7, 8), f"tokens 0 to 3, as a tuple. {root}")


def test_a_link_for_each_full_block(exercise: ModuleType) -> None:
    """chain[i] is the link of full block i, and its parent that of the block before."""
    for block_size in (4, 3, 1):
        ids = A[:11]
        for order in (range(11 // block_size), reversed(range(11 // block_size))):
            chain = exercise.PrefixChain(ids, block_size, "pepper")
            links = {}
            for i in order:
                tried = f"chain[{i}] of tokens {ids}, block size {block_size}"
                with trying(
                    tried,
                    only_for(
                        IndexError, "the root is the first of _links, so the link of block i is at i + 1"
                    ),
                ):
                    links[i] = chain[i]
                want = tuple(ids[i * block_size : (i + 1) * block_size])
                why = (
                    "block i holds tokens i * block_size to (i + 1) * block_size - 1, as a tuple; _links "
                    "begins "
                    "with the root"
                )
                check(f"content of {tried}", links[i].content, want, why)
            tried = f"the chain of tokens {ids}, block size {block_size}, from the last link to the root"
            link, walked = links[11 // block_size - 1], []
            while link is not None:
                walked.append(link.content)
                link = link.parent
            want_walk = [links[i].content for i in reversed(range(11 // block_size))] + [("pepper",)]
            check(
                tried,
                walked,
                want_walk,
                "each link's parent is the link before it, and the first one's the root",
            )
            why = "each link is made once and kept: the same object each time"
            check_true(
                f"chain[0] asked twice, {tried}", chain[0] is links[0], "one object", "two objects", why
            )


def test_a_late_link_of_a_long_prompt(exercise: ModuleType) -> None:
    """The first link that is asked for may be any."""
    tried = "chain[4999] of 5000 tokens, block size 1, which is asked for first"
    why = (
        "a function that calls itself for the block before goes as deep as the prompt is long, and Python "
        "ends that at about 1000: make the missing links in a loop"
    )
    with trying(tried, only_for(RecursionError, why)):
        link = exercise.PrefixChain([0] * 4999 + [7], 1)[4999]
    check(f"content of {tried}", link.content, (7,), "the last token")


def test_each_digest_is_made_once_from_the_one_before(exercise: ModuleType) -> None:
    """A link's digest comes from its parent's and its tokens, with the chain's own hash function."""
    calls: list[Any] = []

    def recorder(parent_digest: Any, content: tuple[Any, ...]) -> Any:
        calls.append((parent_digest, content))
        return len(calls)

    tried = (
        "chain[1], chain[0] and chain[1] of tokens [5, 6, 7, 8], block size 2, with a hash function of its "
        "own"
    )
    chain = exercise.PrefixChain([5, 6, 7, 8], 2, None, recorder)
    why = "Prefix(parent, content, self._hash), once for each link, the first one's parent being the root"
    with trying(tried, only_for((AttributeError, TypeError), f"self._hash may be any function: {why}")):
        digests = [chain[1].digest, chain[0].digest, chain[1].digest]
    check(f"calls of the hash function by {tried}", calls, [(None, (None,)), (1, (5, 6)), (2, (7, 8))], why)
    check(f"digests of {tried}", digests, [3, 2, 3], why)


def test_only_what_is_asked_for_is_made(exercise: ModuleType) -> None:
    """A link is made when it, or one behind it, is first asked for."""
    calls: list[Any] = []

    def recorder(parent_digest: Any, content: tuple[Any, ...]) -> Any:
        calls.append(content)
        return len(calls)

    tried = f"chain[1] of tokens {A}, three full blocks of 4"
    with trying(tried):
        exercise.PrefixChain(A, 4, None, recorder)[1]
    why = (
        "a link is made when it is first asked for: a lookup ends at the first miss, and a digest of any "
        "block behind it would be made for nothing"
    )
    check(f"what was hashed by {tried}", calls, [(None,), (5, 6, 7, 8), (1, 2, 3, 4)], why)


def test_a_block_that_is_not_full_has_no_link(exercise: ModuleType) -> None:
    """A partial block has no link until it is full; nor has a block before the first."""
    ids = A[:7]
    with trying("PrefixChain of 7 tokens, block size 4"):
        chain = exercise.PrefixChain(ids, 4)
    partial = "block 1 holds 3 of 4 tokens: a partial block isn't full, and has no link yet"
    check_raises("chain[1] of 7 tokens, block size 4", IndexError, lambda: chain[1], partial)
    check_raises("chain[2] of 7 tokens, block size 4", IndexError, lambda: chain[2], partial)
    why = "blocks are counted from 0: -1 would be the root, which is no block"
    for index in (-1, -2):
        check_raises(f"chain[{index}] of 7 tokens", IndexError, lambda i=index: chain[i], why)
    ids.append(A[7])
    tried = "chain[1] once an eighth token has come, after it was refused with 7"
    with trying(tried, only_for(IndexError, "token_ids grows, and a refused call has changed nothing")):
        check(
            f"content of {tried}",
            chain[1].content,
            tuple(A[4:8]),
            "token_ids grows: read it again at each call",
        )
    empty = exercise.PrefixChain([], 4)
    check_raises("chain[0] of no tokens", IndexError, lambda: empty[0], "no token, no block")
