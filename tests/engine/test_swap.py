"""Preemption by swapping changes where K and V wait, and no token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.engine.block_manager import BlockManager
from minipaged.engine.request import Sequence
from minipaged.errors import InvalidConfigError
from minipaged.reference.allocator import OutOfBlocksError

TOKEN_BYTES = 2 * 2 * 2 * 8 * 8  # the tiny Llama's: K and V, 2 layers, 2 KV heads of 8, float64


def start(folder: Path, block_size: int = 4, num_host_blocks: int = 100, **settings: Any) -> LLM:
    space = num_host_blocks * block_size * TOKEN_BYTES
    settings = {"preemption_mode": "swap", "swap_space": space, "block_size": block_size} | settings
    return LLM(str(folder), dtype="float64", device="cpu", **settings)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 80), (3, 27), (4, 20), (16, 6)])
def test_greedy_tokens_equal_hugging_face(
    block_size: int,
    num_blocks: int,
    caching: bool,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    llm = start(tiny_model("llama"), block_size, num_blocks=num_blocks, enable_prefix_caching=caching)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == hf_greedy("llama", prompts, 20)
    assert llm.stats().num_swapped_out_blocks > 0
    assert llm.stats().num_swapped == 0


@pytest.mark.parametrize("num_host_blocks", [1, 3, 9, 100])
def test_a_full_host_pool_falls_back_to_recomputation(
    num_host_blocks: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    llm = start(tiny_model("llama"), 4, num_host_blocks, num_blocks=20)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == hf_greedy("llama", prompts, 20)
    assert llm.stats().num_preemptions > 0


@pytest.mark.parametrize("caching", [True, False])
def test_samples_and_beams_come_back_with_their_sharing(
    caching: bool, tiny_model: Callable[[str], Path], prompts: list[list[int]]
) -> None:
    some = [prompts[i] for i in (5, 7, 8, 9, 10)]
    sampling = SamplingParams(n=3, seed=4, temperature=0.8, max_tokens=14)
    beams = BeamSearchParams(beam_width=3, max_tokens=14)
    ample = LLM(str(tiny_model("llama")), dtype="float64", device="cpu", block_size=4, num_blocks=400)
    tight = start(tiny_model("llama"), num_blocks=30, enable_prefix_caching=caching)
    for ask in (
        lambda llm: llm.generate(some, sampling, use_tqdm=False),
        lambda llm: llm.beam_search(some, beams, use_tqdm=False),
    ):
        before = tight.stats().num_swapped_out_blocks
        expected, got = ask(ample), ask(tight)
        assert [[o.token_ids for o in one.outputs] for one in got] == [
            [o.token_ids for o in one.outputs] for one in expected
        ]
        assert tight.stats().num_swapped_out_blocks > before


def make(blocks: BlockManager, num_tokens: int) -> Sequence:
    tokens = list(range(num_tokens))
    chain, table = blocks.new_chain(tokens, None), blocks.new_table()
    return Sequence(tokens, chain, table, None, num_prompt_tokens=num_tokens, seed=0)  # type: ignore[arg-type]


def test_a_victim_larger_than_the_host_pool_is_left_where_it_is() -> None:
    blocks = BlockManager(4, 4, num_host_blocks=1)
    sequence = make(blocks, 8)
    blocks.admit([sequence])
    with pytest.raises(OutOfBlocksError):
        blocks.swap_out([sequence])
    assert sequence.table.blocks == [0, 1] and not sequence.on_host
    blocks.check([sequence])


def test_a_group_returns_only_where_its_next_tokens_have_room_too() -> None:
    blocks = BlockManager(5, 4, num_host_blocks=2, enable_prefix_caching=False)
    sequence, other, small = make(blocks, 8), make(blocks, 8), make(blocks, 4)
    blocks.admit([sequence])
    assert blocks.swap_out([sequence]) == [(0, 0), (1, 1)]
    blocks.admit([other])
    blocks.admit([small])
    sequence.token_ids.append(3)
    with pytest.raises(OutOfBlocksError) as error:  # 2 are free, 8 tokens and the new one need 3
        blocks.swap_in([sequence])
    assert (error.value.requested, error.value.available) == (3, 2)
    assert sequence.on_host and sequence.table.blocks == [0, 1]
    blocks.check([sequence, other, small])
    blocks.free(small)  # now 3 are
    assert blocks.swap_in([sequence]) == [(0, 2), (1, 3)]
    assert blocks.append_slot(sequence) is None
    assert (sequence.table.blocks, blocks.num_available) == ([2, 3, 4], 0)
    blocks.check([sequence, other])
    blocks.free(sequence)
    assert blocks.host_allocator is not None and blocks.host_allocator.num_free == 2


def test_blocks_that_are_still_cached_are_not_copied_back() -> None:
    blocks = BlockManager(8, 4, num_host_blocks=4)
    sequence = make(blocks, 11)
    blocks.admit([sequence])
    blocks.publish(sequence, 11)
    assert len(blocks.swap_out([sequence])) == 3
    assert blocks.allocator.num_cached == 2
    assert [source for source, _ in blocks.swap_in([sequence])] == [2]  # the partial one
    blocks.check([sequence])


@pytest.mark.parametrize(
    ("params", "num_outputs"),
    [
        (SamplingParams(max_tokens=25, ignore_eos=True, seed=0), 1),
        (SamplingParams(n=2, max_tokens=25, ignore_eos=True, seed=0), 2),
        (BeamSearchParams(beam_width=2, max_tokens=25, ignore_eos=True), 2),
    ],
)
def test_abort_while_swapped_out(
    params: SamplingParams | BeamSearchParams, num_outputs: int, tiny_model: Callable[[str], Path]
) -> None:
    """Its blocks of both pools come back, its id is free at once, and the others go on."""
    engine = start(tiny_model("llama"), num_blocks=16, enable_prefix_caching=False).engine
    for name in "abc":
        engine.add_request(name, [5, 6, 7, 8, 9], params)
    while not engine.scheduler.swapped:
        engine.step()
        engine.check()
    swapped = engine.scheduler.swapped[0]
    num_on_host = {block for sequence in swapped.sequences for block in sequence.table.blocks}
    host = engine.blocks.host_allocator
    assert host is not None and num_on_host
    free_before = host.num_free
    engine.abort_request(swapped.request_id)
    engine.add_request(
        swapped.request_id, [9, 8], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    )
    ended = [output for output in engine.step() if output.finished]
    assert [(o.request_id, [each.finish_reason for each in o.outputs]) for o in ended] == [
        (swapped.request_id, ["abort"] * num_outputs)
    ]
    assert host.num_free == free_before + len(num_on_host)
    reasons: dict[str, set[str | None]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            reasons[output.request_id] = {each.finish_reason for each in output.outputs}
        engine.check()
    assert reasons == {name: {"length"} for name in "abc"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"swap_space": 0}, "go together"),
        ({"preemption_mode": "recompute"}, "go together"),
        ({"swap_space": 7}, "swap_space=7 does not hold one block"),
        ({"swap_space": "much"}, "swap_space must be"),
    ],
)
def test_settings_that_can_not_be(
    settings: dict[str, Any], message: str, tiny_model: Callable[[str], Path]
) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        start(tiny_model("llama"), num_blocks=10, **settings)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=3, max_tokens=3, seed=0, ignore_eos=True),
        BeamSearchParams(beam_width=3, max_tokens=3, ignore_eos=True),
    ],
)
def test_a_group_that_fits_exactly_comes_back(
    params: SamplingParams | BeamSearchParams, tiny_model: Callable[[str], Path]
) -> None:
    """Its newest tokens go into last blocks that it has: it needs no more than it held."""
    llm = start(tiny_model("llama"), num_blocks=6, enable_prefix_caching=False)
    llm.engine.add_request("a", [7] * 7, SamplingParams(max_tokens=4, ignore_eos=True, temperature=0))
    llm.engine.add_request("b", [7, 8, 9, 10, 11], params)
    reasons: dict[str, set[str | None]] = {}
    while llm.engine.has_unfinished_requests():
        for output in llm.engine.step():
            reasons[output.request_id] = {each.finish_reason for each in output.outputs}
        llm.engine.check()
    assert reasons == {"a": {"length"}, "b": {"length"}}
    assert llm.stats().num_swapped_out_blocks > 0


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=5, max_tokens=4, seed=0, ignore_eos=True),
        BeamSearchParams(beam_width=5, max_tokens=4, ignore_eos=True),
    ],
)
def test_a_group_on_the_host_that_needs_more_than_the_pool_ends_and_stops_nobody(
    params: SamplingParams | BeamSearchParams, tiny_model: Callable[[str], Path]
) -> None:
    """Swapped out between the copies that its newest tokens need: it has 4 blocks and lacks 2, of 5."""
    llm = start(tiny_model("llama"), num_blocks=5, enable_prefix_caching=False)
    llm.engine.add_request("a", [7, 8, 9], SamplingParams(max_tokens=6, ignore_eos=True, temperature=0))
    llm.engine.add_request("b", [7, 8, 9, 10, 11], params)
    llm.engine.add_request("c", [7], SamplingParams(max_tokens=2, ignore_eos=True))
    reasons: dict[str, set[str | None]] = {}
    for _ in range(40):
        for output in llm.engine.step() if llm.engine.has_unfinished_requests() else []:
            reasons[output.request_id] = {each.finish_reason for each in output.outputs}
        llm.engine.check()
    assert llm.stats().num_swapped_out_blocks == 1 + 4  # c's and b's
    assert reasons == {"a": {"length"}, "b": {"capacity"}, "c": {"length"}}
