"""What a token leaves in the cache and what a model weighs, against arithmetic and the paper's Table 1."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minipaged.errors import InvalidConfigError
from minipaged.simulator.cost_model import PAPER_SERVERS
from minipaged.simulator.model_shape import KNOWN, ModelShape, find_shape

OPT: dict[str, Any] = {"model_type": "opt", "vocab_size": 50272, "max_position_embeddings": 2048}
LLAMA_3: dict[str, Any] = {
    "model_type": "llama",
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "opt-13b": OPT
    | {
        "hidden_size": 5120,
        "word_embed_proj_dim": 5120,
        "ffn_dim": 20480,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
    },
    "opt-66b": OPT
    | {
        "hidden_size": 9216,
        "word_embed_proj_dim": 9216,
        "ffn_dim": 36864,
        "num_hidden_layers": 64,
        "num_attention_heads": 72,
    },
    "opt-175b": OPT
    | {
        "hidden_size": 12288,
        "word_embed_proj_dim": 12288,
        "ffn_dim": 49152,
        "num_hidden_layers": 96,
        "num_attention_heads": 96,
    },
    "llama-13b": {
        "model_type": "llama",
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "llama-3-8b": LLAMA_3
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-3-70b": LLAMA_3
    | {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}
SMALL: dict[str, Any] = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10}


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a folder with a config.json and returns the folder."""

    def write(name: str, config: dict[str, Any]) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    return write


def shape(**sizes: Any) -> ModelShape:
    """A shape of which only the cache matters."""
    others: dict[str, Any] = {"name": "any", "hidden_size": 1, "num_parameters": 1, "max_model_len": 8192}
    return ModelShape(**(others | sizes))


def num_parameters_of_opt(hidden: int, num_layers: int) -> int:
    """By hand. A layer has 4 h^2 weights in attention and 8 h^2 in its MLP, biases of 4 h + 5 h, two norms.

    Around them: embeddings of 50,272 tokens and of 2,048 positions and two more, and a last norm.
    """
    layer = 12 * hidden**2 + 9 * hidden + 4 * hidden
    return num_layers * layer + (50_272 + 2_050) * hidden + 2 * hidden


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("opt-13b", 819_200),  # 2 (K and V) * 5,120 * 40 layers * 2 bytes: the paper's section 3
        ("opt-66b", 2_359_296),  # 2 * 9,216 * 64 * 2
        ("opt-175b", 4_718_592),  # 2 * 12,288 * 96 * 2
        ("llama-13b", 819_200),
        ("llama-3-8b", 131_072),  # 2 * 8 KV heads * 128 * 32 layers * 2: a quarter of its 32 heads'
        ("llama-3-70b", 327_680),  # 2 * 8 * 128 * 80 * 2
    ],
)
def test_bytes_per_token_of_the_known_models(name: str, expected: int) -> None:
    assert KNOWN[name].bytes_per_token == expected


def test_a_request_of_2048_tokens_takes_1_6_gigabytes_of_opt_13b() -> None:
    assert KNOWN["opt-13b"].bytes_read(2048) == 1_677_721_600


def test_multi_query_attention_stores_one_head() -> None:
    many = shape(num_layers=32, num_heads=64, num_kv_heads=64, head_dim=128)
    one = shape(num_layers=32, num_heads=64, num_kv_heads=1, head_dim=128)
    assert one.bytes_per_token == 2 * 128 * 32 * 2 == 16_384
    assert many.bytes_per_token == 64 * 16_384


def test_other_precisions_take_as_many_bytes_as_they_have() -> None:
    fp8 = shape(num_layers=32, num_heads=32, num_kv_heads=8, head_dim=128, bytes_per_value=1)
    assert fp8.bytes_per_token == 65_536
    assert fp8.weight_bytes == 1
    assert KNOWN["llama-3-8b"].weight_bytes == 16_060_522_496


def test_a_window_bounds_what_is_read_and_not_what_a_token_leaves() -> None:
    sizes = {"num_layers": 32, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    mistral = shape(**sizes, window=4096, num_window_layers=32)
    assert mistral.bytes_per_token == 131_072
    assert mistral.bytes_read(100) == 13_107_200
    assert mistral.bytes_read(4095) == 4095 * 131_072
    assert mistral.bytes_read(4096) == mistral.bytes_read(4097) == mistral.bytes_read(8192) == 536_870_912
    assert shape(**sizes).bytes_read(8192) == 1_073_741_824


def test_a_window_in_half_of_the_layers_bounds_half_of_what_is_read() -> None:
    """As in Gemma 2 2B: 26 layers of 4 KV heads of 256; a token leaves 4,096 bytes in each of them."""
    gemma = shape(num_layers=26, num_heads=8, num_kv_heads=4, head_dim=256, window=4096, num_window_layers=13)
    assert gemma.bytes_per_token == 26 * 4096
    assert gemma.bytes_read(4096) == 4096 * 26 * 4096
    assert gemma.bytes_read(8192) == 13 * 4096 * 8192 + 13 * 4096 * 4096 == 654_311_424


@pytest.mark.parametrize(("name", "slots"), [("opt-13b", 15_700), ("opt-66b", 9_700), ("opt-175b", 60_100)])
def test_slots_of_the_papers_table_1(name: str, slots: int) -> None:
    assert PAPER_SERVERS[name].kv_bytes // KNOWN[name].bytes_per_token == pytest.approx(slots, rel=0.02)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_known_model_is_what_its_config_says(name: str, write_config: Callable[..., Path]) -> None:
    """Its parameters are counted on the meta device."""
    assert find_shape(str(write_config(name, CONFIGS[name]))) == KNOWN[name]


def test_parameters_by_hand() -> None:
    assert num_parameters_of_opt(5120, 40) == KNOWN["opt-13b"].num_parameters == 12_853_473_280
    assert num_parameters_of_opt(9216, 64) == KNOWN["opt-66b"].num_parameters
    assert num_parameters_of_opt(12288, 96) == KNOWN["opt-175b"].num_parameters
    # Llama: Q and O, K and V of fewer heads, three of the MLP, two norms; embeddings twice, a norm.
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
    assert 32 * layer + 2 * 128_256 * 4096 + 4096 == KNOWN["llama-3-8b"].num_parameters
    layer = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192
    assert 80 * layer + 2 * 128_256 * 8192 + 8192 == KNOWN["llama-3-70b"].num_parameters


def test_names_are_known_in_any_case() -> None:
    assert find_shape("OPT-13B") is KNOWN["opt-13b"]


def test_gpt2_calls_its_sizes_differently(write_config: Callable[..., Path]) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 6,
        "n_positions": 40,
        "vocab_size": 9,
    }
    # A layer: 12 h^2, biases of 3 + 1 + 4 + 1 h, two norms of 2 h. Then 9 tokens, 40 positions, a norm.
    assert find_shape(str(write_config("small-gpt2", config))) == ModelShape(
        name="small-gpt2",
        num_layers=3,
        num_heads=6,
        num_kv_heads=6,
        head_dim=8,
        hidden_size=48,
        num_parameters=3 * (12 * 48 * 48 + 13 * 48) + (9 + 40 + 2) * 48,
        max_model_len=40,
    )


def test_mistral_has_a_window_in_every_layer(write_config: Callable[..., Path]) -> None:
    config = {
        "model_type": "mistral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 10,
        "max_position_embeddings": 128,
        "sliding_window": 32,
        "tie_word_embeddings": False,
    }
    folder = write_config("small-mistral", config)
    # A layer: Q and O of 64 * 64, K and V of 64 * 32, three of the MLP, two norms; embeddings twice, a norm.
    expected = ModelShape(
        name="small-mistral",
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        hidden_size=64,
        num_parameters=2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64) + 2 * 10 * 64 + 64,
        max_model_len=128,
        window=32,
        num_window_layers=2,
    )
    assert find_shape(str(folder)) == expected
    assert find_shape(str(folder / "config.json")) == expected


def test_the_window_of_a_model_that_does_not_use_it_is_none(write_config: Callable[..., Path]) -> None:
    config = SMALL | {"model_type": "qwen2", "sliding_window": 32, "num_hidden_layers": 2}
    found = find_shape(str(write_config("without", config | {"use_sliding_window": False})))
    assert (found.window, found.num_window_layers) == (None, 0)


def test_gemma_2_has_a_window_in_every_other_layer(write_config: Callable[..., Path]) -> None:
    config = SMALL | {
        "model_type": "gemma2",
        "head_dim": 24,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "sliding_window": 32,
    }
    found = find_shape(str(write_config("gemma", config)))
    assert (found.window, found.num_window_layers) == (32, 2)
    assert found.bytes_per_token == 2 * 2 * 24 * 4 * 2  # head_dim isn't hidden_size / num_heads


def test_multi_query_of_gpt_bigcode(write_config: Callable[..., Path]) -> None:
    config = {"model_type": "gpt_bigcode", "n_embd": 48, "n_layer": 3, "n_head": 6, "multi_query": True}
    assert find_shape(str(write_config("bigcode", config))).bytes_per_token == 2 * 1 * 8 * 3 * 2


@pytest.mark.parametrize(
    ("options", "num_kv_heads"),
    [
        ({"multi_query": True}, 1),  # as Falcon 7B
        ({"multi_query": False}, 4),
        ({"multi_query": True, "new_decoder_architecture": True, "num_kv_heads": 2}, 2),  # as 40B
    ],
)
def test_falcon_has_names_of_its_own(
    options: dict[str, Any], num_kv_heads: int, write_config: Callable[..., Path]
) -> None:
    config = SMALL | {"model_type": "falcon", "num_hidden_layers": 2} | options
    assert find_shape(str(write_config("falcon", config))).num_kv_heads == num_kv_heads


@pytest.mark.parametrize("content", ["{nope", "[1]", "{}", '{"hidden_size": 64}', ""])
def test_a_file_that_is_no_config_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"model='.*config\.json'"):
        find_shape(str(path))


@pytest.mark.parametrize("layers", [{}, {"num_hidden_layers": 0}, {"num_hidden_layers": "many"}])
def test_a_config_without_layers_is_refused(
    layers: dict[str, Any], write_config: Callable[..., Path]
) -> None:
    folder = write_config("small", SMALL | layers)
    with pytest.raises(InvalidConfigError, match=r"model='.*config\.json'.*layers"):
        find_shape(str(folder))


@pytest.mark.parametrize("name", ["opt-14b", "missing/config.json", ""])
def test_what_is_neither_a_name_nor_a_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfigError, match="model='" + name + "' is neither .* nor one of opt-13b"):
        find_shape(name)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfigError, match=r"model='.*' is neither a config\.json, or a folder with one"
    ):
        find_shape(str(tmp_path))


def test_a_mixture_of_experts_computes_and_reads_what_tokens_choose(tmp_path: Path) -> None:
    """8 experts of 3 x 64 x 128 parameters in each of 2 layers, of which a token passes 2.

    One token reads a quarter of them; of two tokens, an expert is left out by both with (3 / 4) ** 2.
    """
    config = {
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 100,
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = find_shape(str(tmp_path))
    experts = 2 * 8 * 3 * 64 * 128
    assert shape.num_expert_parameters == experts
    assert shape.num_active_parameters == shape.num_parameters - experts * 3 / 4
    assert shape.weight_bytes_read(1) == 2 * shape.num_active_parameters
    assert shape.weight_bytes_read(2) == 2 * (shape.num_parameters - experts * 9 / 16)
    assert shape.weight_bytes_read(10**6) == pytest.approx(shape.weight_bytes)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"model_type": "deepseek_v3", "num_hidden_layers": 2}, "a compressed cache"),
        ({"model_type": "jamba", "num_hidden_layers": 8}, "layers without attention"),
        ({"model_type": "qwen3_next", "num_hidden_layers": 4}, "layers without attention"),
        ({"model_type": "t5", "num_layers": 2}, "an encoder"),
        (
            {
                "model_type": "llama",
                "num_hidden_layers": 2,
                "quantization_config": {"quant_method": "gptq", "bits": 4},
            },
            "quantised weights",
        ),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(config: dict[str, Any], what: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidConfigError, match=what):
        find_shape(str(tmp_path))
