"""Any combination of arguments either runs or raises one of our own errors, and the pool stays whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.errors import MinipagedError

odd = st.sampled_from(
    [None, True, -1, 0, 1, 2, 3, 5, 0.0, 0.5, 1.0, 1e-9, -0.5, 2.5, "a", "", float("nan"), [], [1]]
)
sampling = st.fixed_dictionaries(
    {"max_tokens": st.one_of(st.integers(1, 6), odd)},
    optional={
        "n": st.one_of(st.integers(1, 5), odd),
        "temperature": st.one_of(st.floats(0, 3), odd),
        "top_p": st.one_of(st.floats(0, 1), odd),
        "top_k": st.one_of(st.integers(-2, 300), odd),
        "min_p": st.one_of(st.floats(0, 1), odd),
        "repetition_penalty": st.one_of(st.floats(0.1, 3), odd),
        "presence_penalty": st.one_of(st.floats(-2, 2), odd),
        "frequency_penalty": st.one_of(st.floats(-2, 2), odd),
        "min_tokens": st.one_of(st.integers(0, 6), odd),
        "stop": st.one_of(st.text(max_size=2), st.lists(st.text(max_size=2), max_size=3), odd),
        "stop_token_ids": st.one_of(st.lists(st.integers(-1, 300), max_size=3), odd),
        "ignore_eos": st.one_of(st.booleans(), odd),
        "seed": st.one_of(st.integers(-(2**64), 2**65), odd),
        "logprobs": st.one_of(st.integers(0, 22), odd),
        "cache_salt": st.one_of(st.text(max_size=2), odd),
    },
)
beams = st.fixed_dictionaries(
    {"max_tokens": st.one_of(st.integers(1, 6), odd), "beam_width": st.one_of(st.integers(1, 6), odd)},
    optional={
        "length_penalty": st.one_of(st.floats(-20, 20), odd),
        "early_stopping": st.one_of(st.sampled_from([True, False, "never"]), odd),
        "ignore_eos": st.one_of(st.booleans(), odd),
    },
)
prompt = st.one_of(
    st.text(max_size=12),
    st.lists(st.integers(-1, 259), max_size=40),
    st.lists(odd, max_size=3),
    st.binary(max_size=3),
    odd,
)


@pytest.fixture(scope="module")
def engine(tiny_chat_model: Path) -> LLM:
    """Small in every way, so that limits are met."""
    return LLM(
        str(tiny_chat_model),
        dtype="float64",
        device="cpu",
        block_size=4,
        num_blocks=12,
        max_num_seqs=4,
        max_num_batched_tokens=9,
        max_model_len=60,
        check_invariants=True,
    )


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(prompts=st.lists(prompt, max_size=3), arguments=sampling, search=beams, choice=st.integers(0, 2))
def test_it_runs_or_says_what_is_wrong(
    engine: LLM, prompts: list[Any], arguments: dict[str, Any], search: dict[str, Any], choice: int
) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: engine.generate(prompts, SamplingParams(**arguments), use_tqdm=False),
        lambda: engine.generate(prompts[0] if prompts else "", SamplingParams(**arguments), use_tqdm=False),
        lambda: engine.beam_search(prompts, BeamSearchParams(**search), use_tqdm=False),
    ]
    try:
        outputs = calls[choice]()
    except MinipagedError as error:
        assert str(error) and "\n" not in str(error)
    else:
        for output in outputs:
            assert output.finished and all(
                one.finish_reason in ("stop", "length", "capacity") for one in output.outputs
            )
    engine.engine.check()
    assert not engine.engine.has_unfinished_requests()
    assert engine.engine.blocks.allocator.num_in_use == 0
