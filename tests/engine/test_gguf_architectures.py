"""A GGUF file of each architecture that transformers converts gives the model that it was written from.

The files are written as llama.cpp's converter writes them: its names come from the gguf package, what it does
to the values is done here by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from minipaged import LLM, SamplingParams
from minipaged.errors import ModelNotSupportedError
from minipaged.models.loading import load_model

TOKENS = ["<eos>", "<bos>", "<turn>", *"abcdefghijklmnopqrstuvwxyz", "Ġ"]
MERGES = ["a b", "c d"]
TOKENS += ["ab", "cd"]
COMMON: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 0,
    "pad_token_id": None,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 768,
}  # the default: transformers reads no other
GEMMA = {"head_dim": 8, "sliding_window": 5, "tie_word_embeddings": True}
# name in GGUF: class of configuration, its settings, metadata beyond the common ones
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gemma2": (
        "Gemma2Config",
        GEMMA | {"query_pre_attn_scalar": 256},
        {"attention.key_length": 8, "attention.value_length": 8, "attention.sliding_window": 5,
         "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        GEMMA | {"num_hidden_layers": 6, "query_pre_attn_scalar": 256},
        {"attention.key_length": 8, "attention.value_length": 8, "attention.sliding_window": 5},
    ),
    "phi3": ("Phi3Config", {}, {"rope.dimension_count": 8}),
    "gpt2": ("GPT2Config", {"max_position_embeddings": 1024}, {}),
    "starcoder2": ("Starcoder2Config", {"use_bias": True, "sliding_window": None}, {}),
    "qwen2moe": (
        "Qwen2MoeConfig",
        MOE | {"shared_expert_intermediate_size": 5632, "moe_intermediate_size": 1408},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 1408,
         "expert_shared_feed_forward_length": 5632},
    ),
    "qwen3moe": (
        "Qwen3MoeConfig",
        MOE | {"head_dim": 8, "norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 768,
         "attention.key_length": 8, "attention.value_length": 8},
    ),
}  # fmt: skip


def tiny(architecture: str) -> Any:
    """A random model in which biases and norms count."""
    name, special, _ = ARCHITECTURES[architecture]
    torch.manual_seed(3)
    config = getattr(transformers, name)(**(COMMON | special))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def stored_tensors(model: Any, architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values as llama.cpp's converter writes them."""
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy(force=True)
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):  # [experts, gate and up, hidden]
            layer = name.split(".")[2]
            gate, up = np.split(values, 2, axis=1)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate.copy()
            yield f"blk.{layer}.ffn_up_exps.weight", up.copy()
            continue
        if name.endswith("experts.down_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", values
            continue
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if architecture == "gpt2" and values.ndim == 2 and ".h." in name:
            values = values.T.copy()  # its layers keep [in, out]
        if name.endswith("shared_expert_gate.weight"):
            values = values[0]
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored, name
        yield stored, values


def write(path: Path, model: Any, architecture: str, changes: dict[str, Any] | None = None) -> Path:
    config, extra = model.config, ARCHITECTURES[architecture][2]
    metadata: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
    }
    if architecture == "gpt2":
        metadata |= {"attention.layer_norm_epsilon": config.layer_norm_epsilon}
    else:
        rope = config.rope_parameters.get("full_attention", config.rope_parameters)
        metadata |= {
            "feed_forward_length": config.intermediate_size,
            "attention.head_count_kv": config.num_key_value_heads,
            "rope.freq_base": float(rope["rope_theta"]),
        }
        starcoder = architecture == "starcoder2"
        epsilon = config.norm_epsilon if starcoder else config.rms_norm_eps
        metadata["attention.layer_norm_epsilon" if starcoder else "attention.layer_norm_rms_epsilon"] = (
            epsilon
        )
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    for key, value in (metadata | extra | (changes or {})).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_pad_token_id(0)
    for name, values in stored_tensors(model, architecture):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
def test_the_file_gives_the_model_it_was_written_from(architecture: str, tmp_path: Path) -> None:
    source = tiny(architecture)
    loaded = load_model(str(write(tmp_path / "tiny.gguf", source, architecture)))
    ids = torch.tensor([[3, 9, 4, 12, 5, 7, 22, 30, 1, 3, 8]])
    with torch.no_grad():
        expected, got = source(ids).logits, loaded.model(ids).logits
    assert expected.std() > 0.1
    assert (got - expected).abs().max() < 1e-4
    assert loaded.max_model_len == source.config.max_position_embeddings


def test_tokens_of_gemma_3_beyond_its_window(tmp_path: Path) -> None:
    source = tiny("gemma3").double()
    write(tmp_path / "tiny.gguf", source.float(), "gemma3")
    prompt = [1, 5, 9, 4, 12, 5, 7, 22, 30]
    with torch.no_grad():
        answer = source.double().generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=0
        )
    llm = LLM(str(tmp_path), dtype="float64", num_blocks=16, block_size=4)
    (output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    assert output.outputs[0].token_ids == answer[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("gemma3", {"attention.scale": 0.5}, "gemma3.attention.scale"),
        ("gemma3", {"rope.scaling.factor": 8.0}, "gemma3.rope.scaling.factor"),
        ("gemma3", {"attention.value_length": 16}, "gemma3.attention.value_length"),
        ("gemma2", {"attn_logit_softcapping": 20.0}, "gemma2.attn_logit_softcapping"),
        ("qwen3moe", {"expert_feed_forward_length": 8}, "qwen3moe.expert_feed_forward_length"),
        ("qwen3moe", {"expert_weights_scale": 2.0}, "qwen3moe.expert_weights_scale"),
        ("phi3", {"rope.dimension_count": 4}, "phi3.rope.dimension_count"),
    ],
)
def test_a_key_that_would_be_ignored_is_refused(
    architecture: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    write(tmp_path / "tiny.gguf", tiny(architecture), architecture, changes)
    with pytest.raises(ModelNotSupportedError, match=f"{named} = .* would be ignored"):
        load_model(str(tmp_path))


@pytest.mark.parametrize("key", ["rope.freq_base", "attention.sliding_window"])
def test_a_default_of_transformers_is_not_assumed(key: str, tmp_path: Path) -> None:
    """llama.cpp takes a frequency of 10000 and no window where a file says nothing."""
    path = write(tmp_path / "tiny.gguf", tiny("gemma3"), "gemma3")
    content = path.read_bytes()
    path.write_bytes(content.replace(f"gemma3.{key}".encode(), f"gemma_.{key}".encode()))
    with pytest.raises(ModelNotSupportedError, match=f"lacks gemma3.{key}: .* would be assumed"):
        load_model(str(path))
