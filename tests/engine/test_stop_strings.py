"""A stop string with special tokens ends the text where Hugging Face's `generate(stop_strings=...)` does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from minipaged import LLM, SamplingParams
from minipaged.engine.detokenizer import IncrementalDetokenizer

SPECIAL = ["<eos>", "<|turn|>", "<|user|>", "<|end|>", "</s>", "[SEP]"]
LETTERS = list("abcdefghij")


def byte_level() -> Tokenizer:
    """GPT-2's kind; "Ġ" is a space."""
    pieces = [*SPECIAL, *LETTERS, "Ġ", "ab", "Ġab", "Ġcd", "é".encode().decode("latin-1"), "Ġ.", "Ã"]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """LLaMA's kind: a mark for a space, bytes where there is no piece."""
    pieces = [*SPECIAL, "<0x41>", "<0x0A>", *LETTERS, "▁", "▁ab", "▁cd", "ab"]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's kind: a space before every piece but those that begin with ##, special tokens included."""
    pieces = [*SPECIAL, "abcdef", "page", "##d", "cache", "##s", "a", "b", "cd", "."]
    tokenizer = Tokenizer(models.WordPiece(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "word-piece": word_piece,
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that often generates special tokens."""
    path = tmp_path_factory.mktemp(request.param)
    inner = KINDS[request.param]()
    inner.add_special_tokens(SPECIAL)
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>").save_pretrained(path)
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=inner.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    AutoModelForCausalLM.from_config(config).to(torch.float64).save_pretrained(path)
    return path


def test_an_output_ends_where_hugging_face_ends_it(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    llm = LLM(str(folder), dtype="float64", device="cpu", num_blocks=40)
    rng = random.Random(0)
    ended_at_special = 0
    for _ in range(20):
        prompt = [rng.randrange(1, len(tokenizer)) for _ in range(rng.randint(0, 5))]
        prompt.append(rng.randrange(len(SPECIAL), len(tokenizer)))  # behind text, so that no space is lost
        stop = stop_inside(hugging_face(model, prompt, 24), tokenizer, rng)
        expected = hugging_face(model, prompt, 24, stop_strings=[stop], tokenizer=tokenizer)
        if stop not in tokenizer.decode([prompt[-1], *expected])[len(tokenizer.decode(prompt[-1:])) :]:
            continue  # Hugging Face also finds a stop string that begins in the prompt
        params = SamplingParams(temperature=0, max_tokens=24, stop=[stop])
        (answer,) = llm.generate([prompt], params, use_tqdm=False)
        assert answer.outputs[0].token_ids == expected, (prompt, stop)
        ended_at_special += any(special in stop for special in SPECIAL) and len(expected) < 24
        before = tokenizer.decode(prompt, skip_special_tokens=True)
        shown = tokenizer.decode([*prompt, *expected], skip_special_tokens=True)[len(before) :]
        assert shown.startswith(answer.outputs[0].text)
    assert ended_at_special >= 5, "this test proves nothing"


def hugging_face(model: Any, prompt: list[int], max_tokens: int, **options: Any) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, **options
    )
    return output[0, len(prompt) :].tolist()


def special_names(tokenizer: Any, token_ids: list[int]) -> str:
    """The first special token of an output, where it has one."""
    names = tokenizer.convert_ids_to_tokens(token_ids)
    return next((name for name in names if name in SPECIAL), SPECIAL[1])


def stop_inside(token_ids: list[int], tokenizer: Any, rng: random.Random) -> str:
    """A piece of an output's text, with its special tokens: alone, or with text before, behind or around."""
    special = tokenizer.convert_tokens_to_ids(SPECIAL[1:])
    places = [i for i, token_id in enumerate(token_ids) if i and token_id in special] or [len(token_ids) // 2]
    place = rng.choice(places)
    start, end = max(1, place - rng.randint(0, 2)), place + 1 + rng.randint(0, 2)
    before = tokenizer.decode(token_ids[:start], clean_up_tokenization_spaces=False)
    text = tokenizer.decode(token_ids[:end], clean_up_tokenization_spaces=False)[len(before) :]
    return text if text and "\ufffd" not in text else special_names(tokenizer, token_ids)


@pytest.mark.parametrize(
    ("output", "stop", "deltas", "rest"),
    [
        (["a", "<|turn|>"], "<|turn|>", ["a", ""], ""),
        (["a", "<|turn|>", "b"], "turn", ["a", "", ""], ""),
        (["ab", "<|turn|>", "c"], "b<|turn|>", ["a", "", ""], ""),
        (["ab", "<|turn|>", "<|user|>", "Ġcd"], "b<|turn|><|user|> c", ["a", "", "", ""], ""),
        (["a", "<|turn|>", "Ġcd"], "<|turn|> c", ["a", "", ""], ""),
        # Not found: what was held back comes out, less the special tokens.
        (["ab", "<|turn|>", "c", "d"], "b<|turn|>d", ["a", "", "bc", "d"], ""),
        (["ab", "<|turn|>"], "b<|turn|>d", ["a", ""], "b"),
        (["a", "<|user|>", "b"], "ab", ["", "a", "b"], ""),  # the special token stands between
        # A special token ends a character that is not complete ("Ã" is the first byte of "é").
        (["Ã", "<|turn|>", "Ġcd"], "<|turn|> c", ["", "\ufffd", ""], ""),
    ],
)
def test_the_text_ends_before_the_stop_string_and_leaves_special_tokens_out(
    output: list[str], stop: str, deltas: list[str], rest: str
) -> None:
    inner = byte_level()
    inner.add_special_tokens(SPECIAL)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")
    detokenizer = IncrementalDetokenizer(tokenizer, [], [stop])
    token_ids = tokenizer.convert_tokens_to_ids(output)
    assert [detokenizer.add(token_id) for token_id in token_ids] == deltas
    assert detokenizer.flush() == rest
    assert detokenizer.stopped == (stop if stop in tokenizer.decode(token_ids) else None)
