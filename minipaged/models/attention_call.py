"""Which arguments a model may hand to attention. What would change the result and isn't built is refused.

The trial at load and the engine's own attention function ask the same question here.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ModelNotSupportedError

# What models pass on besides the arguments that attention computes with, and what can't change its result.
_HARMLESS = {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits"}
_NAMES = {"s_aux": "attention sinks (s_aux)", "sinks": "attention sinks (sinks)"}


def check_attention_call(
    module: torch.nn.Module,
    attention_mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool | None,
    others: dict[str, Any],
) -> None:
    """Raise ModelNotSupportedError, with all reasons, for a call that asks for more than causal attention."""
    given = {name for name, value in others.items() if value is not None}
    unknown = [_NAMES.get(name, name) for name in sorted(given - _HARMLESS)]
    if attention_mask is not None:
        unknown.append("a mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        unknown.append("attention in both directions")
    if dropout:
        unknown.append("dropout")
    if unknown:
        raise ModelNotSupportedError(
            f"{type(module).__name__} asks for {', '.join(unknown)}, which is not supported"
        )
