"""Tiny random models of every supported architecture, and what Hugging Face generates with them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from minipaged.engine.engine import LLMEngine
from minipaged.errors import InvalidConfigError
from minipaged.models import loading

VOCAB = 128
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": False,  # tied random embeddings mostly repeat the last token: a weak test
}
GQA: dict[str, Any] = {"num_key_value_heads": 2, "intermediate_size": 48}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", GQA),
    "qwen2": ("Qwen2Config", GQA),
    "qwen3": ("Qwen3Config", GQA | {"head_dim": 12}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        GQA | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "mistral": ("MistralConfig", GQA | {"sliding_window": 7}),
    "gemma2": (
        "Gemma2Config",
        GQA
        | {"head_dim": 8, "sliding_window": 5, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 11},
    ),
    "gemma3": ("Gemma3TextConfig", GQA | {"head_dim": 8, "sliding_window": 6, "sliding_window_pattern": 2}),
    "phi3": ("Phi3Config", GQA),
    "gpt2": ("GPT2Config", {}),
    "opt": ("OPTConfig", {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.4}),
    "gpt_neox": ("GPTNeoXConfig", {"intermediate_size": 48}),
    "olmo2": ("Olmo2Config", GQA),
    "granite": ("GraniteConfig", GQA | {"attention_multiplier": 0.3, "logits_scaling": 2.0}),
}


SWITCHES = ({"fuse_modules": True, "pack_weights": True}, {"fuse_modules": True}, {"pack_weights": True}, {})


@pytest.fixture(autouse=True)
def every_switch_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-switches`: load each model with as many switches for a CPU as its family and dtype take."""
    if os.environ.get("MINIPAGED_SWITCHES") != "1":
        return
    plain = loading.load_model

    def load_model(model: str, **options: Any) -> Any:
        for switches in SWITCHES:
            try:
                return plain(model, **(options | switches))
            except InvalidConfigError as error:
                if not str(error).startswith(tuple(switches)):
                    raise
        raise AssertionError

    monkeypatch.setattr(loading, "load_model", load_model)


@pytest.fixture(autouse=True)
def the_pool_is_whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After every test, each engine that it made has all blocks free or cached, and checks out."""
    engines: list[LLMEngine] = []
    make = LLMEngine.__init__

    def make_and_remember(self: LLMEngine, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        engines.append(self)

    monkeypatch.setattr(LLMEngine, "__init__", make_and_remember)
    yield
    for engine in engines:
        engine.check()
        allocator = engine.blocks.allocator
        assert allocator.num_free + allocator.num_cached == allocator.num_blocks, "blocks were lost"
        host = engine.blocks.host_allocator
        assert host is None or host.num_free == host.num_blocks, "blocks of the host pool were lost"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from an architecture's name to a folder with a random model of it, in float64."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            config_class, special = ARCHITECTURES[name]
            torch.manual_seed(0)
            config = getattr(transformers, config_class)(**(COMMON | special))
            model = AutoModelForCausalLM.from_config(config).to(torch.float64)
            with torch.no_grad():  # biases and norms start at 0 and 1: make them count
                for parameter in model.parameters():
                    if parameter.ndim == 1:
                        parameter.add_(torch.randn_like(parameter) * 0.1)
            made[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(made[name])
        return made[name]

    return make


@pytest.fixture(scope="session")
def tiny_chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a byte-level tokenizer (id 3 + byte) and a chat template."""
    folder = tmp_path_factory.mktemp("chat")
    alphabet = sorted(bytes_to_unicode().values())
    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {letter: 3 + i for i, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    fast.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}[assistant]"
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**(COMMON | GQA | {"vocab_size": 3 + len(alphabet)}))
    AutoModelForCausalLM.from_config(config).to(torch.float64).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Twelve prompts of 1 to 40 tokens, at the edges of blocks and between them; some share a beginning."""
    rng = random.Random(7)
    system = [rng.randrange(3, VOCAB) for _ in range(24)]
    lengths = [1, 2, 3, 5, 8, 15, 16, 17, 31]
    mixed = [[rng.randrange(3, VOCAB) for _ in range(length)] for length in lengths]
    return [*mixed, system + mixed[3], system + mixed[4], system + mixed[6]]


@pytest.fixture(scope="session")
def hf_greedy(tiny_model: Callable[[str], Path]) -> Callable[..., list[list[int]]]:
    """Greedy continuations by plain `generate`, one request at a time, without padding."""
    models: dict[str, Any] = {}
    answers: dict[tuple[str, int, str], list[list[int]]] = {}

    def generate(name: str, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        key = (name, max_tokens, repr(prompts))
        if key in answers:
            return answers[key]
        if name not in models:
            options = {"experts_implementation": "eager"} if name == "qwen3_moe" else {}
            models[name] = AutoModelForCausalLM.from_pretrained(
                tiny_model(name), dtype=torch.float64, attn_implementation="eager", **options
            ).eval()
        answers[key] = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            output = models[name].generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False
            )
            answers[key].append(output[0, len(prompt) :].tolist())
        return answers[key]

    return generate
