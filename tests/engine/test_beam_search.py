"""Beam search equals Hugging Face's, beam by beam, whatever the pool does meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.engine.beam_scores import BeamSearch, Hypothesis
from minipaged.engine.block_manager import BlockManager
from minipaged.engine.decoding import Decoder
from minipaged.engine.detokenizer import IncrementalDetokenizer
from minipaged.engine.request import Request, Sequence
from minipaged.errors import InvalidRequestError

EOS = [2, 9, 17, 40, 77]  # so many that some occur
Found = list[tuple[list[int], float]]


@pytest.fixture(scope="module")
def with_eos(
    tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The tiny model of that name, with several end tokens."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("eos") / name
            shutil.copytree(tiny_model(name), made[name])
            path = made[name] / "generation_config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": EOS}))
        return made[name]

    return make


@pytest.fixture(scope="module")
def hf_beams(with_eos: Callable[[str], Path]) -> Callable[..., list[Found]]:
    """For each prompt, the beams of `generate(num_beams=...)` with their scores, without padding."""
    models: dict[str, Any] = {}
    answers: dict[str, list[Found]] = {}

    def generate(
        name: str, prompts: list[list[int]], width: int, max_tokens: int, **options: Any
    ) -> list[Found]:
        key = repr((name, prompts, width, max_tokens, options))
        if key in answers:
            return answers[key]
        if name not in models:
            models[name] = AutoModelForCausalLM.from_pretrained(
                with_eos(name), dtype=torch.float64, attn_implementation="eager"
            ).eval()
        answers[key] = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            output = models[name].generate(
                ids,
                attention_mask=torch.ones_like(ids),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=max_tokens,
                do_sample=False,
                return_dict_in_generate=True,
                output_scores=True,
                **options,
            )
            lengths = (output.beam_indices >= 0).sum(dim=1).tolist() if width > 1 else [None]
            scores = output.sequences_scores.tolist() if width > 1 else [0.0]
            rows = output.sequences[:, len(prompt) :].tolist()
            answers[key].append(
                [(row[:length], score) for row, length, score in zip(rows, lengths, scores, strict=True)]
            )
        return answers[key]

    return generate


def search(llm: LLM, prompts: list[list[int]], params: BeamSearchParams) -> list[Found]:
    outputs = llm.beam_search(prompts, params, use_tqdm=False)
    llm.engine.check()
    return [[(beam.token_ids, beam.score or 0.0) for beam in output.outputs] for output in outputs]


def assert_same(found: list[Found], expected: list[Found]) -> None:
    """The same beams in the same order; their scores as near as Hugging Face's float32 sums allow."""
    for ours, theirs in zip(found, expected, strict=True):
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
        scores = pytest.approx([score for _, score in theirs], rel=1e-6, abs=1e-5)
        assert [score for _, score in ours] == scores


def start(folder: Path, **settings: Any) -> LLM:
    settings = {"block_size": 4, "num_blocks": 600} | settings
    return LLM(str(folder), dtype="float64", device="cpu", **settings)


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("width", [2, 3, 4, 5, 6])
def test_equals_hugging_face(
    architecture: str,
    width: int,
    with_eos: Callable[[str], Path],
    hf_beams: Callable[..., list[Found]],
    prompts: list[list[int]],
) -> None:
    some = [prompts[i] for i in (0, 4, 6, 8)]
    llm = start(with_eos(architecture))
    found = search(llm, some, BeamSearchParams(beam_width=width, max_tokens=12))
    assert_same(found, hf_beams(architecture, some, width, 12))


@pytest.mark.parametrize("length_penalty", [0.5, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_every_way_to_stop(
    length_penalty: float,
    early_stopping: bool | str,
    with_eos: Callable[[str], Path],
    hf_beams: Callable[..., list[Found]],
    prompts: list[list[int]],
) -> None:
    some = prompts[2:8]
    options: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    found = search(start(with_eos("llama")), some, BeamSearchParams(beam_width=3, max_tokens=16, **options))
    expected = hf_beams("llama", some, 3, 16, **options)
    assert_same(found, expected)
    lengths = {len(tokens) for one in expected for tokens, _ in one}
    assert min(lengths) < 16, "no beam has ended early: this proves less than it should"


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(
    ("block_size", "num_blocks", "budget"), [(1, 110, 2048), (4, 30, 2048), (4, 30, 19), (16, 12, 2048)]
)
def test_preempted_in_the_middle(
    block_size: int,
    num_blocks: int,
    budget: int,
    caching: bool,
    with_eos: Callable[[str], Path],
    hf_beams: Callable[..., list[Found]],
    prompts: list[list[int]],
) -> None:
    some = [prompts[i] for i in (8, 7, 5, 9)]
    llm = start(
        with_eos("llama"),
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    found = search(llm, some, BeamSearchParams(beam_width=4, max_tokens=14, ignore_eos=False))
    assert llm.stats().num_preemptions > 0
    assert_same(found, hf_beams("llama", some, 4, 14))


def test_width_1_is_greedy(
    with_eos: Callable[[str], Path], hf_beams: Callable[..., list[Found]], prompts: list[list[int]]
) -> None:
    found = search(start(with_eos("llama")), prompts, BeamSearchParams(beam_width=1, max_tokens=10))
    assert [one[0][0] for one in found] == [one[0][0] for one in hf_beams("llama", prompts, 1, 10)]


def test_beams_share_their_prompt_and_four_of_them_hold_33_blocks(tiny_model: Callable[[str], Path]) -> None:
    # 200 prompt tokens are 25 blocks of 8; each beam then adds 16 tokens, 2 blocks of its own: 25 + 4 x 2.
    llm = start(tiny_model("llama"), block_size=8, num_blocks=33)
    params = BeamSearchParams(beam_width=4, max_tokens=16, ignore_eos=True)
    prompt = [3 + i % 100 for i in range(200)]
    (output,) = llm.beam_search([prompt], params, use_tqdm=False)
    assert [beam.finish_reason for beam in output.outputs] == ["length"] * 4
    assert llm.stats().peak_used_blocks <= 33
    assert llm.stats().num_preemptions == 0
    assert llm.stats().blocks_saved_by_sharing > 0.6


def test_text_is_written_out_without_its_end_token(tiny_chat_model: Path) -> None:
    llm = LLM(str(tiny_chat_model), dtype="float64", device="cpu", block_size=4, num_blocks=100)
    (output,) = llm.beam_search("hello", BeamSearchParams(beam_width=3, max_tokens=8), use_tqdm=False)
    assert [beam.score for beam in output.outputs] == sorted([b.score for b in output.outputs], reverse=True)
    for beam in output.outputs:
        tokens = beam.token_ids[: -1 if beam.finish_reason == "stop" else None]
        assert beam.text == llm.tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beam_width": 0}, "beam_width must be"),
        ({"beam_width": 9}, "beam_width=9 sequences can never run together"),
        ({"beam_width": 8, "max_tokens": 0}, "max_tokens must be"),
        ({"early_stopping": "always"}, "early_stopping must be True, False or"),
        ({"length_penalty": float("nan")}, "length_penalty must be"),
        ({"length_penalty": 2000.0}, "length_penalty must be a number from -10 to 10"),
    ],
)
def test_bad_input_is_named(changed: dict[str, Any], message: str, tiny_model: Callable[[str], Path]) -> None:
    llm = start(tiny_model("llama"), max_num_seqs=8)
    with pytest.raises(InvalidRequestError, match=message):
        llm.beam_search([[5, 6]], BeamSearchParams(**changed), use_tqdm=False)


def test_more_candidates_than_tokens_are_refused(with_eos: Callable[[str], Path]) -> None:
    llm = start(with_eos("llama"))
    with pytest.raises(InvalidRequestError, match="beam_width=22 needs 132 candidates"):
        llm.beam_search([[5, 6]], BeamSearchParams(beam_width=22), use_tqdm=False)


def test_aborted_and_outgrown(tiny_model: Callable[[str], Path]) -> None:
    llm = start(tiny_model("llama"), num_blocks=6)
    params = BeamSearchParams(beam_width=3, max_tokens=60, ignore_eos=True)
    llm.engine.add_request("r", [5, 6, 7], params)
    for _ in range(3):
        llm.engine.step()
    llm.engine.abort_request("r")
    (output,) = llm.engine.step()
    assert [beam.finish_reason for beam in output.outputs] == ["abort"] * 3
    (output,) = llm.beam_search([[*range(3, 11)]], params, use_tqdm=False)
    assert {beam.finish_reason for beam in output.outputs} == {"capacity"}


def test_impossible_tokens_are_no_beams() -> None:
    search = BeamSearch(BeamSearchParams(beam_width=3, max_tokens=2), frozenset([0]), 2)
    logits = torch.full((1, 12), -torch.inf)
    logits[0, [4, 7]] = torch.tensor([1.0, 2.0])
    assert [each.token_id for each in search.advance(logits, [[]])] == [7, 4]
    assert search.advance(logits.expand(2, 12), [[7], [4]]) == []
    assert [found.token_ids for found in search.finished] == [[7, 7], [7, 4], [4, 7]] or search.is_done


def test_what_was_finished_is_kept_where_the_pool_ends_the_search() -> None:
    """Finished outputs compete with the live beams on their scores."""
    request = Request("r", None, [1], SamplingParams(), 9, [], lambda: IncrementalDetokenizer(None, [1]))
    blocks = BlockManager(8, 4)
    decoder = Decoder(blocks, frozenset())
    request.beam_search = BeamSearch(BeamSearchParams(beam_width=2), frozenset(), 9)
    request.beam_search.finished = [Hypothesis([5, 2], -0.5, "stop"), Hypothesis([6, 2], -2.0, "stop")]
    for index, score in enumerate([-1.0, -3.0]):
        tokens = [1, 7, 8 + index]
        chain = blocks.new_chain(tokens, None)
        text = IncrementalDetokenizer(None, [1])
        beam = Sequence(tokens, chain, blocks.new_table(), text, num_prompt_tokens=1, seed=0, index=index)
        beam.score = score
        request.sequences.append(beam)
    decoder.end_request(request, "capacity")
    assert [(each.output_token_ids, each.finish_reason) for each in request.sequences] == [
        ([5, 2], "stop"),
        ([7, 8], "capacity"),
    ]
