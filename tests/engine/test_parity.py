"""Greedy tokens equal Hugging Face's `generate`, request by request, whatever the engine does meanwhile."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from minipaged import LLM, SamplingParams
from minipaged.errors import ModelNotSupportedError

ARCHITECTURES = [
    "llama",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mistral",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
    "opt",
    "gpt_neox",
    "olmo2",
    "granite",
]
MAX_TOKENS = 20


def run(
    folder: Path, prompts: list[list[int]], max_tokens: int = MAX_TOKENS, **settings: Any
) -> tuple[Any, LLM]:
    llm = LLM(str(folder), dtype="float64", device="cpu", **settings)
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens), use_tqdm=False)
    llm.engine.check()
    return [output.outputs[0].token_ids for output in outputs], llm


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_equals_hugging_face(
    architecture: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    got, llm = run(
        tiny_model(architecture), prompts, block_size=block_size, num_blocks=-(-1024 // block_size) + 12
    )
    assert got == hf_greedy(architecture, prompts, MAX_TOKENS)
    assert llm.stats().num_preemptions == 0


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_pool_so_small_that_requests_are_preempted(
    architecture: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    got, llm = run(
        tiny_model(architecture),
        prompts,
        block_size=block_size,
        num_blocks=-(-80 // block_size),
        max_num_batched_tokens=24,
    )
    assert got == hf_greedy(architecture, prompts, MAX_TOKENS)
    assert llm.stats().num_preemptions > 0


@pytest.mark.parametrize("budget", [1, 2, 7, 100])
@pytest.mark.parametrize("caching", [True, False])
def test_chunked_prefill_changes_no_token(
    budget: int,
    caching: bool,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    got, _ = run(
        tiny_model("llama"),
        prompts,
        block_size=4,
        num_blocks=200,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    assert got == hf_greedy("llama", prompts, MAX_TOKENS)


def test_a_second_run_hits_the_cache_and_changes_no_token(
    tiny_model: Callable[[str], Path], prompts: list[list[int]], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    expected = hf_greedy("llama", prompts, MAX_TOKENS)
    first, llm = run(tiny_model("llama"), prompts, block_size=4, num_blocks=400)
    again = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_TOKENS), use_tqdm=False)
    assert first == [output.outputs[0].token_ids for output in again] == expected
    for output in again:  # all full blocks but never the last token, which has to be computed
        assert output.num_cached_tokens == (len(output.prompt_token_ids) - 1) // 4 * 4


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "qwen3"])
@pytest.mark.parametrize("block_size", [3, 16])
def test_triton_interpreted(
    architecture: str,
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    some = [prompts[i] for i in (0, 4, 8)]
    got, _ = run(
        tiny_model(architecture), some, 4, block_size=block_size, num_blocks=40, attention_backend="triton"
    )
    assert got == hf_greedy(architecture, some, 4)


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_plain_python_reference(
    block_size: int,
    tiny_model: Callable[[str], Path],
    prompts: list[list[int]],
    hf_greedy: Callable[..., list[list[int]]],
) -> None:
    some = prompts[2:7]
    got, _ = run(
        tiny_model("gemma2"),
        some,
        6,
        block_size=block_size,
        num_blocks=-(-60 // block_size),
        attention_backend="reference",
    )
    assert got == hf_greedy("gemma2", some, 6)


@pytest.fixture
def penalised(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A Qwen 2 whose generation_config.json asks for more than end tokens."""
    folder = shutil.copytree(tiny_model("qwen2"), tmp_path / "model")
    path = folder / "generation_config.json"
    asked = {"repetition_penalty": 1.3, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "max_new_tokens": 30}
    path.write_text(json.dumps(json.loads(path.read_text()) | asked | {"do_sample": True}))
    return folder


def test_the_penalty_of_a_generation_config_is_hugging_face_s(
    penalised: Path, prompts: list[list[int]], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    """`generate(do_sample=False)` applies the file's penalty; so does the engine once it is passed."""
    model = AutoModelForCausalLM.from_pretrained(penalised, dtype=torch.float64, attn_implementation="eager")
    ids = [torch.tensor([prompt]) for prompt in prompts]
    expected = [
        model.generate(each, max_new_tokens=MAX_TOKENS, do_sample=False)[0, each.shape[1] :].tolist()
        for each in ids
    ]
    llm = LLM(str(penalised), dtype="float64", device="cpu", num_blocks=256)
    params = dataclasses.replace(llm.get_default_sampling_params(), temperature=0, max_tokens=MAX_TOKENS)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == expected
    as_given = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=MAX_TOKENS), use_tqdm=False)
    plain = hf_greedy("qwen2", prompts, MAX_TOKENS)
    assert [output.outputs[0].token_ids for output in as_given] == plain != expected


def test_without_parameters_those_of_the_file_are_taken_and_told(
    penalised: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(str(penalised), dtype="float64", device="cpu", num_blocks=64, seed=5)
    (record,) = [each.getMessage() for each in caplog.records if each.name == "minipaged.llm"]
    told = "max_tokens=30, repetition_penalty=1.3, temperature=0.7, top_k=20, top_p=0.8"
    assert record.endswith(f"without SamplingParams use generation_config.json: {told}")
    given = SamplingParams(temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.3, max_tokens=30)
    assert llm.get_default_sampling_params() == given
    prompt = [5, 9, 33, 7]
    (output,) = llm.generate(prompt, use_tqdm=False)
    again = LLM(str(penalised), dtype="float64", device="cpu", num_blocks=64, seed=5)
    (expected,) = again.generate(prompt, given, use_tqdm=False)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids


def test_a_model_without_such_values_takes_the_usual_ones(
    tiny_model: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(str(tiny_model("qwen2")), device="cpu", num_blocks=16)
    assert llm.get_default_sampling_params() == SamplingParams()
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", "hot"), ("top_p", 5), ("repetition_penalty", -1)]
)
def test_values_that_nothing_can_be_sampled_with(name: str, value: Any, penalised: Path) -> None:
    path = penalised / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ModelNotSupportedError, match=name):
        LLM(str(penalised), device="cpu", num_blocks=16)


def test_the_pool_bounds_the_tables_of_a_batch(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """10**12 positions and 64 sequences would take 16 TB of tables; 8 blocks need 64 x 8 entries."""
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 10**12}))
    llm = LLM(str(folder), dtype="float64", device="cpu", num_blocks=8, block_size=4, max_num_seqs=64)
    assert llm.engine.max_model_len == 10**12
    assert llm.engine.runner._builder._sets[0].tables.shape == (64, 8)
    prompt = list(range(5, 25))
    (output,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=99, ignore_eos=True))
    assert (output.outputs[0].finish_reason, len(output.outputs[0].token_ids)) == ("capacity", 13)
    ample = LLM(str(tiny_model("llama")), dtype="float64", device="cpu", num_blocks=64)
    (same,) = ample.generate([prompt], SamplingParams(temperature=0, max_tokens=13, ignore_eos=True))
    assert output.outputs[0].token_ids == same.outputs[0].token_ids
