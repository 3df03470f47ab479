"""The real SmolLM2 in float32: its greedy tokens through the paged cache equal Hugging Face's `generate`."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from minipaged import LLM, RequestOutput, SamplingParams
from minipaged.models.default_model import ensure_default_model

pytestmark = pytest.mark.model

QUESTIONS = [
    "안녕하세요 반갑습니다",
    "What is a page table, and why does an operating system have one?",
    "Write a haiku about memory.",
    "Name the four largest moons of Jupiter.",
    "def fibonacci(n):",
]
NUM_TOKENS = 32
NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", dtype="float32", device="cpu", num_blocks=120)


@pytest.fixture(scope="module")
def answers(llm: LLM) -> list[RequestOutput]:
    """What the engine answers to each question."""
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return llm.chat(conversations, params, use_tqdm=False)


def test_greedy_tokens_equal_hugging_face(answers: list[RequestOutput]) -> None:
    """Hugging Face takes the questions as one batch, padded at the left."""
    model = AutoModelForCausalLM.from_pretrained(ensure_default_model(), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    prompts = [answer.prompt_token_ids for answer in answers]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    rows = model.generate(ids, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False)
    for answer, row in zip(answers, rows, strict=True):
        got, expected = answer.outputs[0].token_ids, row[longest:].tolist()
        assert len(got) == len(expected) == NUM_TOKENS
        if got != expected:
            assert_near_tie(model, answer.prompt_token_ids, got, expected)


def assert_near_tie(model: torch.nn.Module, prompt: list[int], got: list[int], expected: list[int]) -> None:
    """Where two answers part, the two best tokens must be so close that rounding decides."""
    first = next(i for i, pair in enumerate(zip(got, expected, strict=False)) if pair[0] != pair[1])
    with torch.no_grad():
        logits = model.to(torch.float64)(torch.tensor([prompt + expected[:first]])).logits[0, -1]
    best = logits.topk(2)
    gap = (best.values[0] - best.values[1]).item()
    assert {got[first], expected[first]} == set(best.indices.tolist()), "not the two best tokens"
    assert gap < NEAR_TIE, f"token {first} differs, and the best two logits are {gap:.2e} apart"


def test_the_seed_of_every_explanation_is_27_tokens_to_this_model(llm: LLM) -> None:
    assert len(llm.tokenizer("안녕하세요 반갑습니다").input_ids) == 27


def test_text_equals_the_tokenizers_own_decoding(llm: LLM, answers: list[RequestOutput]) -> None:
    for answer in answers:
        ids = answer.outputs[0].token_ids
        assert answer.outputs[0].text == llm.tokenizer.decode(ids, skip_special_tokens=True)
