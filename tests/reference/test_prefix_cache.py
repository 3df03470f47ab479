"""The prefix cache: what is found is right, what is evicted is gone, and counts add up whatever happens.

Requests are played by hand: look up, share, allocate, publish, free. A shadow dictionary remembers which
tokens were last written to each block, so a block found under stale content is caught even where hashes
collide by design. A machine then runs random requests with good and bad hash functions.
"""

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from minipaged.course.checks import TensorItem
from minipaged.reference.allocator import BlockAllocator, OutOfBlocksError
from minipaged.reference.prefix_cache import PrefixCache
from minipaged.reference.prefix_chain import HashFunction, PrefixChain, chain_hash

BLOCK_SIZE = 4


def constant_hash(parent_digest: Any, content: tuple[Any, ...]) -> int:
    return 0


def last_token_hash(parent_digest: Any, content: tuple[Any, ...]) -> Any:
    """Collides for chains whose last tokens are equal, whatever came before them."""
    return content[-1]


def python_hash(parent_digest: Any, content: tuple[Any, ...]) -> int:
    """Python's own: hash(-1) == hash(-2)."""
    return hash((parent_digest, content))


class Request(NamedTuple):
    """A running request: its chain, its table, and how many of its tokens came from the cache."""

    chain: PrefixChain
    blocks: list[int]
    num_cached: int


def make_cache(num_blocks: int) -> PrefixCache:
    return PrefixCache(BlockAllocator(num_blocks))


def tokens(count: int, first: int = 100) -> list[int]:
    return list(range(first, first + count))


def start(cache: PrefixCache, chain: PrefixChain) -> Request:
    """Look the prompt up and give it a table; its K and V are not computed yet."""
    found = cache.lookup(chain)
    num_blocks = -(-len(chain.token_ids) // chain.block_size)
    cache.share(found)
    blocks = found + cache.allocate(num_blocks - len(found))
    return Request(chain, blocks, len(found) * chain.block_size)


def compute(cache: PrefixCache, request: Request) -> None:
    """Once K and V of the prompt are written, its full blocks can be found."""
    chain = request.chain
    first, stop = request.num_cached // chain.block_size, len(chain.token_ids) // chain.block_size
    cache.publish(chain, request.blocks, first, stop)


def run(cache: PrefixCache, prompt: Sequence[int], **chain_options: Any) -> Request:
    """A request from its start to its end. Returns what it was given."""
    request = start(cache, PrefixChain(prompt, BLOCK_SIZE, **chain_options))
    compute(cache, request)
    cache.free(request.blocks)
    return request


def states(cache: PrefixCache) -> tuple[int, int, int]:
    allocator = cache.allocator
    assert allocator.num_free + allocator.num_in_use + allocator.num_cached == allocator.num_blocks
    assert cache.num_available == allocator.num_free + allocator.num_cached
    return allocator.num_free, allocator.num_in_use, allocator.num_cached


def complete_state(cache: PrefixCache) -> list[Any]:
    """Everything that a later operation could depend on, orders included."""
    allocator = cache.allocator
    counts = [allocator.reference_count(block) for block in range(allocator.num_blocks)]
    findable = {digest: block for digest, (_, block) in cache._blocks.items()}
    return [
        allocator.free_order(),
        counts,
        states(cache),
        set(allocator._retained),
        findable,
        dict(cache._digests),
        list(cache._unused),
    ]


LENGTHS_AND_HITS = [(12, 8), (13, 12), (14, 12), (17, 16), (3, 0), (4, 0), (5, 4)]


@pytest.mark.parametrize(("length", "expected"), LENGTHS_AND_HITS)
def test_a_repeated_prompt_is_cached_up_to_its_last_token(length: int, expected: int):
    cache = make_cache(20)
    assert run(cache, tokens(length)).num_cached == 0
    second = run(cache, tokens(length))
    assert second.num_cached == expected
    assert second.num_cached < length  # one token is left to compute
    assert run(cache, tokens(length)).num_cached == expected
    assert run(cache, tokens(length + 5)).num_cached == length // BLOCK_SIZE * BLOCK_SIZE
    assert states(cache)[1] == 0


def test_the_blocks_found_are_the_ones_published_in_order():
    cache = make_cache(8)
    first = run(cache, tokens(12))
    assert first.blocks == [0, 1, 2]
    assert cache.lookup(PrefixChain(tokens(13), BLOCK_SIZE)) == [0, 1, 2]
    assert cache.lookup(PrefixChain([*tokens(8), 1, 2, 3, 4, 5], BLOCK_SIZE)) == [0, 1]
    assert cache.lookup(PrefixChain([100, 101, 102, 7, *tokens(9, 104)], BLOCK_SIZE)) == []
    assert cache.lookup(PrefixChain(tokens(8, 104), BLOCK_SIZE)) == []  # known tokens in another place


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_prompt_with_no_full_block_before_its_last_token_finds_nothing(length: int):
    cache = make_cache(4)
    run(cache, tokens(9))
    assert cache.lookup(PrefixChain(tokens(length), BLOCK_SIZE)) == []


def test_a_partial_block_is_never_found():
    cache = make_cache(4)
    request = run(cache, tokens(7))
    assert [cache.is_findable(block) for block in request.blocks] == [True, False]
    assert states(cache) == (3, 0, 1)


def test_blocks_filled_while_decoding_can_be_found_too():
    cache = make_cache(4)
    generated = tokens(6)
    request = start(cache, PrefixChain(generated, BLOCK_SIZE))
    compute(cache, request)
    generated.extend([106, 107])  # the chain reads the growing list
    cache.publish(request.chain, request.blocks, 1, 2)
    assert cache.lookup(PrefixChain(tokens(9), BLOCK_SIZE)) == request.blocks


def test_a_recycled_block_loses_its_entry():
    cache = make_cache(2)
    assert run(cache, tokens(8, 0)).num_cached == 0
    assert run(cache, tokens(8, 50)).num_cached == 0
    assert run(cache, tokens(8, 0)).num_cached == 0


def test_the_tail_is_evicted_before_the_head():
    cache = make_cache(3)
    run(cache, tokens(12))
    run(cache, tokens(3, 500))
    assert run(cache, tokens(12)).num_cached == 8


def test_without_the_head_nothing_is_found():
    cache = make_cache(3)
    blocks = run(cache, tokens(12)).blocks
    cache.share(blocks[1:])  # somebody holds the tail, so the head has to go
    cache.allocate(1)
    assert [cache.is_findable(block) for block in blocks] == [False, True, True]
    assert cache.lookup(PrefixChain(tokens(12), BLOCK_SIZE)) == []


def test_a_tail_is_found_again_once_its_head_is_computed_again():
    cache = make_cache(4)
    blocks = run(cache, tokens(12)).blocks
    cache.share(blocks[1:])
    taken = cache.allocate(2)  # the free block and the head
    assert set(taken) == {3, blocks[0]}
    cache.free(taken)
    again = start(cache, PrefixChain(tokens(4), BLOCK_SIZE))
    compute(cache, again)
    assert cache.lookup(PrefixChain(tokens(13), BLOCK_SIZE)) == [again.blocks[0], *blocks[1:]]


def test_the_least_recently_used_prompt_is_evicted_first():
    cache = make_cache(3)
    for first in (0, 100, 200):
        run(cache, tokens(4, first))
    oldest = cache.lookup(PrefixChain(tokens(5, 0), BLOCK_SIZE))
    cache.share(oldest)
    cache.free(oldest)  # used again: 100 is the oldest now
    cache.allocate(1)
    lookups = {first: cache.lookup(PrefixChain(tokens(5, first), BLOCK_SIZE)) for first in (0, 100, 200)}
    assert [first for first, found in lookups.items() if found] == [0, 200]


def test_free_blocks_are_used_before_cached_ones():
    cache = make_cache(4)
    run(cache, tokens(8))
    assert states(cache) == (2, 0, 2)
    cache.allocate(2)
    assert states(cache) == (0, 2, 2)
    cache.allocate(1)
    assert states(cache) == (0, 3, 1)


def test_a_shared_block_is_never_evicted():
    cache = make_cache(3)
    blocks = run(cache, tokens(8)).blocks
    cache.share(cache.lookup(PrefixChain(tokens(9), BLOCK_SIZE)))
    assert cache.num_available == 1
    with pytest.raises(OutOfBlocksError):
        cache.allocate(2)
    assert cache.allocate(1) == [2]
    assert cache.lookup(PrefixChain(tokens(9), BLOCK_SIZE)) == blocks


def test_two_users_of_a_cached_block_count_twice():
    cache = make_cache(3)
    blocks = run(cache, tokens(8)).blocks
    cache.share(blocks)
    cache.share(blocks)
    assert [cache.reference_count(block) for block in blocks] == [2, 2]
    assert cache.free(blocks) == []
    assert states(cache) == (1, 2, 0)
    assert cache.free(blocks) == blocks[::-1]
    assert states(cache) == (1, 0, 2)


def test_sharing_a_free_block_is_refused_and_changes_nothing():
    cache = make_cache(3)
    blocks = run(cache, tokens(8)).blocks
    before = complete_state(cache)
    with pytest.raises(ValueError, match="block 2 is free"):
        cache.share([*blocks, 2])
    assert complete_state(cache) == before


def test_two_equal_prompts_in_one_step_and_one_aborted():
    """Both miss, both compute. The second copy stays a plain block, and its end disturbs nobody."""
    for aborted in (0, 1):
        cache = make_cache(6)
        requests = [start(cache, PrefixChain(tokens(9), BLOCK_SIZE)) for _ in range(2)]
        assert [request.blocks for request in requests] == [[0, 1, 2], [3, 4, 5]]
        for request in requests:
            compute(cache, request)
        assert [cache.is_findable(block) for block in range(6)] == [True, True, False, False, False, False]

        survivor = requests[1 - aborted]
        cache.free(requests[aborted].blocks)
        assert [cache.reference_count(block) for block in survivor.blocks] == [1, 1, 1]
        assert states(cache) == ((1, 3, 2) if aborted == 0 else (3, 3, 0))
        filling = cache.allocate(3)
        assert set(filling).isdisjoint(survivor.blocks)
        cache.free(filling)
        assert [cache.reference_count(block) for block in survivor.blocks] == [1, 1, 1]

        cache.free(survivor.blocks)
        assert sum(states(cache)[::2]) == 6
        everything = cache.allocate(6)
        assert sorted(everything) == list(range(6))
        assert not any(cache.is_findable(block) for block in everything)


def test_publishing_again_changes_nothing():
    cache = make_cache(4)
    request = start(cache, PrefixChain(tokens(8), BLOCK_SIZE))
    compute(cache, request)
    before = complete_state(cache)
    compute(cache, request)
    assert complete_state(cache) == before


@pytest.mark.parametrize(("first", "stop"), [(0, 3), (2, 3), (0, 4), (-1, 1)])
def test_publishing_what_is_not_a_full_block_changes_nothing(first: int, stop: int):
    cache = make_cache(4)
    request = start(cache, PrefixChain(tokens(11), BLOCK_SIZE))
    before = complete_state(cache)
    with pytest.raises(IndexError, match="block"):
        cache.publish(request.chain, request.blocks, first, stop)
    assert complete_state(cache) == before


@pytest.mark.parametrize("table", [[0, 3, 1], [3, 0, 1], [0, 1, 0], [0, 1, 2]])
def test_a_publish_that_is_refused_for_one_block_publishes_none(table: list[int]):
    """Block 3 is free, 0 is named twice, 2 is findable by another prefix."""
    cache = make_cache(4)
    cache.allocate(3)
    cache.publish(PrefixChain(tokens(4, 900), BLOCK_SIZE), [2], 0, 1)
    with pytest.raises(ValueError, match="each must be in use, and can hold one prefix only"):
        cache.publish(PrefixChain(tokens(12), BLOCK_SIZE), table, 0, 3)
    assert [cache.is_findable(block) for block in range(4)] == [False, False, True, False]
    assert cache.lookup(PrefixChain(tokens(13), BLOCK_SIZE)) == []
    assert cache.free([0, 1, 2]) == [2, 1, 0] and cache.cached_blocks == [2]
    assert cache.allocator.num_free == 3


def test_ids_that_are_equal_to_themselves_only_are_the_blocks_that_they_name():
    """As a tensor's items are."""

    cache = make_cache(2)
    items: Any = [TensorItem(0), TensorItem(1)]
    cache.allocate(2)
    cache.publish(PrefixChain(tokens(8), BLOCK_SIZE), items, 0, 2)
    cache.free(items)
    assert cache.lookup(PrefixChain(tokens(9), BLOCK_SIZE)) == [0, 1] and cache.cached_blocks == [1, 0]
    cache.share(items)
    assert cache.cached_blocks == [] and cache.num_available == 0


def test_a_failed_allocation_changes_nothing_at_all():
    """Six blocks. A holds four, two of them a prefix that B hits; B needs three more and two are free."""
    cache = make_cache(6)
    first = start(cache, PrefixChain(tokens(14), BLOCK_SIZE))
    cache.publish(first.chain, first.blocks, 0, 2)
    before = complete_state(cache)

    chain = PrefixChain(tokens(8) + tokens(12, 900), BLOCK_SIZE)
    found = cache.lookup(chain)
    assert found == first.blocks[:2]
    assert complete_state(cache) == before  # to look is not to touch
    with pytest.raises(OutOfBlocksError) as caught:
        cache.allocate(3)
    assert (caught.value.available, caught.value.missing) == (2, 1)
    assert complete_state(cache) == before

    cache.share(found)  # shared too early, and given up: nothing leaks
    with pytest.raises(OutOfBlocksError):
        cache.allocate(3)
    cache.free(found)
    assert complete_state(cache) == before
    assert [cache.reference_count(block) for block in first.blocks] == [1, 1, 1, 1]


def test_a_failed_allocation_evicts_nothing():
    cache = make_cache(5)
    run(cache, tokens(12))
    cache.allocate(1)
    before = complete_state(cache)
    with pytest.raises(OutOfBlocksError) as caught:
        cache.allocate(5)
    assert (caught.value.available, caught.value.missing) == (4, 1)
    with pytest.raises(ValueError, match="-1"):
        cache.allocate(-1)
    assert complete_state(cache) == before


def test_a_double_free_changes_nothing():
    cache = make_cache(4)
    blocks = run(cache, tokens(8)).blocks
    plain = cache.allocate(1)
    before = complete_state(cache)
    for freed in (blocks, [*plain, *plain], [*plain, blocks[0]]):
        with pytest.raises(ValueError, match="double free"):
            cache.free(freed)
    assert complete_state(cache) == before


BAD_HASHES = [constant_hash, last_token_hash]


@pytest.mark.parametrize("hash_function", [*BAD_HASHES, python_hash, chain_hash])
def test_equal_tokens_behind_another_block_are_not_found(hash_function: HashFunction):
    a, b, c = [1, 2, 3, 9], [5, 6, 7, 8], [4, 2, 3, 9]
    cache = make_cache(8)
    run(cache, a + b, hash_function=hash_function)
    before = complete_state(cache)
    assert cache.lookup(PrefixChain(c + b + [0], BLOCK_SIZE, hash_function=hash_function)) == []
    assert run(cache, c + b, hash_function=hash_function).num_cached == 0
    if hash_function in BAD_HASHES:
        assert complete_state(cache)[4:6] == before[4:6]  # the first one keeps its place
    found = cache.lookup(PrefixChain(a + b + [0], BLOCK_SIZE, hash_function=hash_function))
    assert found == ([0] if hash_function is constant_hash else [0, 1])


@pytest.mark.parametrize("hash_function", [last_token_hash, chain_hash])
def test_a_child_is_not_found_behind_what_took_its_parents_digest(hash_function: HashFunction):
    """[A B] is known; A is evicted and C published under A's digest. B must not follow C."""
    a, b, c = [1, 2, 3, 9], [5, 6, 7, 8], [4, 2, 3, 9]
    cache = make_cache(3)
    blocks = run(cache, a + b, hash_function=hash_function).blocks
    cache.share(blocks[1:])
    cache.allocate(1)  # the free block
    (taken,) = cache.allocate(1)  # evicts A
    assert taken == blocks[0]
    cache.publish(PrefixChain(c, BLOCK_SIZE, hash_function=hash_function), [taken], 0, 1)

    wanted = PrefixChain(c + b + [0], BLOCK_SIZE, hash_function=hash_function)
    assert cache.lookup(wanted) == [taken]
    assert cache.is_findable(blocks[1])
    assert cache.lookup(PrefixChain(a + b + [0], BLOCK_SIZE, hash_function=hash_function)) == []


@pytest.mark.parametrize("hash_function", [constant_hash, python_hash, chain_hash])
@pytest.mark.parametrize(("one", "other"), [(-1, -2), (0, 2**61 - 1)])
def test_tokens_that_python_hashes_alike_are_told_apart(one: int, other: int, hash_function: HashFunction):
    assert hash((one,)) == hash((other,))
    cache = make_cache(4)
    run(cache, [one] * 5, hash_function=hash_function)
    assert run(cache, [other] * 5, hash_function=hash_function).num_cached == 0
    assert run(cache, [one] * 5, hash_function=hash_function).num_cached == 4


@pytest.mark.parametrize("hash_function", [constant_hash, chain_hash])
def test_salts_share_nothing(hash_function: HashFunction):
    cache = make_cache(20)
    salts = [None, "", "x", "y", "None"]
    for salt in salts:
        assert run(cache, tokens(9), salt=salt, hash_function=hash_function).num_cached == 0
    if hash_function is chain_hash:
        assert [run(cache, tokens(9), salt=salt).num_cached for salt in salts] == [8] * 5


def test_block_sizes_share_nothing():
    cache = make_cache(8)
    run(cache, tokens(9), hash_function=constant_hash)
    assert cache.lookup(PrefixChain(tokens(9), 2, hash_function=constant_hash)) == []


def test_digests_do_not_depend_on_the_process():
    root = sha256(b"(None,)").digest()
    assert PrefixChain([7, 300], 2)[0].digest == sha256(root + struct.pack("<qq", 7, 300)).digest()


def test_a_chain_knows_full_blocks_only():
    growing = tokens(7)
    chain = PrefixChain(growing, BLOCK_SIZE)
    assert chain[0].content == (100, 101, 102, 103)
    for index in (1, 5, -1, -2):
        with pytest.raises(IndexError, match=f"block {index} "):
            chain[index]
    growing.append(107)
    assert chain[1].content == (104, 105, 106, 107)
    assert chain[1].parent is chain[0]


@pytest.mark.parametrize("block_size", [0, -4, True, 4.0])
def test_the_block_size_of_a_chain_is_a_positive_integer(block_size: Any):
    with pytest.raises(ValueError, match="block_size must be a positive integer"):
        PrefixChain([1, 2], block_size)


class CountedToken(int):
    """A token id that counts how often it is compared."""

    comparisons = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        CountedToken.comparisons += 1
        return int(self) == int(other)  # type: ignore[call-overload]


class Costs:
    """Counts the hash calls of a chain and the token comparisons of a look-up."""

    def __init__(self) -> None:
        self.hashes = 0

    def hash(self, parent_digest: Any, content: tuple[Any, ...]) -> Any:
        self.hashes += 1
        return chain_hash(parent_digest, content)

    def chain(self, num_tokens: int) -> PrefixChain:
        return PrefixChain([CountedToken(t) for t in range(num_tokens)], BLOCK_SIZE, hash_function=self.hash)

    def lookup(self, cache: PrefixCache, chain: PrefixChain) -> tuple[int, int, int]:
        """Blocks found, hash calls, token comparisons."""
        self.hashes = CountedToken.comparisons = 0
        found = cache.lookup(chain)
        return len(found), self.hashes, CountedToken.comparisons


@pytest.mark.parametrize("num_blocks", [10, 20, 160])
@pytest.mark.parametrize("others", [0, 300])
def test_a_lookup_costs_one_hash_and_one_comparison_a_block(num_blocks: int, others: int):
    """Linear in the prompt, and the same whatever else the pool holds."""
    costs, cache = Costs(), make_cache(num_blocks + others + 1)
    for other in range(others):
        run(cache, [-1 - other] * BLOCK_SIZE)
    request = start(cache, costs.chain(num_blocks * BLOCK_SIZE + 1))
    compute(cache, request)
    expected = (num_blocks, num_blocks, num_blocks * BLOCK_SIZE)
    chain = costs.chain(num_blocks * BLOCK_SIZE + 1)
    assert costs.lookup(cache, chain) == expected
    assert costs.lookup(cache, chain) == (num_blocks, 0, 0)  # hashes are kept, equal links adopted
    assert costs.lookup(cache, costs.chain(num_blocks * BLOCK_SIZE + 1)) == expected


def test_a_lookup_stops_at_the_first_miss():
    costs, cache = Costs(), make_cache(50)
    request = start(cache, costs.chain(40))
    cache.publish(request.chain, request.blocks, 0, 2)
    assert costs.lookup(cache, costs.chain(40)) == (2, 3, 2 * BLOCK_SIZE)
    assert costs.lookup(make_cache(50), costs.chain(4000)) == (0, 1, 0)


@pytest.mark.parametrize("num_blocks", [10, 20, 160])
def test_a_lookup_stays_linear_for_chains_that_were_evicted_and_computed_again(num_blocks: int):
    """Three requests with one prompt: each had made its own links before it lost its blocks."""
    costs, cache = Costs(), make_cache(num_blocks)
    chains = [costs.chain(num_blocks * BLOCK_SIZE) for _ in range(3)]
    for chain in chains:
        blocks = cache.allocate(num_blocks)  # evicts what the one before published
        cache.publish(chain, blocks, 0, num_blocks)
        cache.free(blocks)
    for chain in chains[:2]:
        found, hashes, comparisons = costs.lookup(cache, chain)
        assert (found, hashes) == (num_blocks - 1, 0)
        assert comparisons <= 2 * num_blocks * BLOCK_SIZE
        assert costs.lookup(cache, chain) == (num_blocks - 1, 0, 0)


def test_a_very_long_chain_is_handled():
    cache = make_cache(20_000)
    chain = PrefixChain(range(20_000), 1)
    blocks = cache.allocate(20_000)
    cache.publish(chain, blocks, 0, 20_000)
    assert cache.lookup(PrefixChain(range(20_000), 1)) == blocks[:-1]


NUM_BLOCKS = 7
prompts = st.lists(st.integers(0, 1), max_size=9)
HASHES: list[HashFunction] = [chain_hash, constant_hash, last_token_hash]


class Live:
    """A running request, with the tokens it has seen."""

    def __init__(self, token_ids: list[int], salt: str | None, hash_function: HashFunction) -> None:
        self.token_ids = token_ids
        self.salt = salt
        self.chain = PrefixChain(token_ids, 2, salt, hash_function)
        self.blocks: list[int] = []

    def prefix(self, index: int) -> tuple[str | None, tuple[int, ...]]:
        """What block `index` must hold: the K and V of its tokens, which depend on all before them."""
        return self.salt, tuple(self.token_ids[: 2 * (index + 1)])


class PrefixCacheMachine(RuleBasedStateMachine):
    """Random requests, beside a shadow of what each block was last written with and an LRU list."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(NUM_BLOCKS)
        self.written: dict[int, tuple[str | None, tuple[int, ...]]] = {}
        self.unused: list[int] = []  # cached blocks, least recently used first
        self.live: list[Live] = []

    @initialize(hash_function=st.sampled_from(HASHES))
    def choose_hash(self, hash_function: HashFunction) -> None:
        self.hash_function = hash_function

    def find(self, request: Live) -> list[int]:
        """Look up, and compare with a scan over all findable blocks, which knows no hashes."""
        holders = {self.written[block]: block for block in range(NUM_BLOCKS) if self.cache.is_findable(block)}
        expected: list[int] = []
        while 2 * (len(expected) + 1) < len(request.token_ids):
            block = holders.get(request.prefix(len(expected)))
            if block is None:
                break
            expected.append(block)
        before = complete_state(self.cache)
        found = self.cache.lookup(request.chain)
        assert found == expected
        assert complete_state(self.cache) == before
        return found

    def allocate(self, num_blocks: int) -> list[int] | None:
        before = complete_state(self.cache)
        num_free = self.cache.allocator.num_free
        if num_blocks > num_free + len(self.unused):
            with pytest.raises(OutOfBlocksError):
                self.cache.allocate(num_blocks)
            assert complete_state(self.cache) == before
            return None
        taken = self.cache.allocate(num_blocks)
        num_evicted = max(num_blocks - num_free, 0)
        evicted, self.unused = self.unused[:num_evicted], self.unused[num_evicted:]
        assert set(evicted) <= set(taken)
        assert not any(self.cache.is_findable(block) for block in taken)
        for block in taken:
            self.written.pop(block, None)
        return taken

    def write_and_publish(self, request: Live, first: int) -> None:
        stop = len(request.token_ids) // 2
        for index in range(first, stop):
            self.written[request.blocks[index]] = request.prefix(index)
        self.cache.publish(request.chain, request.blocks, first, stop)

    def give_up(self, request: Live) -> None:
        unused = self.cache.free(request.blocks)
        kept = {block for block in unused if self.cache.is_findable(block)}
        self.unused += [block for block in reversed(request.blocks) if block in kept]

    @rule(prompt=prompts, salt=st.sampled_from([None, "x"]))
    def start(self, prompt: list[int], salt: str | None) -> None:
        request = Live(prompt, salt, self.hash_function)
        found = self.find(request)
        self.cache.share(found)
        self.unused = [block for block in self.unused if block not in found]
        taken = self.allocate(-(-len(prompt) // 2) - len(found))
        request.blocks = found + (taken or [])
        if taken is None:
            self.give_up(request)
            return
        self.write_and_publish(request, len(found))
        self.live.append(request)

    @rule(choice=st.integers(0, 5), token=st.integers(0, 1))
    def decode(self, choice: int, token: int) -> None:
        if not self.live:
            return
        request = self.live[choice % len(self.live)]
        if len(request.token_ids) % 2 == 0:
            taken = self.allocate(1)
            if taken is None:
                return
            request.blocks += taken
        request.token_ids.append(token)
        if len(request.token_ids) % 2 == 0:
            self.write_and_publish(request, len(request.token_ids) // 2 - 1)

    @rule(choice=st.integers(0, 5))
    def preempt_and_resume(self, choice: int) -> None:
        """The same chain is looked up again after its blocks were given up, and maybe evicted."""
        if not self.live:
            return
        request = self.live.pop(choice % len(self.live))
        self.give_up(request)
        other = self.allocate(choice % 4)
        if other:
            self.cache.free(other)
        found = self.find(request)
        self.cache.share(found)
        self.unused = [block for block in self.unused if block not in found]
        request.blocks = found + (self.allocate(-(-len(request.token_ids) // 2) - len(found)) or [])
        if len(request.blocks) * 2 < len(request.token_ids):
            self.give_up(request)
            return
        self.write_and_publish(request, len(found))
        self.live.append(request)

    @rule(choice=st.integers(0, 5))
    def finish(self, choice: int) -> None:
        if self.live:
            self.give_up(self.live.pop(choice % len(self.live)))

    @invariant()
    def counts_and_states_add_up(self) -> None:
        named = [block for request in self.live for block in request.blocks]
        counts = [self.cache.reference_count(block) for block in range(NUM_BLOCKS)]
        assert counts == [named.count(block) for block in range(NUM_BLOCKS)]
        cached = {b for b in range(NUM_BLOCKS) if counts[b] == 0 and self.cache.is_findable(b)}
        assert cached == set(self.unused)
        in_use = sum(count > 0 for count in counts)
        assert states(self.cache) == (NUM_BLOCKS - in_use - len(cached), in_use, len(cached))
        assert cached.isdisjoint(self.cache.allocator.free_order())

    @invariant()
    def a_running_request_keeps_what_was_written_for_it(self) -> None:
        for request in self.live:
            full = range(len(request.token_ids) // 2)
            assert [self.written[request.blocks[i]] for i in full] == [request.prefix(i) for i in full]


PrefixCacheMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
TestPrefixCacheMachine = PrefixCacheMachine.TestCase


@pytest.mark.parametrize("salt", [0, False, 1.5, ("a",)])
def test_a_salt_is_a_string(salt: object) -> None:
    """0 and False are equal in Python: a hash that is none but Python's own would let them share."""
    with pytest.raises(TypeError, match="salt must be a string or None"):
        PrefixChain([1, 2, 3, 4, 5], 4, salt)  # type: ignore[arg-type]
