"""Fused modules give what transformers' own give, and the tokens of the plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

from minipaged import LLM, SamplingParams
from minipaged.errors import InvalidConfigError, ModelNotSupportedError
from minipaged.models import fused_modules
from minipaged.models.fused_kernels import rotate
from minipaged.models.fused_modules import DTYPES, FusedAttention, FusedRMSNorm

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
}
CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "llama with biases": transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, head_dim=12),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=9, head_dim=8),
    "qwen2": transformers.Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=8),
}
PROMPTS = [[1, 2, 3, 4, 5], list(range(20, 50)), [7]]


def save(config: Any, folder: Path) -> str:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():  # norms and biases begin at 1 and 0, which hides them
        if weight.ndim == 1:
            weight.data = torch.randn_like(weight) * 0.2 + (0 if name.endswith("bias") else 1)
    model.save_pretrained(folder)
    return str(folder)


def tokens_of(model: str, **settings: Any) -> list[list[int]]:
    llm = LLM(model, device="cpu", num_blocks=64, block_size=4, **settings)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, params, use_tqdm=False)]


@pytest.mark.parametrize("name", CONFIGS)
def test_float64_tokens_are_those_of_hugging_face(tmp_path: Path, name: str) -> None:
    folder = save(CONFIGS[name], tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    expected = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        options = {"do_sample": False, "max_new_tokens": 12}
        expected.append(model.generate(ids, **options)[0, len(prompt) :].tolist())
    assert tokens_of(folder, dtype="float64", fuse_modules=True) == expected


def test_fused_and_packed_float32_gives_the_plain_tokens(tmp_path: Path) -> None:
    folder = save(CONFIGS["llama"], tmp_path)
    plain = tokens_of(folder, dtype="float32")
    assert tokens_of(folder, dtype="float32", fuse_modules=True) == plain
    if torch.backends.mkl.is_available():
        assert tokens_of(folder, dtype="float32", fuse_modules=True, pack_weights=True) == plain


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_is_transformers_own_to_the_last_bit_or_two(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = LlamaRMSNorm(50, eps=1e-5).to(dtype)
    plain.weight.data.normal_()
    inputs = (torch.randn(2, 7, 50) * torch.tensor([1e-3, 1.0, 30.0, 0.0, 5.0, 1.0, 2.0])[:, None]).to(dtype)
    with torch.inference_mode():
        expected, output = plain(inputs), FusedRMSNorm(plain)(inputs)
    # The mean is a float32 number in every dtype. Its last bit moves a bfloat16 result by one unit at most.
    unit = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    assert ((output - expected).abs() <= 4 * unit * expected.abs()).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_rotation_has_the_bits_of_transformers_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    heads = torch.randn(9, 5, 16).to(dtype)
    angles = torch.randn(9, 8).repeat(1, 2) * 10
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    query, key = heads[None, :, :3].transpose(1, 2), heads[None, :, 3:4].transpose(1, 2)
    expected = torch.cat(apply_rotary_pos_emb(query, key, cos[None], sin[None]), dim=1)[0].transpose(0, 1)
    untouched = heads[:, 4].clone()
    rotate(heads, 4, cos, sin)
    assert torch.equal(heads[:, :4], expected)
    assert torch.equal(heads[:, 4], untouched)


def test_nan_and_infinity_stay() -> None:
    norm = LlamaRMSNorm(4).to(torch.bfloat16)
    inputs = torch.tensor([[1.0, torch.nan, 2.0, 3.0], [1.0, torch.inf, 2.0, 3.0]], dtype=torch.bfloat16)
    assert torch.equal(FusedRMSNorm(norm)(inputs).isnan(), norm(inputs).isnan())


def test_every_kind_of_module_is_replaced(tmp_path: Path) -> None:
    folder = save(CONFIGS["llama"], tmp_path)
    model = LLM(folder, device="cpu", dtype="float32", num_blocks=8, fuse_modules=True).engine.loaded.model
    names = [type(module).__name__ for module in model.modules()]
    counts = {name: names.count(name) for name in ("FusedRMSNorm", "FusedMLP", "FusedAttention")}
    assert counts == {"FusedRMSNorm": 7, "FusedMLP": 3, "FusedAttention": 3}
    assert not {"LlamaRMSNorm", "LlamaMLP", "LlamaAttention"} & set(names)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"dtype": "float16"},
            "needs device='cpu' and dtype float32, bfloat16 or float64; got cpu and float16",
        ),
        ({"fuse_modules": "yes"}, "fuse_modules must be True or False, got 'yes'"),
        ({"fuse_modules": None}, "fuse_modules must be True or False, got None"),
    ],
)
def test_what_cannot_be_fused_is_said(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    folder = save(CONFIGS["llama"], tmp_path)
    with pytest.raises(InvalidConfigError, match=message):
        LLM(folder, **{"device": "cpu", "num_blocks": 8, "fuse_modules": True} | settings)


def test_another_family_is_refused(tmp_path: Path) -> None:
    folder = save(transformers.GPT2Config(vocab_size=96, n_embd=48, n_layer=2, n_head=4), tmp_path)
    with pytest.raises(InvalidConfigError, match="GPT2LMHeadModel has no modules of Llama"):
        LLM(folder, device="cpu", dtype="float32", num_blocks=8, fuse_modules=True)


def test_a_fused_module_that_is_wrong_is_found_at_load(tmp_path: Path, monkeypatch: Any) -> None:
    class Wrong(FusedAttention):
        def __init__(self, attention: Any) -> None:
            super().__init__(attention)
            self.scaling *= 2

    monkeypatch.setitem(fused_modules.FUSED, "LlamaAttention", Wrong)
    folder = save(CONFIGS["llama"], tmp_path)
    with pytest.raises(ModelNotSupportedError, match="gives other logits"):
        LLM(folder, device="cpu", dtype="float32", num_blocks=8, fuse_modules=True)
