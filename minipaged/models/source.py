"""Find out what the name of a model means: the default model, a folder, a GGUF file or a Hugging Face id.

Nothing of the model is read here but what tells these apart. A name that means nothing gets one line of
error within seconds, also on a machine without a network.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoConfig

from ..errors import ModelNotFoundError, ModelNotSupportedError, one_line
from .default_model import DEFAULT_MODEL, ensure_default_model
from .gguf_files import GGUFFile

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class ModelSource:
    """Where to load from: what to give to `from_pretrained`, or a GGUF file."""

    name: str
    location: str
    has_tokenizer: bool = True
    gguf: GGUFFile | None = None
    options: tuple[tuple[str, Any], ...] = ()


def find_model(model: str) -> ModelSource:
    """Tell the four ways to name a model apart.

    Raises ModelNotFoundError, ModelNotSupportedError and DownloadError.
    """
    if not model.strip():
        raise ModelNotFoundError(f"the name of a model can't be empty; got {model!r}")
    if model == DEFAULT_MODEL:
        return ModelSource(model, str(ensure_default_model()))
    path = Path(os.path.expanduser(model))
    # Unlike Path's, these functions raise nothing for a name that is too long, for one.
    if os.path.isfile(path) and path.suffix == ".gguf":
        return ModelSource(path.stem, str(path), gguf=GGUFFile(path))
    if os.path.isdir(path):
        return _find_in_folder(path)
    if os.path.exists(path):
        raise ModelNotFoundError(f"{model} is neither a folder nor a .gguf file")
    if model.startswith((".", "/", "~")) or model.count("/") > 1 or path.suffix in (".gguf", ".safetensors"):
        raise ModelNotFoundError(f"there is no folder or file {model}")
    return _find_on_hub(model)


def _find_in_folder(folder: Path) -> ModelSource:
    name = folder.resolve().name
    if (folder / "adapter_config.json").is_file():
        raise ModelNotSupportedError(f"{folder} holds an adapter (LoRA); merge it into its model first")
    if (folder / "config.json").is_file():
        return ModelSource(name, str(folder), any((folder / file).is_file() for file in _TOKENIZER_FILES))
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource(name, str(files[0]), gguf=GGUFFile(files[0]))
    if files:
        raise ModelNotFoundError(
            f"{folder} holds {len(files)} GGUF files: name one of them, for instance {files[0]}"
        )
    raise ModelNotFoundError(f"{folder} holds no model: there is neither config.json nor a .gguf file in it")


def _find_on_hub(model: str) -> ModelSource:
    """Ask the hub once, briefly. Without an answer only what is cached can be loaded, and that at once."""
    unknown = f"{model!r} is not {DEFAULT_MODEL!r}, a folder or a .gguf file, and"
    try:
        validate_repo_id(model)
        files = {file.rfilename for file in huggingface_hub.model_info(model, timeout=10).siblings or ()}
        return ModelSource(model, model, not files.isdisjoint(_TOKENIZER_FILES))
    except HFValidationError:
        raise ModelNotFoundError(f"{unknown} is no valid Hugging Face id") from None
    except GatedRepoError:
        reason = "needs a Hugging Face login that may read it (hf auth login)"
    except RepositoryNotFoundError:
        reason = "the Hugging Face hub has no public model of that name"
    except Exception as error:  # the hub's client raises errors of several libraries when it can't connect
        reason = f"the Hugging Face hub can't be reached ({one_line(error)}) and has not cached it here"
    try:
        AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        raise ModelNotFoundError(f"{unknown} {reason}") from None
    cached = (huggingface_hub.try_to_load_from_cache(model, file) for file in _TOKENIZER_FILES)
    has_tokenizer = any(isinstance(path, str) for path in cached)
    return ModelSource(model, model, has_tokenizer, options=(("local_files_only", True),))
