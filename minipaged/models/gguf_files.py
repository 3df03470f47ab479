"""Read a GGUF file (weights, configuration and tokenizer in one) as an ordinary Hugging Face model.

transformers dequantises the weights and puts the rows of Q and K back into its own order. What it would
pass over without a word (scaled rotary embeddings, unequal head sizes, a splitting rule of the tokenizer)
is checked here: it would load, and speak nonsense.
"""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from ..errors import ModelNotSupportedError

# Architectures whose conversion is tested, and the metadata of each that transformers reads.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_READ = {
    "context_length",
    "block_count",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "rope.dimension_count",
    "rope.freq_base",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
}

logger = logging.getLogger(__name__)


class GGUFFile:
    """One GGUF file, open for reading.

    Raises ModelNotSupportedError for a file that is corrupt, or that transformers would misread.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError) as error:
            raise ModelNotSupportedError(f"{path} is not a readable GGUF file: {error}") from error
        self.architecture = self._value("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise ModelNotSupportedError(
                f"{path.name} is a GGUF file of the architecture {self.architecture!r}; handled as GGUF are "
                f"{', '.join(ARCHITECTURES)} (others work as a folder with safetensors)"
            )

    @cached_property
    def config(self) -> Any:
        """The model's configuration, checked against the metadata that transformers leaves out."""
        config = AutoConfig.from_pretrained(self.path.parent, gguf_file=self.path.name)
        self._check_metadata(config)
        return config

    def model(self, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
        """The model, dequantised to `dtype`. `options` go to `from_pretrained`, whose result is returned."""
        return AutoModelForCausalLM.from_pretrained(
            self.path.parent, gguf_file=self.path.name, config=self.config, dtype=dtype, **options
        )

    def tokenizer(self) -> Any:
        """The tokenizer, with its chat template. Building a large vocabulary takes seconds."""
        tokenizer = AutoTokenizer.from_pretrained(self.path.parent, gguf_file=self.path.name)
        if self.architecture != "llama" or self._value("tokenizer.ggml.model") != "gpt2":
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
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def _check_metadata(self, config: Any) -> None:
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        agreeing = {
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "rope.scaling.type": "none",
        }
        for key in self._reader.fields:
            prefix, _, name = key.partition(".")
            if prefix != self.architecture or name in _READ:
                continue
            value = self._value(key)
            if name not in agreeing or value != agreeing[name]:
                raise ModelNotSupportedError(f"{self.path.name} has {key} = {value}, which would be ignored")
        for tensor in self._reader.tensors:
            if tensor.name.startswith("rope_"):
                raise ModelNotSupportedError(
                    f"{self.path.name} scales its rotary embeddings ({tensor.name}), which would be ignored"
                )


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
