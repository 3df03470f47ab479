"""Refuse a configuration that doesn't fit its own weight files, before any memory is taken for it.

The headers of the files say which tensors there are, and take milliseconds to read. A configuration of 10**9
layers, or of vectors of 10**9 numbers, is refused by comparing the two. transformers would build it for
minutes, or fill the memory with weights that no file holds.
"""

from __future__ import annotations

import copy
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from safetensors import safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import AutoModelForCausalLM

from ..errors import ModelNotSupportedError

_INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHT_FILES = ("model.safetensors", _INDEX_FILES[0], "pytorch_model.bin", _INDEX_FILES[1])
_LAYER_NAMES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_blocks")
# One stored tensor may become many parameters, such as the experts of a stacked one. A file of few tensors
# gets an allowance beside that.
_PARAMETERS_PER_TENSOR = 64
_PARAMETERS_OF_ANY_MODEL = 1024
# Every parameter comes from a file, and at most one copy of it is tied to another.
_WEIGHTS_PER_VALUE = 2
# Layers of a model whose files are not here yet.
_MOST_LAYERS = 10_000
_MOST_LABELS = 100_000
# Tables and masks that a model computes rather than reads: GPT-Neo's masks take 128 MiB. Those of a large
# model may take more, in proportion to its weights.
_COMPUTED_BYTES = 128 << 20
_COMPUTED_BYTES_PER_VALUE = 1


@dataclass(frozen=True)
class StoredTensors:
    """How much the weight files hold."""

    num_tensors: int
    num_values: int


def read_headers(folder: Path) -> StoredTensors | None:
    """Add up the tensors that transformers would load from `folder`; None where it has no weight files.

    Raises ModelNotSupportedError for an index that names a file outside the folder, and whatever the
    library does for files that can't be read.
    """
    first = next((folder / name for name in _WEIGHT_FILES if (folder / name).is_file()), None)
    if first is None:
        return None
    files = _indexed_files(first) if first.name in _INDEX_FILES else [first]
    shapes = [shape for file in files for shape in _shapes(file)]
    return StoredTensors(len(shapes), sum(math.prod(shape) for shape in shapes))


def _indexed_files(index: Path) -> list[Path]:
    """The files that an index names, each once. Links are followed: the hub's cache is made of them."""
    settings = json.loads(index.read_text(encoding="utf-8"))
    weight_map = settings.get("weight_map") if isinstance(settings, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelNotSupportedError(f"{index.name} has no weight_map from names to files")
    names = sorted(set(weight_map.values()))
    for name in names:
        for path in (PurePosixPath(name), PureWindowsPath(name)):
            if path.is_absolute() or path.drive or path.root or ".." in path.parts:
                raise ModelNotSupportedError(f"{index.name} names {name!r}, which is outside the folder")
    return [index.parent / name for name in names]


def _shapes(file: Path) -> list[tuple[int, ...]]:
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as weights:
            return [tuple(weights.get_slice(name).get_shape()) for name in weights.keys()]  # noqa: SIM118
    stored = torch.load(file, map_location="meta", weights_only=True)
    return [tuple(tensor.shape) for tensor in stored.values() if isinstance(tensor, torch.Tensor)]


def check_layer_count(settings: Any, stored: StoredTensors | None) -> None:
    """Refuse a number of layers that is not positive, or larger than the number of tensors in the files.

    settings: what config.json says, or a part of it. Some configurations make a list with an entry per layer,
    so this comes before transformers reads the file. Raises ModelNotSupportedError.
    """
    if not isinstance(settings, dict):
        return
    for name in _LAYER_NAMES:
        count = settings.get(name)
        if not isinstance(count, (int, float)):
            continue  # not there, or of a kind that transformers refuses
        if not count >= 1:
            raise ModelNotSupportedError(f"{name} must be at least 1, got {count!r}")
        if count > (stored.num_tensors if stored else _MOST_LAYERS):
            held = f"the weight files, which hold {stored.num_tensors} tensors" if stored else "any model"
            raise ModelNotSupportedError(f"{name}={count!r} doesn't fit {held}")
    labels = settings.get("num_labels")  # transformers makes a name for each, whatever the model
    if isinstance(labels, (int, float)) and not labels <= _MOST_LABELS:
        raise ModelNotSupportedError(f"num_labels must be at most {_MOST_LABELS}, got {labels!r}")
    for part in settings.values():
        check_layer_count(part, stored)


def check_fit(config: Any, stored: StoredTensors) -> None:
    """Build the model without memory, and refuse one that needs far more weights than the files hold.

    Raises ModelNotSupportedError.
    """
    with torch.device("meta"), _limited_parameters(stored):
        network = AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=False)
    needed = sum(weight.numel() for weight in network.parameters())
    if needed > _WEIGHTS_PER_VALUE * stored.num_values:
        raise ModelNotSupportedError(
            f"its configuration doesn't fit its weight files: it needs {needed} weights, they hold "
            f"{stored.num_values}"
        )
    computed = sum(table.numel() * table.itemsize for table in network.buffers())
    if computed > _COMPUTED_BYTES_PER_VALUE * stored.num_values + _COMPUTED_BYTES:
        raise ModelNotSupportedError(
            f"its configuration doesn't fit its weight files: tables computed beside the {stored.num_values} "
            f"weights would take {computed} bytes"
        )


@contextmanager
def _limited_parameters(stored: StoredTensors) -> Iterator[None]:
    """Let models made in this thread have so many parameters, and no more."""
    limit = _PARAMETERS_OF_ANY_MODEL + _PARAMETERS_PER_TENSOR * stored.num_tensors
    thread, made = threading.get_ident(), 0

    def count(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        nonlocal made
        made += threading.get_ident() == thread
        if made > limit and threading.get_ident() == thread:
            raise ModelNotSupportedError(
                f"its configuration doesn't fit its weight files: it makes more than {limit} parameters, "
                f"they hold {stored.num_tensors} tensors"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
