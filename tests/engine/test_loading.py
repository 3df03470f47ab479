"""Loading gives exactly the checkpoint, with the right facts about it, or one line of what is wrong."""

from __future__ import annotations

import json
import logging
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from minipaged.errors import (
    BackendUnavailableError,
    InvalidConfigError,
    MinipagedError,
    ModelNotFoundError,
    ModelNotSupportedError,
)
from minipaged.models import packed_weights, precision
from minipaged.models.facts import length_limit
from minipaged.models.loading import LoadedModel, load_model
from minipaged.sampling_params import SamplingParams

IDS = torch.tensor([[5, 9, 33, 7]])


def save_llama(folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    usual: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }
    config = LlamaConfig(**(usual | settings), attn_implementation="eager")
    model = LlamaForCausalLM(config).to(dtype).eval()
    model.save_pretrained(folder)
    return model


def peak_memory() -> int:
    """Bytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


Cards = Callable[..., None]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Let torch report these CUDA cards: (capability, name) for cuda:0, for cuda:1, ..."""

    def pretend(*found: tuple[tuple[int, int], str]) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
        monkeypatch.setattr(
            torch.cuda, "get_device_capability", lambda device: found[torch.device(device).index or 0][0]
        )
        monkeypatch.setattr(
            torch.cuda, "get_device_name", lambda device: found[torch.device(device).index or 0][1]
        )

    return pretend


def refused(folder: Path | str, kind: type[MinipagedError], **options: Any) -> str:
    """The message with which loading is refused: one line, whatever a library had to say."""
    with pytest.raises(kind) as caught:
        load_model(str(folder), **options)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is kind
    return str(caught.value)


class TestFacts:
    def test_the_model_is_the_checkpoint(self, tmp_path: Path) -> None:
        source = save_llama(tmp_path / "little")
        loaded = load_model(str(tmp_path / "little"))
        with torch.no_grad():
            assert torch.equal(loaded.model(IDS).logits, source(IDS).logits)
        assert not loaded.model.training
        assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
        facts = {name: getattr(loaded, name) for name in LoadedModel.__dataclass_fields__}
        assert facts == {
            "name": "little",
            "model": loaded.model,
            "config": loaded.model.config,
            "tokenizer": None,
            "eos_token_ids": frozenset({2}),
            "max_model_len": 128,
            "vocab_size": 64,
            "num_embeddings": 64,
            "num_layers": 2,
            "num_kv_heads": 2,
            "head_dim": 16,
            "default_params": SamplingParams(),
        }

    def test_a_head_dim_of_its_own_wins(self, tmp_path: Path) -> None:
        save_llama(tmp_path, head_dim=32)
        loaded = load_model(str(tmp_path))
        assert loaded.head_dim == 32
        assert loaded.model.model.layers[0].self_attn.q_proj.weight.shape == (128, 64)

    @pytest.mark.parametrize(
        ("architecture", "kv_heads", "limit"), [("gpt2", 4, 256), ("opt", 4, 256), ("gemma3", 2, 256)]
    )
    def test_other_names_of_the_same_facts(
        self, architecture: str, kv_heads: int, limit: int, tiny_model: Callable[[str], Path]
    ) -> None:
        loaded = load_model(str(tiny_model(architecture)))
        assert (loaded.num_kv_heads, loaded.max_model_len, loaded.num_layers) == (kv_heads, limit, 2)

    @pytest.mark.parametrize(
        ("generation", "config", "expected"),
        [
            ([1, 63], 2, {1, 63}),
            (7, 2, {7}),
            (None, 2, {2}),
            (None, [2, 5], {2, 5}),
            (None, None, set()),
        ],
    )
    def test_every_end_token_counts(
        self, generation: Any, config: Any, expected: set[int], tmp_path: Path
    ) -> None:
        save_llama(tmp_path, eos_token_id=config)
        settings = {} if generation is None else {"eos_token_id": generation}
        (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        assert load_model(str(tmp_path)).eos_token_ids == expected

    def test_an_end_token_outside_the_vocabulary_is_none(self, tmp_path: Path) -> None:
        save_llama(tmp_path, eos_token_id=[2, -1, 64])
        assert load_model(str(tmp_path)).eos_token_ids == {2}

    @pytest.mark.parametrize("ids", ["</s>", ["</s>"], [2, "2"], 2.5, [True], {"id": 2}])
    @pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
    def test_what_is_no_end_token(self, ids: Any, file: str, tmp_path: Path) -> None:
        save_llama(tmp_path)
        (tmp_path / "generation_config.json").write_text("{}")
        path = tmp_path / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ids}))
        assert "eos_token_id" in refused(tmp_path, ModelNotSupportedError)

    def test_frequencies_that_change_with_length_limit_it(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        rope = {
            "rope_theta": 1e4,
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "rope_type": "longrope",
        }
        save_llama(tmp_path, rope_parameters=rope | {"original_max_position_embeddings": 32, "factor": 4.0})
        assert load_model(str(tmp_path)).max_model_len == 32
        assert "max_model_len is limited" in caplog.text

    @pytest.mark.parametrize(("rope", "limit"), [
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}, 128),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ({"rope_type": "yarn", "factor": 4.0}, 512),
        ({"rope_type": "linear", "factor": 4.0}, 512),
        ({"rope_type": "linear", "factor": 2.5}, 320),
        ({"rope_type": "dynamic", "factor": 4.0}, 128),
    ])  # fmt: skip
    def test_linear_and_yarn_scaling_raise_the_limit(
        self, rope: dict[str, Any], limit: int, tmp_path: Path
    ) -> None:
        save_llama(tmp_path, rope_parameters=rope | {"rope_theta": 1e4})
        assert load_model(str(tmp_path)).max_model_len == limit

    def test_scaling_of_some_layers_is_part_of_the_limit(self, tmp_path: Path) -> None:
        """Gemma 3 4B: 131072 positions, the layers without a window scaled by 8."""
        config = Gemma3TextConfig(max_position_embeddings=131072)
        config.rope_parameters["full_attention"] |= {"rope_type": "linear", "factor": 8.0}
        assert length_limit(config) == 131072

    def test_a_limit_that_the_configuration_states_apart(self, tmp_path: Path) -> None:
        """Command R: 8192 positions in one place, 131072 in the other, which it was made for."""
        save_llama(tmp_path)
        edit_config(tmp_path, model_max_length=1024)
        assert load_model(str(tmp_path)).max_model_len == 1024
        scaled = {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32}
        edit_config(tmp_path, rope_parameters=scaled | {"rope_theta": 1e4})
        assert load_model(str(tmp_path)).max_model_len == 32  # beyond it the frequencies would change
        gpt2 = GPT2Config(n_positions=64, model_max_length=1024)  # learned positions: there are no more
        assert length_limit(gpt2) == 64

    @pytest.mark.parametrize("limit", [16, 1024, int(1e30)])
    def test_the_limit_of_a_tokenizer_plays_no_role(self, limit: int, tmp_path: Path) -> None:
        save_llama(tmp_path)
        words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a", model_max_length=limit)
        tokenizer.save_pretrained(tmp_path)
        assert load_model(str(tmp_path)).max_model_len == 128

    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"max_position_embeddings": -5}, "max_position_embeddings = -5"),
            ({"model_max_length": "long"}, "model_max_length = 'long'"),
            ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.5}}, "by 0.5"),
        ],
    )
    def test_limits_that_are_none(self, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
        save_llama(tmp_path)
        edit_config(tmp_path, **changes)
        assert named in refused(tmp_path, ModelNotSupportedError)

    def test_the_llama_3_frequencies(self, tmp_path: Path) -> None:
        """Ratio to the unscaled ones, worked out by hand: factor 8, bounds 1 and 4, 8192, theta 5e5, D 64."""
        rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
        save_llama(tmp_path, head_dim=64, max_position_embeddings=131072, rope_parameters=rope)
        frequencies = load_model(str(tmp_path)).model.model.rotary_emb.inv_freq
        ratios = frequencies * 5e5 ** (torch.arange(32) / 32)
        assert frequencies.dtype == torch.float32
        assert ratios[[0, 16, 20]].tolist() == pytest.approx([1.0, 0.3711, 0.125], abs=1e-4)


class TestPrecision:
    @pytest.mark.parametrize(
        ("saved", "asked", "expected"),
        [
            (torch.float32, "auto", torch.float32),
            (torch.float64, "auto", torch.float64),
            (torch.float64, "float32", torch.float32),
            (torch.float32, "float64", torch.float64),
            (torch.float32, "bfloat16", torch.bfloat16),
            (torch.float32, "float16", torch.float16),
        ],
    )
    def test_dtypes_on_the_cpu(
        self, saved: torch.dtype, asked: str, expected: torch.dtype, tmp_path: Path
    ) -> None:
        save_llama(tmp_path, dtype=saved)
        loaded = load_model(str(tmp_path), dtype=asked)
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {expected}
        assert loaded.model.model.rotary_emb.inv_freq.dtype == torch.float32

    @pytest.mark.parametrize("saved", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("has_units", [True, False])
    def test_auto_for_a_checkpoint_of_16_bits(
        self,
        saved: torch.dtype,
        has_units: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """bfloat16 where the processor multiplies it, told in one line; float32 elsewhere."""
        monkeypatch.setattr(packed_weights, "is_worth_it", lambda dtype, device: has_units)
        save_llama(tmp_path, dtype=saved)
        model = load_model(str(tmp_path)).model
        assert model.dtype == (torch.bfloat16 if has_units else torch.float32)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == has_units
        assert all("bfloat16" in line and "dtype='float32'" in line for line in told)

    @pytest.mark.parametrize(
        ("saved", "capability", "asked", "expected"),
        [
            (torch.bfloat16, (7, 5), "auto", torch.float16),
            (torch.bfloat16, (8, 0), "auto", torch.bfloat16),
            (torch.bfloat16, (7, 5), "float32", torch.float32),
            (torch.float16, (7, 5), "auto", torch.float16),
            (torch.float32, (7, 5), "auto", torch.float32),
        ],
    )
    def test_dtypes_on_cuda(
        self,
        saved: torch.dtype,
        capability: tuple[int, int],
        asked: str,
        expected: torch.dtype,
        cards: Cards,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        cards((capability, "T4"))
        config = LlamaConfig(dtype=saved)
        assert precision.torch_dtype("m", asked, config, torch.device("cuda")) == expected
        changed = asked == "auto" and expected != saved
        assert [record.getMessage() for record in caplog.records] == changed * [
            "m: bfloat16 weights become float16, because T4 (compute capability 7.5) can't multiply bfloat16"
        ]

    def test_bfloat16_by_name_on_a_card_without_it(self, cards: Cards) -> None:
        cards(((7, 5), "T4"))
        with pytest.raises(InvalidConfigError, match=r"T4 \(compute capability 7.5\).*dtype='float16'"):
            precision.torch_dtype("m", "bfloat16", LlamaConfig(), torch.device("cuda"))

    def test_without_a_dtype_in_the_configuration(self, tmp_path: Path) -> None:
        save_llama(tmp_path)
        edit_config(tmp_path, dtype=None)
        assert load_model(str(tmp_path)).model.dtype == torch.float32

    def test_a_mixture_of_experts_in_float64(self, tiny_model: Callable[[str], Path]) -> None:
        folder = tiny_model("qwen3_moe")
        loaded = load_model(str(folder), dtype="float64")
        oracle = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        )
        with torch.no_grad():
            assert torch.equal(loaded.model(IDS).logits, oracle(IDS).logits)

    @pytest.mark.parametrize("dtype", ["float", "fp16", "int8", "", "Float32"])
    def test_other_dtypes(self, dtype: str, tmp_path: Path) -> None:
        message = refused(tmp_path, InvalidConfigError, dtype=dtype)
        assert repr(dtype) in message
        assert "auto, float32, float64, float16, bfloat16" in message


class TestDevice:
    def test_auto_and_cpu(self, tmp_path: Path) -> None:
        save_llama(tmp_path)
        assert load_model(str(tmp_path)).model.device.type == "cpu"
        here = "cuda" if torch.cuda.is_available() else "cpu"
        assert load_model(str(tmp_path), device="auto").model.device.type == here

    @pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0", "mps", ""])
    def test_no_device(self, device: str, tmp_path: Path) -> None:
        assert repr(device) in refused(tmp_path, InvalidConfigError, device=device)

    def test_a_device_that_is_not_there(self, tmp_path: Path) -> None:
        message = refused(tmp_path, BackendUnavailableError, device="cuda:99")
        assert "'cuda:99'" in message

    @pytest.mark.parametrize("device", ["cuda", "cuda:1", "auto"])
    def test_a_card_that_is_too_old(self, device: str, tmp_path: Path, cards: Cards) -> None:
        cards(((7, 0), "V100"), ((6, 1), "P40"))
        message = refused(tmp_path, BackendUnavailableError, device=device)
        name = "P40 (compute capability 6.1)" if device == "cuda:1" else "V100 (compute capability 7.0)"
        assert name in message and "7.5" in message


def test_the_attention_function_is_set_after_the_check(tmp_path: Path) -> None:
    save_llama(tmp_path)
    assert load_model(str(tmp_path)).config._attn_implementation == "eager"
    assert load_model(str(tmp_path), attn_implementation="sdpa").config._attn_implementation == "sdpa"


class TestTokenizer:
    def test_it_is_loaded(self, tmp_path: Path) -> None:
        save_llama(tmp_path)
        words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a").save_pretrained(tmp_path)
        assert load_model(str(tmp_path)).tokenizer("b").input_ids == [1]

    def test_a_broken_one_is_an_error(self, tmp_path: Path) -> None:
        save_llama(tmp_path)
        (tmp_path / "tokenizer.json").write_text("{")
        assert "its tokenizer can't be loaded" in refused(tmp_path, ModelNotSupportedError)


class TestCheckpoints:
    def test_a_tied_head_is_not_missing(self, tmp_path: Path) -> None:
        source = save_llama(tmp_path, tie_word_embeddings=True)
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
        with torch.no_grad():
            assert torch.equal(load_model(str(tmp_path)).model(IDS).logits, source(IDS).logits)

    @pytest.mark.parametrize("lost", ["lm_head.weight", "model.layers.1.self_attn.k_proj.weight"])
    def test_a_missing_weight_is_named_never_random(self, lost: str, tmp_path: Path) -> None:
        save_llama(tmp_path)
        weights = load_file(tmp_path / "model.safetensors")
        del weights[lost]
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        assert f"lacks the weights {lost}" in refused(tmp_path, ModelNotSupportedError)

    def test_many_missing_weights_are_counted(self, tmp_path: Path) -> None:
        save_llama(tmp_path)
        edit_config(tmp_path, num_hidden_layers=3)
        assert " and 5 more" in refused(tmp_path, ModelNotSupportedError)

    def test_unused_weights_are_a_warning(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        save_llama(tmp_path)
        weights = load_file(tmp_path / "model.safetensors") | {"model.vision.weight": torch.ones(3)}
        save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
        load_model(str(tmp_path))
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "model.vision.weight" in record.getMessage()

    def test_a_weight_of_another_shape(self, tmp_path: Path) -> None:
        save_llama(tmp_path)
        edit_config(tmp_path, vocab_size=65)
        assert "its weights can't be read" in refused(tmp_path, ModelNotSupportedError)

    @pytest.mark.parametrize("kept", [0, 5, 2000, -1])
    def test_truncated_weights(self, kept: int, tmp_path: Path) -> None:
        save_llama(tmp_path)
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        assert "its weights can't be read" in refused(tmp_path, ModelNotSupportedError)

    def test_no_weights(self, tmp_path: Path) -> None:
        save_llama(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        assert "model.safetensors" in refused(tmp_path, ModelNotSupportedError)

    def test_a_shard_is_missing(self, tmp_path: Path) -> None:
        save_llama(tmp_path).save_pretrained(tmp_path, max_shard_size="50KB")
        (tmp_path / "model.safetensors").unlink()
        load_model(str(tmp_path))
        sorted(tmp_path.glob("model-*.safetensors"))[1].unlink()
        assert "its weights can't be read" in refused(tmp_path, ModelNotSupportedError)

    @pytest.mark.parametrize("count", [0, -1, -(10**9)])
    def test_a_model_has_layers(self, count: int, tmp_path: Path) -> None:
        save_llama(tmp_path)
        edit_config(tmp_path, num_hidden_layers=count)
        assert f"num_hidden_layers must be at least 1, got {count}" in refused(
            tmp_path, ModelNotSupportedError
        )

    @pytest.mark.parametrize(
        "name",
        [
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "num_labels",
        ],
    )
    @pytest.mark.parametrize("size", [10**9, 10**15])
    def test_a_configuration_that_doesn_t_fit_its_weights(self, name: str, size: int, tmp_path: Path) -> None:
        """At once, and without memory: the weights it asks for would fill no machine."""
        save_llama(tmp_path)
        edit_config(tmp_path, **{name: size})
        start, before = time.perf_counter(), peak_memory()
        refused(tmp_path, ModelNotSupportedError)
        assert time.perf_counter() - start < 2
        assert peak_memory() - before < 100 << 20

    @pytest.mark.parametrize("architecture", ["qwen3_moe", "gpt2"])
    @pytest.mark.parametrize("name", ["num_experts", "n_layer", "num_hidden_layers", "n_positions"])
    def test_other_sizes_that_don_t_fit(
        self, architecture: str, name: str, tiny_model: Callable[[str], Path], tmp_path: Path
    ) -> None:
        shutil.copytree(tiny_model(architecture), tmp_path / "model")
        if name not in json.loads((tmp_path / "model" / "config.json").read_text()):
            pytest.skip(f"{architecture} has no {name}")
        edit_config(tmp_path / "model", **{name: 10**9})
        start = time.perf_counter()
        refused(tmp_path / "model", ModelNotSupportedError)
        assert time.perf_counter() - start < 2

    @pytest.mark.parametrize(
        "name", ["../outside.safetensors", "/etc/hostname", "a/../../b", "C:\\b", 5, None]
    )
    def test_an_index_names_files_of_its_folder(self, name: Any, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        save_llama(folder)
        (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
        names = load_file(tmp_path / "outside.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, name)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        message = refused(folder, ModelNotSupportedError)
        assert "model.safetensors.index.json" in message
        assert repr(name) in message or not isinstance(name, str)

    def test_weights_may_be_links(self, tmp_path: Path) -> None:
        """As in the hub's cache."""
        folder = tmp_path / "model"
        save_llama(folder).save_pretrained(folder, max_shard_size="50KB")
        (folder / "model.safetensors").unlink()
        for path in folder.glob("model-*.safetensors"):
            path.rename(tmp_path / path.name)
            path.symlink_to(tmp_path / path.name)
        load_model(str(folder))

    def test_pickled_weights(self, tmp_path: Path) -> None:
        source = save_llama(tmp_path)
        (tmp_path / "model.safetensors").unlink()
        torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
        with torch.no_grad():
            assert torch.equal(load_model(str(tmp_path)).model(IDS).logits, source(IDS).logits)
        edit_config(tmp_path, vocab_size=10**9)
        assert "doesn't fit its weight files" in refused(tmp_path, ModelNotSupportedError)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("{ not json", "config.json can't be used"),
            ("{}", "config.json can't be used"),
            ('{"model_type": "nonsense"}', "nonsense"),
            ('{"model_type": "vit"}', "vit is not a causal language model"),
            ('{"model_type": "mamba"}', "linear_attention"),
            ('{"model_type": "llama", "num_attention_heads": "many"}', "config.json can't be used"),
            ('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}', "config.json can't be used"),
        ],
    )
    def test_configurations_that_are_none(self, text: str, reason: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text)
        assert reason in refused(tmp_path, ModelNotSupportedError)

    def test_code_in_a_folder_is_not_run(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(
            '{"model_type": "own",'
            ' "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}'
        )
        (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        refused(tmp_path, ModelNotSupportedError)
        assert not (tmp_path / "ran").exists()


class TestNames:
    def test_a_folder_without_a_model(self, tmp_path: Path) -> None:
        assert "neither config.json nor a .gguf file" in refused(tmp_path, ModelNotFoundError)

    def test_an_adapter(self, tmp_path: Path) -> None:
        (tmp_path / "adapter_config.json").write_text("{}")
        assert "LoRA" in refused(tmp_path, ModelNotSupportedError)

    def test_a_file_of_another_kind(self, tmp_path: Path) -> None:
        (tmp_path / "weights.bin").write_text("")
        assert "neither a folder nor a .gguf file" in refused(tmp_path / "weights.bin", ModelNotFoundError)

    @pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/no-such", "a/b/c", "model.gguf"])
    def test_a_path_that_leads_nowhere_asks_no_hub(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub, "model_info", None)
        assert name in refused(name, ModelNotFoundError)

    def test_without_a_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(model: str, **_: Any) -> None:
            raise OfflineModeIsEnabled("no network\nat all")

        monkeypatch.setattr(huggingface_hub, "model_info", fail)
        message = refused("someone/some-model", ModelNotFoundError)
        for part in ("'someone/some-model'", "'smollm2-135m'", "can't be reached", "no network at all"):
            assert part in message

    def test_the_hub_knows_no_such_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(model: str, **_: Any) -> None:
            raise RepositoryNotFoundError.__new__(RepositoryNotFoundError)

        monkeypatch.setattr(huggingface_hub, "model_info", fail)
        assert "no public model of that name" in refused("someone/some-model", ModelNotFoundError)

    @pytest.mark.parametrize("name", ["two words", "-x", "a--b"])
    def test_what_can_be_no_id(self, name: str) -> None:
        assert "no valid Hugging Face id" in refused(name, ModelNotFoundError)

    @pytest.mark.parametrize("name", ["", "  "])
    def test_no_name(self, name: str) -> None:
        assert "can't be empty" in refused(name, ModelNotFoundError)

    def test_a_hub_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The hub is asked whether it is there; loading itself is transformers' business, by the same id."""
        save_llama(tmp_path / "someone" / "some-model")
        listing = SimpleNamespace(siblings=[SimpleNamespace(rfilename="config.json")])
        monkeypatch.setattr(huggingface_hub, "model_info", lambda model, **_: listing)
        nothing = {name: lambda path: False for name in ("isfile", "isdir", "exists")}
        no_files = SimpleNamespace(path=SimpleNamespace(expanduser=str, **nothing))
        monkeypatch.setattr("minipaged.models.source.os", no_files)
        monkeypatch.chdir(tmp_path)
        loaded = load_model("someone/some-model")
        assert (loaded.name, loaded.tokenizer) == ("someone/some-model", None)


def test_the_libraries_are_quiet_and_as_before_afterwards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_llama(tmp_path)
    transformers.utils.logging.set_verbosity_info()
    capfd.readouterr()
    try:
        load_model(str(tmp_path))
        assert capfd.readouterr() == ("", "")
        assert transformers.utils.logging.get_verbosity() == logging.INFO
        assert transformers.utils.logging.is_progress_bar_enabled()
    finally:
        transformers.utils.logging.set_verbosity_warning()


@pytest.mark.model
def test_the_real_model_continues_a_sentence() -> None:
    loaded = load_model("smollm2-135m")
    assert (loaded.num_layers, loaded.num_kv_heads, loaded.head_dim) == (30, 3, 64)
    assert loaded.config.num_attention_heads == 9
    assert (loaded.max_model_len, loaded.vocab_size, loaded.eos_token_ids) == (8192, 49152, {2})
    ids = torch.tensor([loaded.tokenizer("The capital of France is").input_ids])
    output = loaded.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False
    )
    assert loaded.tokenizer.decode(output[0, ids.shape[1] :]).startswith(" Paris")
