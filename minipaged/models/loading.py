"""Load a model, its tokenizer and the facts that the engine needs of them: sizes, limits and end tokens.

A model is named by the default model's name, by a folder or GGUF file, or by a Hugging Face id. Whatever is
wrong with it (absent, corrupt, incomplete, of a kind that would run wrong) is one line of error before the
first token.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from ..errors import (
    BackendUnavailableError,
    InvalidConfigError,
    MinipagedError,
    ModelNotSupportedError,
    one_line,
)
from ..sampling_params import SamplingParams, shown
from . import fused_modules, huge_pages, packed_weights
from .facts import eos_token_ids, length_limit, position_limit, sampling_defaults, vocabulary
from .precision import DTYPES, check_capability, torch_dtype
from .quiet import quiet_libraries
from .source import ModelSource, find_model
from .support import check_config
from .trial import check_supported
from .weight_files import StoredTensors, check_fit, check_layer_count, read_headers

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, in eval mode and without gradients, and what the engine needs to know of it."""

    name: str
    model: transformers.PreTrainedModel
    config: transformers.PretrainedConfig
    tokenizer: Any | None
    eos_token_ids: frozenset[int]
    max_model_len: int  # tokens: prompt and output together
    vocab_size: int  # token ids that it can generate: the rows of its output layer that have an embedding
    num_embeddings: int  # token ids that it can read: may be more, or fewer than its tokenizer has
    num_layers: int
    num_kv_heads: int
    head_dim: int
    default_params: SamplingParams = field(default_factory=SamplingParams)  # of generation_config.json


def load_model(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    attn_implementation: str = "eager",
    fuse_modules: bool = False,
    pack_weights: bool | None = False,
) -> LoadedModel:
    """Load `model` to `device` and check that paged attention gives its own logits.

    model: "smollm2-135m" (fetched once), a folder with safetensors or one .gguf file, a .gguf file, or a
    Hugging Face id. dtype: "float32", "float64", "float16", "bfloat16", or "auto": see `precision`.
    device: "cpu", "cuda", "cuda:1", ..., or "auto".
    attn_implementation: a name registered with transformers; set after the check, which uses its own.
    fuse_modules, pack_weights: see `fused_modules` and `packed_weights`; done after the check too.
    Code that comes with a checkpoint is never run.

    Raises InvalidConfigError, ModelNotFoundError, ModelNotSupportedError, DownloadError, and
    BackendUnavailableError for a CUDA device that isn't there.
    """
    target = _device(device)
    fused_modules.check(fuse_modules)
    packed_weights.check(pack_weights)
    if not isinstance(dtype, str) or dtype not in ("auto", *DTYPES):
        raise InvalidConfigError(f"dtype must be one of {', '.join(['auto', *DTYPES])}; got {shown(dtype)}")
    with quiet_libraries():
        source = find_model(str(model))
    with quiet_libraries(bars=not Path(source.location).exists()):
        config = _load_config(source)
        network = _load_weights(source, torch_dtype(source.name, dtype, config, target))
        network = network.to(target).eval().requires_grad_(False)
        if target.type == "cpu":
            huge_pages.move_weights(network)  # before the trial, which reads them three times
        with _named_errors(source, "its config.json can't be used"):
            shape = check_supported(network.config, network)
            facts = _facts(source, network)
        if fuse_modules:
            fused_modules.fuse_modules(network)
        network.set_attn_implementation(attn_implementation)
        packed_weights.pack_weights(network, pack_weights)
        tokenizer = _load_tokenizer(source)
    return LoadedModel(
        name=source.name,
        model=network,
        config=network.config,
        tokenizer=tokenizer,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        **facts,
    )


def _facts(source: ModelSource, network: Any) -> dict[str, Any]:
    """What the configuration files say besides sizes."""
    text = network.config.get_text_config(decoder=True)
    vocab_size, num_embeddings = vocabulary(network)
    limit = length_limit(network.config)
    if limit < position_limit(text):
        logger.warning(
            "%s: its rotary scaling is constant up to %d tokens only: max_model_len is limited to that",
            source.name,
            limit,
        )
    return {
        "max_model_len": limit,
        "vocab_size": vocab_size,
        "num_embeddings": num_embeddings,
        "eos_token_ids": eos_token_ids(network, vocab_size),
        "default_params": sampling_defaults(network.generation_config),
    }


def _device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()) or (kind == "cpu" and index):
        raise InvalidConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N'; got {device!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise BackendUnavailableError(
            f"there is no device {device!r}: this machine has {torch.cuda.device_count()}"
        )
    found = torch.device(device)
    check_capability(found)
    return found


def _load_config(source: ModelSource) -> Any:
    """The configuration, once it is known to fit the weight files and to be of a kind that can run."""
    with _named_errors(source, "its weights can't be read"):
        stored = _stored_tensors(source)
    with _named_errors(source, "its config.json can't be used"):
        if source.gguf is not None:
            config = source.gguf.config
        else:
            options = dict(source.options)
            settings, _ = PretrainedConfig.get_config_dict(source.location, **options)
            check_layer_count(settings, stored)
            config = AutoConfig.from_pretrained(source.location, trust_remote_code=False, **options)
        check_config(config)
        layers = {"num_hidden_layers": config.get_text_config(decoder=True).num_hidden_layers}
        check_layer_count(layers, stored)
        if stored is not None:
            check_fit(config, stored)
        return config


def _stored_tensors(source: ModelSource) -> StoredTensors | None:
    """What the weight files hold, without reading the weights; None if they are not on this machine."""
    if source.gguf is not None:
        return source.gguf.stored
    return read_headers(Path(source.location)) if Path(source.location).is_dir() else None


def _load_weights(source: ModelSource, dtype: torch.dtype | str) -> Any:
    """The model on the CPU. Raises ModelNotSupportedError rather than leave a weight at its random start."""
    options: dict[str, Any] = {"attn_implementation": "eager", "output_loading_info": True}
    if dtype == torch.float64:
        options["experts_implementation"] = "eager"  # the fused one of mixture-of-experts refuses float64
    with _named_errors(source, "its weights can't be read"):
        if source.gguf is not None:
            network, info = source.gguf.model(dtype, **options)  # type: ignore[arg-type]
        else:
            network, info = AutoModelForCausalLM.from_pretrained(
                source.location, dtype=dtype, trust_remote_code=False, **options, **dict(source.options)
            )
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if missing:
        raise ModelNotSupportedError(f"{source.name}: the checkpoint lacks the weights {_listed(missing)}")
    if unexpected:
        logger.warning(
            "%s: the checkpoint has weights that are not used: %s", source.name, _listed(unexpected)
        )
    return network


def _load_tokenizer(source: ModelSource) -> Any | None:
    """The tokenizer, or None for a model that comes without."""
    if not source.has_tokenizer:
        return None
    with _named_errors(source, "its tokenizer can't be loaded"):
        if source.gguf is not None:
            return source.gguf.tokenizer()
        return AutoTokenizer.from_pretrained(source.location, trust_remote_code=False, **dict(source.options))


@contextmanager
def _named_errors(source: ModelSource, what: str) -> Iterator[None]:
    """Turn whatever a library raises about a checkpoint into one line; not running out of memory."""
    try:
        yield
    except (MinipagedError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelNotSupportedError(f"{source.name}: {what}: {one_line(error)}") from error


def _listed(names: list[str], shown: int = 4) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
