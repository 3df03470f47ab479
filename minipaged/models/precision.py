"""The numbers that a model computes with: what `dtype` names, and what "auto" means on each device."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ..errors import BackendUnavailableError, InvalidConfigError
from . import packed_weights

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
LEAST_CAPABILITY = (7, 5)  # Turing: the oldest cards that Triton compiles for
BFLOAT16_CAPABILITY = (8, 0)  # Ampere: the first cards that multiply bfloat16

logger = logging.getLogger(__name__)


def torch_dtype(name: str, dtype: str, config: Any, device: torch.device) -> torch.dtype | str:
    """Return the dtype that the model `name` is loaded in. Raises InvalidConfigError if its card lacks it.

    "auto" on CUDA: the checkpoint's own; float16 for bfloat16 if the card can't multiply bfloat16.
    "auto" on a CPU: bfloat16 if the checkpoint has 16 bits and the processor has units for bfloat16.
    Otherwise float32, or float64 for a float64 checkpoint.
    """
    if dtype == "auto":
        return _own_dtype(name, config, device)
    if dtype == "bfloat16" and not _has_bfloat16(device):
        raise InvalidConfigError(f"dtype='bfloat16': {_card(device)} can't multiply it, use dtype='float16'")
    return DTYPES[dtype]


def check_capability(device: torch.device) -> None:
    """Raise BackendUnavailableError for a CUDA device that is too old for the kernels."""
    if _is_nvidia(device) and torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        raise BackendUnavailableError(f"{_card(device)} is too old: the kernels need compute capability 7.5")


def _own_dtype(name: str, config: Any, device: torch.device) -> torch.dtype | str:
    own = config.dtype or config.get_text_config(decoder=True).dtype
    own = DTYPES.get(own, own) if isinstance(own, str) else own
    if device.type == "cuda":
        if own == torch.bfloat16 and not _has_bfloat16(device):
            logger.warning(
                "%s: bfloat16 weights become float16, because %s can't multiply bfloat16", name, _card(device)
            )
            return torch.float16
        return own or "auto"
    if own in (torch.float16, torch.bfloat16) and packed_weights.is_worth_it(torch.bfloat16, device):
        logger.warning("%s: computed in bfloat16; dtype='float32' is slower and more exact", name)
        return torch.bfloat16
    return torch.float64 if own == torch.float64 else torch.float32


def _has_bfloat16(device: torch.device) -> bool:
    return not _is_nvidia(device) or torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY


def _is_nvidia(device: torch.device) -> bool:
    """AMD's cards are "cuda" to torch as well, and count their capabilities differently."""
    return device.type == "cuda" and torch.version.hip is None


def _card(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"
