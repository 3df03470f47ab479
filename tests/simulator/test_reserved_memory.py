"""Orca's three ways to reserve (paper section 6.1), under our scheduler: by hand."""

from __future__ import annotations

import pytest

from minipaged.engine.request import Request
from minipaged.engine.scheduler import Scheduler
from minipaged.errors import InvalidConfigError
from minipaged.reference.allocator import OutOfBlocksError
from minipaged.reference.contiguous import Policy, SlotUsage, maximum, oracle, power_of_two
from minipaged.simulator.reserved_memory import ReservedMemory
from minipaged.simulator.simulation import DecodingMethod, make_request
from minipaged.simulator.workload import Lengths

SLOTS_OF_OPT_13B = 15_728


def new(memory: ReservedMemory, prompt: int, output: int, width: int = 1, number: int = 0) -> Request:
    """A request that the oracle knows."""
    return make_request(memory, number, 0.0, Lengths(prompt, output), DecodingMethod(width))


def grow(request: Request, memory: ReservedMemory) -> None:
    """One decode step."""
    for sequence in request.sequences:
        sequence.num_computed_tokens = sequence.num_tokens
        sequence.token_ids.append(0)
        assert memory.append_slot(sequence) is None


def shares(memory: ReservedMemory, waiting: Request | None = None) -> SlotUsage:
    """The account, which is of every slot."""
    usage = memory.usage(waiting)
    assert sum(usage) == memory.num_blocks
    return usage


@pytest.mark.parametrize(
    ("policy", "reserved"),
    [
        (oracle, 100 + 24),  # of 25 tokens of output the last one is never read
        (power_of_two, 100 + 32),  # the paper's example
        (maximum, 2048),
    ],
)
def test_what_a_request_of_100_tokens_and_25_more_reserves(policy: Policy, reserved: int) -> None:
    memory = ReservedMemory(4096, 2048, policy)
    request = new(memory, 100, 25)
    assert memory.admit(request.sequences) == 0
    # Pieces are powers of two: 128 for the oracle, 256 or 2,048.
    piece = 1 << (reserved - 1).bit_length()
    assert shares(memory) == SlotUsage(100, 24, reserved - 124, piece - reserved, 4096 - piece)
    for done in range(1, 25):
        grow(request, memory)
        assert shares(memory) == SlotUsage(
            100 + done, 24 - done, reserved - 124, piece - reserved, 4096 - piece
        )
    memory.free(request.sequences[0])
    assert shares(memory) == SlotUsage(0, 0, 0, 0, 4096)


def test_max_holds_7_requests_of_opt_13b() -> None:
    memory = ReservedMemory(SLOTS_OF_OPT_13B, 2048, maximum)
    scheduler = Scheduler(memory, max_num_seqs=256, max_num_batched_tokens=2560)
    scheduler.waiting += [new(memory, 1, 10, number=number) for number in range(9)]
    step = scheduler.schedule()
    assert [request.request_id for request in step.admitted] == list("0123456")
    # 7 pieces of 2,048 leave 1,392 slots, which are of no use to the next in line.
    assert shares(memory, scheduler.waiting[0]) == SlotUsage(7, 7 * 9, 7 * 2038, 1392, 0)
    assert shares(memory) == SlotUsage(7, 7 * 9, 7 * 2038, 0, 1392)
    scheduler.finish(scheduler.running[3])
    assert [request.request_id for request in scheduler.schedule().admitted] == ["7"]


@pytest.mark.parametrize("policy", [oracle, power_of_two, maximum])
def test_a_request_of_one_token_of_output_never_grows(policy: Policy) -> None:
    memory = ReservedMemory(2048, 64, policy)
    request = new(memory, 60, 1)
    memory.admit(request.sequences)
    assert shares(memory).tokens == 60
    assert shares(memory).reserved == 0


@pytest.mark.parametrize("policy", [oracle, power_of_two, maximum])
def test_no_policy_reserves_more_than_the_longest_request(policy: Policy) -> None:
    """40 + 20 of at most 64: the power of two of 19 is 32, and 40 + 32 more than 64."""
    memory = ReservedMemory(64, 64, policy)
    memory.admit(new(memory, 40, 20).sequences)
    assert memory.pieces.allocator.num_free == 0


def test_a_group_gets_a_piece_for_each_sequence_or_none() -> None:
    memory = ReservedMemory(256, 64, maximum)
    first, second = new(memory, 10, 5, width=3), new(memory, 10, 5, width=2)
    assert [len(request.sequences) for request in (first, second)] == [3, 2]
    memory.admit(first.sequences)
    before = shares(memory)
    assert before == SlotUsage(30, 12, 3 * 50, 0, 64)
    with pytest.raises(OutOfBlocksError) as caught:  # one piece is free, and it needs two
        memory.admit(second.sequences)
    assert (caught.value.requested, caught.value.available) == (64, 0)
    assert shares(memory) == before
    grow(first, memory)
    assert shares(memory) == SlotUsage(33, 9, 3 * 50, 0, 64)
    for sequence in first.sequences:
        memory.free(sequence)
    memory.admit(second.sequences)
    assert shares(memory) == SlotUsage(20, 8, 2 * 50, 0, 128)


def test_what_is_freed_twice_is_free() -> None:
    memory = ReservedMemory(256, 64, maximum)
    first, second = new(memory, 10, 5), new(memory, 20, 5)
    memory.free(first.sequences[0])  # before it was ever admitted
    memory.admit(first.sequences)
    memory.admit(second.sequences)
    memory.free(first.sequences[0])
    memory.free(first.sequences[0])
    assert first.sequences[0].num_computed_tokens == 0
    assert shares(memory) == SlotUsage(20, 4, 40, 0, 192)
    memory.admit(first.sequences)  # and may come back
    assert shares(memory).tokens == 30


def test_a_second_slot_for_the_same_token_is_none() -> None:
    memory = ReservedMemory(256, 64, oracle)
    request = new(memory, 10, 5)
    memory.admit(request.sequences)
    for _ in range(3):
        assert memory.append_slot(request.sequences[0]) is None
    assert shares(memory).tokens == 10


def test_nothing_is_shared_whatever_the_prompts_are() -> None:
    memory = ReservedMemory(256, 64, oracle)
    same = Lengths(30, 3, 30, "system")
    for number in range(2):
        request = make_request(memory, number, 0.0, same)
        assert memory.admit(request.sequences) == 0
        assert request.sequences[0].num_computed_tokens == 0
    assert shares(memory) == SlotUsage(60, 4, 0, 0, 192)


def test_a_request_beyond_the_limit_is_refused_by_name() -> None:
    memory = ReservedMemory(64, 32, maximum)
    with pytest.raises(InvalidConfigError, match="35 tokens is longer than max_model_len=32"):
        make_request(memory, 0, 0.0, Lengths(30, 5))
