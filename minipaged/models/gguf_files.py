"""Read a GGUF file (weights, configuration and tokenizer in one) as an ordinary Hugging Face model.

transformers dequantises the weights, and undoes what llama.cpp's converter did to them. It passes over what
it doesn't know, such as scaled rotary embeddings, unequal head sizes or a tensor: the model then loads, and
speaks nonsense. So every metadata key of the architecture must have its value in the configuration, and every
tensor its place in the model. A file for which that holds is accepted, whatever its architecture.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_gguf_pytorch_utils import (
    GGUF_TO_TRANSFORMERS_MAPPING,
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from ..errors import ModelNotSupportedError
from .gguf_header import read_header
from .weight_files import StoredTensors, check_layer_count

# Where transformers calls an architecture otherwise than the file does.
_OTHER_NAMES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
}
# What transformers doesn't read, and the attribute of the configuration that has to have the same value.
_AGREEING = {
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_theta_of_windows",
}
_AGREEING_VALUES = {"rope.scaling.type": "none", "attention.causal": True}
_ASSUMED = (("attention.sliding_window", "sliding_window", None), ("rope.freq_base", "rope_theta", 10000))
# llama.cpp stops at each of them; a model's turn often ends with another token than its texts.
_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
_QWEN = ("qwen2", "qwen3", "qwen2moe", "qwen3moe")  # transformers has a tokenizer of its own for these

logger = logging.getLogger(__name__)


class GGUFFile:
    """One GGUF file, open for reading.

    Raises ModelNotSupportedError for a file that is corrupt, or that transformers would misread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            header = read_header(path)
        except (ValueError, OverflowError) as error:
            raise ModelNotSupportedError(f"{path} is not a readable GGUF file: {error}") from error
        self._metadata, self._tensors = header.metadata, header.shapes
        self.stored = StoredTensors(len(header.shapes), header.num_values)
        parts = self._metadata.get("split.count", 1)
        if parts != 1:
            raise ModelNotSupportedError(
                f"{path.name} is one of {parts} parts of a model: join them with llama-gguf-split --merge"
            )
        self.architecture = str(self._metadata.get("general.architecture"))
        readable = GGUF_TO_TRANSFORMERS_MAPPING["config"]
        self._names = readable.get(_OTHER_NAMES.get(self.architecture, self.architecture))
        if self._names is None or self.architecture in ("general", "tokenizer"):
            raise ModelNotSupportedError(
                f"{path.name} is a GGUF file of the architecture {self.architecture!r}, which transformers "
                "can't read from GGUF (it may work as a folder with safetensors)"
            )
        layers = self._metadata.get(f"{self.architecture}.block_count")
        check_layer_count({"num_hidden_layers": layers}, self.stored)

    @cached_property
    def config(self) -> Any:
        """The model's configuration, checked against all that the file says."""
        config = AutoConfig.from_pretrained(self.path.parent, gguf_file=self.path.name)
        self._check_metadata(config)
        return config

    def model(self, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
        """The model, dequantised to `dtype`. `options` go to `from_pretrained`, whose result is returned."""
        result = AutoModelForCausalLM.from_pretrained(
            self.path.parent, gguf_file=self.path.name, config=self.config, dtype=dtype, **options
        )
        network = result[0] if isinstance(result, tuple) else result
        self._check_tensors(network)
        if ends := sorted(set(self._end_token_ids())):
            network.generation_config.eos_token_id = ends
        return result

    def tokenizer(self) -> Any:
        """The tokenizer, with its chat template. Building a large vocabulary takes seconds."""
        tokenizer = AutoTokenizer.from_pretrained(self.path.parent, gguf_file=self.path.name)
        if self.architecture in _QWEN or self._value("tokenizer.ggml.model") != "gpt2":
            return tokenizer  # transformers knows how these split text
        rule = self._value("tokenizer.ggml.pre")
        if rule == "smollm":  # each digit stands alone, and the spaces before it form a piece of their own
            digits = pre_tokenizers.Digits(individual_digits=True)
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
        elif rule not in (None, "default", "gpt-2"):
            logger.warning(
                "%s: splitting rule %r is taken as GPT-2's: some token ids may differ", self.path, rule
            )
        return tokenizer

    def _value(self, key: str) -> Any:
        return self._metadata.get(key)

    def _end_token_ids(self) -> Iterator[int]:
        for name in _END_TOKENS:
            if (token_id := self._value(f"tokenizer.ggml.{name}")) is not None:
                yield token_id

    def _check_metadata(self, config: Any) -> None:
        """Refuse each key of the architecture whose value the configuration doesn't have."""
        stated = set()
        for key, value in self._metadata.items():
            prefix, _, name = key.partition(".")
            if prefix != self.architecture:
                continue
            attribute = _AGREEING.get(name) or self._names.get(name)
            if name == "rope.dimension_count":
                agrees = value == self._rotary_size(config)
            elif name in _AGREEING_VALUES:
                agrees = value == _AGREEING_VALUES[name]
            else:
                agrees = attribute is not None and _agree(value, _configured(config, attribute))
            if not agrees:
                raise ModelNotSupportedError(f"{self.path.name} has {key} = {value}, which would be ignored")
            stated.add(attribute)
        for name, attribute, usual in _ASSUMED:  # in llama.cpp, where a file doesn't say it
            value = _configured(config, attribute)
            if attribute not in stated and value and value != usual:
                raise ModelNotSupportedError(
                    f"{self.path.name} lacks {self.architecture}.{name}: {value} would be assumed"
                )

    def _rotary_size(self, config: Any) -> int:
        """Values of a head that the model rotates; llama.cpp rotates `rope.dimension_count` of them."""
        size = self._value(f"{self.architecture}.attention.key_length")
        partial = _rope_parameters(config).get("partial_rotary_factor") or 1
        return int((size or config.hidden_size // config.num_attention_heads) * partial)

    def _check_tensors(self, network: Any) -> None:
        """Refuse a file with a tensor that has no place in the model."""
        processor = TENSOR_PROCESSORS.get(self.architecture, TensorProcessor)(config=network.config.to_dict())
        names = get_gguf_hf_weights_map(network, processor)
        for name in self._tensors:
            # transformers names stacked experts without ".weight", and reads GPT-2's output.weight by itself
            if name not in names and name.removesuffix(".weight") not in names and name != "output.weight":
                raise ModelNotSupportedError(f"{self.path.name} has {name}, a tensor that would be ignored")


def _rope_parameters(config: Any) -> dict[str, Any]:
    """The rotary settings, those of full attention where windows have their own."""
    rope = getattr(config, "rope_parameters", None) or {}
    settings: dict[str, Any] = rope.get("full_attention", rope)
    return settings


def _configured(config: Any, attribute: str) -> Any:
    """A value of the configuration by its name in transformers, or None."""
    if attribute == "head_dim":
        return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if attribute == "rope_theta":
        return _rope_parameters(config).get("rope_theta")
    if attribute == "rope_theta_of_windows":
        return (getattr(config, "rope_parameters", None) or {}).get("sliding_attention", {}).get("rope_theta")
    return getattr(config, attribute, None)


def _agree(stored: Any, configured: Any) -> bool:
    """Equal; numbers as float32, in which a file holds them."""
    if isinstance(stored, float) and isinstance(configured, (int, float)):
        return math.isclose(stored, configured, rel_tol=1e-6)
    return bool(stored == configured)


def without_quantization(model: Any) -> Any:
    """A model of the same class and weights, no longer marked as GGUF, so that it can be saved."""
    settings = model.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        settings.pop(name, None)
    config = type(model.config)(**settings)
    fresh = type(model)(config)
    fresh.load_state_dict(model.state_dict())
    tokens = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    fresh.generation_config = GenerationConfig(**tokens)
    return fresh.eval()
