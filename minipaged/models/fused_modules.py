"""Modules of the Llama family in fewer operations; `fuse_modules=True` replaces the plain ones by them.

A decode step on a CPU spends a third of its time between the matrix products, in small operations that Python
starts one by one. Here products of the same input become one, and norm and rotary embedding one pass each.
What this gains: docs/cpu_ledger.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from transformers import AttentionInterface

from ..errors import InvalidConfigError
from ..kernels._cpu_arguments import as_numbers
from ..sampling_params import shown
from . import huge_pages
from .fused_kernels import rms_norm, rotate
from .trial import check_unchanged, paged_logits

DTYPES = (torch.float32, torch.bfloat16, torch.float64)


class FusedRMSNorm(Module):
    """`LlamaRMSNorm` in one pass."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.variance_epsilon
        self._numbers = as_numbers(norm.weight.detach())  # the same memory: the weight is not to be replaced

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., hidden_size], each row divided by its root mean square and scaled by the weight."""
        return rms_norm(hidden_states, self._numbers, self.epsilon)


class FusedMLP(Module):
    """`LlamaMLP` with one product for gate and up."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = _joined(mlp.gate_proj, mlp.up_proj)
        self.down_proj = mlp.down_proj
        self.activation = mlp.act_fn

    def forward(self, hidden_states: Tensor) -> Tensor:
        """down(activation(gate(x)) * up(x))"""
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(self.activation(gate).mul_(up))


class FusedAttention(Module):
    """`LlamaAttention` with one product for query, key and value, which are then rotated in place."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.config, self.layer_idx = attention.config, attention.layer_idx
        self.head_dim, self.scaling = attention.head_dim, attention.scaling
        own = {"MistralAttention": self.config, "Qwen2Attention": attention}.get(type(attention).__name__)
        self.sliding_window = getattr(own, "sliding_window", None)  # where the plain module takes it from
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        self.num_heads = [projection.out_features // self.head_dim for projection in projections]
        self.qkv_proj = _joined(*projections)
        self.o_proj = attention.o_proj

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """hidden_states [1, T, hidden_size]; position_embeddings: cosine and sine [1, T, head_dim]."""
        num_tokens = hidden_states.shape[1]
        heads = self.qkv_proj(hidden_states).view(num_tokens, -1, self.head_dim)
        num_queries, num_keys, _ = self.num_heads
        cos, sin = position_embeddings
        rotate(heads, num_queries + num_keys, cos[0], sin[0])
        query, key, value = heads.transpose(0, 1).unsqueeze(0).split(self.num_heads, dim=1)
        attend = AttentionInterface()[self.config._attn_implementation]
        others |= {"scaling": self.scaling, "sliding_window": self.sliding_window}
        attended, _ = attend(self, query, key, value, attention_mask, **others)
        return self.o_proj(attended.reshape(1, num_tokens, -1)), None


FUSED: dict[str, type[Module]] = {
    **dict.fromkeys(("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"), FusedRMSNorm),
    **dict.fromkeys(("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"), FusedMLP),
    **dict.fromkeys(("LlamaAttention", "MistralAttention", "Qwen2Attention"), FusedAttention),
}


def check(fuse: bool) -> None:
    """Raise InvalidConfigError for anything but True and False."""
    if not isinstance(fuse, bool):
        raise InvalidConfigError(f"fuse_modules must be True or False, got {shown(fuse)}")


@torch.no_grad()
def fuse_modules(model: Any) -> None:
    """Replace the modules that `FUSED` names, in a model that is on the CPU.

    Raises InvalidConfigError where a model has none of them, is elsewhere or in float16; and
    ModelNotSupportedError where its logits are others afterwards.
    """
    kind = str(model.dtype).removeprefix("torch.")
    if model.device.type != "cpu" or model.dtype not in DTYPES:
        raise InvalidConfigError(
            "fuse_modules=True needs device='cpu' and dtype float32, bfloat16 or float64; "
            f"got {model.device.type} and {kind}"
        )
    expected = paged_logits(model)
    known = [
        (module, name, child)
        for module in model.modules()
        for name, child in module.named_children()
        if type(child).__name__ in FUSED
    ]
    if not known:
        names = "Llama, Mistral, Qwen2 and Qwen3"
        raise InvalidConfigError(f"fuse_modules=True: {type(model).__name__} has no modules of {names}")
    for module, name, child in known:
        setattr(module, name, FUSED[type(child).__name__](child))
    check_unchanged(model, expected)


def _joined(*layers: Linear) -> Linear:
    """One linear layer whose output is that of `layers`, side by side."""
    weights = [layer.weight for layer in layers]
    joined = Linear(1, 1, bias=layers[0].bias is not None, device="meta")
    joined.in_features, joined.out_features = layers[0].in_features, sum(map(len, weights))
    memory = huge_pages.empty((joined.out_features, joined.in_features), weights[0].dtype)
    joined.weight = torch.nn.Parameter(torch.cat(weights, out=memory), requires_grad=False)
    for weight in weights:  # from here on the plain layers hold zeros, and nobody multiplies by them
        huge_pages.drop_pages(weight)
    if joined.bias is not None:
        joined.bias = torch.nn.Parameter(torch.cat([layer.bias for layer in layers]), requires_grad=False)
    return joined
