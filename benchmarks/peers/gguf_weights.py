"""The model as llama.cpp reads it: a GGUF file of float32 weights, made once of the model's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from minipaged.errors import ModelNotSupportedError

# By llama.cpp's name of a tensor of a layer, the module's name in transformers.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_gguf(network: Any, path: Path) -> None:
    """Write a Llama model without its tokenizer, which nobody asks for. Raises ModelNotSupportedError."""
    import gguf  # torch and all: the help must not wait for it

    config = network.config
    rope = config.rope_parameters
    if (
        config.model_type != "llama"
        or config.attention_bias
        or config.mlp_bias
        or rope["rope_type"] != "default"
    ):
        raise ModelNotSupportedError("only plain Llama models are written for llama.cpp")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, tensor in _tensors(network):
        writer.add_tensor(name, tensor.detach().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, path)


def _tensors(network: Any) -> list[tuple[str, Any]]:
    """Every tensor under llama.cpp's name. Q and K change their rows; a tied output has no tensor."""
    config, weights = network.config, network.state_dict()
    tensors = [("token_embd.weight", weights["model.embed_tokens.weight"])]
    tensors.append(("output_norm.weight", weights["model.norm.weight"]))
    if not config.tie_word_embeddings:
        tensors.append(("output.weight", weights["lm_head.weight"]))
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for i in range(config.num_hidden_layers):
        for name, module in LAYER_TENSORS.items():
            tensor = weights[f"model.layers.{i}.{module}.weight"]
            if name in heads:
                tensor = interleaved(tensor, heads[name])
            tensors.append((f"blk.{i}.{name}.weight", tensor))
    return tensors


def interleaved(weight: Any, num_heads: int) -> Any:
    """The rows of each head in another order: llama.cpp rotates neighbours, transformers rotates halves."""
    rows, columns = weight.shape
    halves = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns).contiguous()
