"""Models that paged attention would run wrong are refused by name; the supported ones are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from minipaged.errors import ModelNotSupportedError
from minipaged.models.support import check_config
from minipaged.models.trial import AttentionShape, check_supported

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
USUAL = COMMON | {
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL_MOE = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
SMALL_MOE |= {"shared_expert_intermediate_size": 16}


def config_of(name: str, **settings: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**settings)


def random_model(config: Any) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    return model.to(torch.float64).eval()


@pytest.mark.parametrize(
    ("architecture", "kv_heads", "head_dim"),
    [
        ("llama", 2, 8),
        ("qwen2", 2, 8),
        ("qwen3", 2, 12),  # head_dim given: not hidden_size / heads
        ("qwen3_moe", 2, 8),
        ("mistral", 2, 8),
        ("gemma2", 2, 8),
        ("gemma3", 2, 8),
        ("phi3", 2, 8),
        ("gpt2", 4, 8),
        ("opt", 4, 8),
        ("gpt_neox", 4, 8),
        ("olmo2", 2, 8),
        ("granite", 2, 8),
    ],
)
def test_supported(
    architecture: str, kv_heads: int, head_dim: int, tiny_model: Callable[[str], Path]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        tiny_model(architecture),
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    shape = check_supported(model.config, model.eval())
    assert shape == AttentionShape(
        num_layers=2, num_attention_heads=4, num_kv_heads=kv_heads, head_dim=head_dim
    )


def test_the_trial_puts_back_what_it_finds(tiny_model: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), attn_implementation="sdpa").eval()
    check_supported(model.config, model)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_supported_in_other_precisions(dtype: torch.dtype, tiny_model: Callable[[str], Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model("gemma2"), dtype=dtype).eval()
    assert check_supported(model.config, model).num_kv_heads == 2


@pytest.mark.parametrize("limit", [2, 3, 4])
def test_supported_with_very_few_positions(limit: int) -> None:
    model = random_model(config_of("GPT2", **COMMON, n_positions=limit))
    assert check_supported(model.config, model).num_layers == 2


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("Falcon", {}, r"falcon does not use transformers' attention interface"),
        ("Bloom", {}, r"bloom does not use .*ALiBi"),
        ("Mpt", {}, r"mpt does not use .*ALiBi"),
        ("GPTNeoXJapanese", {}, r"does not use transformers' attention interface"),
        ("StableLm", {}, r"stablelm does not use transformers' attention interface"),
        ("T5", {}, r"t5 is an encoder-decoder"),
        ("Bart", {}, r"bart is an encoder-decoder"),
        ("ViT", {}, r"vit is not a causal language model"),
        ("Mamba", {}, r"mamba has layers of the kind linear_attention"),
        ("Qwen3Next", {}, r"qwen3_next has layers of the kind linear_attention"),
        ("Jamba", {}, r"jamba has layers of the kind linear_attention"),
        ("FalconH1", {}, r"falcon_h1 has layers of the kind hybrid"),
        ("Lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}, r"kind conv"),
        ("Llama4Text", {}, r"llama4_text has layers of the kind chunked_attention"),
        ("Llama", {"attention_chunk_size": 16}, r"llama uses chunked attention"),
        ("DeepseekV3", {}, r"deepseek_v3 uses multi-head latent attention"),
        ("Rwkv", {}, r"rwkv does not use transformers' attention interface"),
        ("Llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, r"quantised with gptq"),
    ],
)
def test_refused_by_the_configuration_alone(name: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelNotSupportedError, match=reason) as caught:
        check_config(config_of(name, **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        (
            "GptOss",
            {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8},
            r"attention sinks \(s_aux\)",
        ),
        ("DiffLlama", {}, r"attends more than once in layer 0"),
        ("Doge", {}, r"a mask of its own"),
        ("Bert", {}, r"attention in both directions"),
        ("Gemma3Text", {"use_bidirectional_attention": True}, r"attention in both directions"),
        ("Roberta", {"is_decoder": True}, r"gives other logits"),  # its positions start beyond the padding id
        (
            "Qwen2Moe",
            SMALL_MOE | {"use_sliding_window": True, "sliding_window": 4},
            r"asks for a window of None in layer 0",
        ),
        (
            "Gemma4Text",
            {
                "layer_types": ["sliding_attention", "full_attention"],
                "head_dim": 8,
                "global_head_dim": 16,
                "hidden_size_per_layer_input": 0,
                "num_kv_shared_layers": 0,
            },
            r"layers of unequal K and V shape \(2 KV heads of 8 and 2 KV heads of 16\)",
        ),
    ],
)
def test_refused_by_the_trial(name: str, settings: dict[str, Any], reason: str) -> None:
    model = random_model(config_of(name, **(USUAL | settings)))
    with pytest.raises(ModelNotSupportedError, match=reason) as caught:
        check_supported(model.config, model)
    assert "\n" not in str(caught.value)
    assert model.config._attn_implementation == "eager"


def test_tokens_mixed_outside_attention_are_found() -> None:
    """A short convolution over the row would reach from one sequence into the next."""
    model = random_model(config_of("Llama", **USUAL))
    mlp = model.model.layers[1].mlp
    plain = mlp.forward
    mlp.forward = lambda x: plain(x + 0.5 * torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])
    with pytest.raises(ModelNotSupportedError, match="gives other logits"):
        check_supported(model.config, model)


def test_positions_that_are_ignored_are_found() -> None:
    """Rotary positions counted along the row look right in a prefill, and are wrong in a decode step."""
    model = random_model(config_of("Llama", **USUAL))
    plain = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: plain(x, torch.arange(x.shape[1])[None])
    with pytest.raises(ModelNotSupportedError, match="gives other logits"):
        check_supported(model.config, model)


def test_an_attention_of_its_own_is_found() -> None:
    """What a model's eager attention does beyond the interface's arguments shows in the logits."""
    model = random_model(config_of("Llama", **USUAL))
    for layer in model.model.layers:
        layer.self_attn.scaling = 0.9
    original = transformers.models.llama.modeling_llama.eager_attention_forward

    def louder(module: Any, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return original(module, query * 1.5, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.models.llama.modeling_llama, "eager_attention_forward", louder)
        with pytest.raises(ModelNotSupportedError, match="gives other logits"):
            check_supported(model.config, model)
    assert check_supported(model.config, model).num_layers == 2


@pytest.mark.parametrize("window", [1, 2, 3])
def test_short_windows_are_counted_as_the_model_counts(window: int) -> None:
    model = random_model(config_of("Mistral", **USUAL, sliding_window=window))
    assert check_supported(model.config, model).num_layers == 2


def test_a_window_as_long_as_the_model_is_no_window() -> None:
    settings = USUAL | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 64}
    model = random_model(config_of("Phimoe", **settings))
    assert check_supported(model.config, model).num_layers == 2


def test_logits_that_are_not_finite() -> None:
    model = random_model(config_of("Llama", **USUAL))
    model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(ModelNotSupportedError, match=r"not finite in torch\.float64"):
        check_supported(model.config, model)
