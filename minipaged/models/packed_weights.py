"""The weights of linear layers laid out once as a CPU's libraries multiply them, not anew in every step.

A product first copies the weight into the order in which the processor reads it best. A prompt of many tokens
makes good use of that copy. In a decode step there are few, and the copy can take longer than the product.
What this gains, and what else was tried: docs/cpu_ledger.md.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import BackendUnavailableError, InvalidConfigError
from ..sampling_params import shown
from . import huge_pages

NUM_TOKENS = 32  # that the order is chosen for; other numbers are multiplied in it too
MOST_TOKENS = 128  # from here on MKL's product of a plain weight is as fast


class PackedLinear(torch.nn.Module):
    """`torch.nn.Linear` of 16-bit numbers, its weight laid out by oneDNN. It takes no more memory."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), NUM_TOKENS)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs [..., in_features] times the weight: [..., out_features]."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")


class PackedFloat32Linear(torch.nn.Module):
    """`torch.nn.Linear` of float32, with a weight that MKL has laid out beside the plain one.

    MKL's reference says nothing of another number of tokens than the order was made for. So every shape of
    weight is tried on several numbers when it is packed; see `_check`.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.packed = torch.ops.mkl._mkl_reorder_linear_weight(linear.weight.detach(), NUM_TOKENS)

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs [..., in_features] times the weight: [..., out_features]."""
        num_tokens = inputs.numel() // self.in_features
        if num_tokens >= MOST_TOKENS:
            return F.linear(inputs, self.weight, self.bias)
        return torch.ops.mkl._mkl_linear(inputs, self.packed, self.weight, self.bias, num_tokens)


def is_worth_it(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether packing is always faster and takes no memory: 16 bits, on a CPU with units for them."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float16 and torch.ops.mkldnn._is_mkldnn_fp16_supported()


def check(pack_weights: bool | None) -> None:
    """Raise InvalidConfigError for anything but None, True and False."""
    if pack_weights is not None and not isinstance(pack_weights, bool):
        raise InvalidConfigError(f"pack_weights must be None, True or False, got {shown(pack_weights)}")


@torch.no_grad()
def pack_weights(model: torch.nn.Module, wanted: bool | None) -> None:
    """Replace the linear layers of a model that is on its device; with None only where `is_worth_it`.

    Raises InvalidConfigError where packing is wanted and this machine can't pack the model's dtype, and
    BackendUnavailableError where a packed product is wrong.
    """
    first = next(model.parameters())
    dtype, device = first.dtype, first.device
    fits = is_worth_it(dtype, device)
    if not wanted and not (wanted is None and fits):
        return
    if not fits and (dtype != torch.float32 or device.type != "cpu" or not torch.backends.mkl.is_available()):
        kind = str(dtype).removeprefix("torch.")
        raise InvalidConfigError(f"pack_weights=True: {kind} weights can't be packed on this {device.type}")
    modules = list(model.modules())
    users = Counter(own.data_ptr() for module in modules for own in module.parameters(recurse=False))
    checked: set[torch.Size] = set()
    for module in modules:
        for name, child in module.named_children():
            if type(child) is torch.nn.Linear:
                packed = PackedLinear(child) if fits else PackedFloat32Linear(child)
                if child.weight.shape not in checked:
                    _check(packed, child)
                    checked.add(child.weight.shape)
                setattr(module, name, packed)
                if fits and users[child.weight.data_ptr()] == 1:
                    huge_pages.drop_pages(child.weight)


def _check(packed: torch.nn.Module, linear: torch.nn.Linear) -> None:
    """Compare a packed layer's products with those of the plain one, for few and for many tokens."""
    generator = torch.Generator().manual_seed(0)
    for num_tokens in (1, 2, 7, NUM_TOKENS - 1, NUM_TOKENS, MOST_TOKENS - 1):
        inputs = torch.randn(1, num_tokens, linear.in_features, generator=generator).to(linear.weight.dtype)
        expected = linear(inputs)
        allowed = expected.abs().amax() * torch.finfo(expected.dtype).eps * linear.in_features**0.5
        if not (packed(inputs) - expected).abs().amax() <= allowed:
            raise BackendUnavailableError(
                f"a packed product of {num_tokens} tokens is wrong on this machine: use pack_weights=False"
            )
