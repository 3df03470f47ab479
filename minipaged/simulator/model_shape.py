"""The bytes of a model's weights, and of one token's K and V, from the model's shape alone.

The models of the paper's Table 1 and a few newer ones are known by name. Any other is read from its
config.json, and its parameters are counted on a model without memory.
Page: docs/concepts/kv_cache.md.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidConfigError
from ..reference.kv_cache_size import bytes_per_token


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only transformer. Lengths are in tokens, `bytes_per_value` is of weights, keys and values.

    In `num_window_layers` layers a token attends to the last `window` tokens only (sliding-window attention).
    Experts hold `num_expert_parameters` of the parameters, and a token passes `expert_share` of the experts.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    num_parameters: int
    max_model_len: int
    bytes_per_value: int = 2
    window: int | None = None
    num_window_layers: int = 0
    num_expert_parameters: int = 0
    expert_share: float = 1.0

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.num_parameters * self.bytes_per_value

    @property
    def num_active_parameters(self) -> float:
        """The number of parameters that compute one token."""
        return self.num_parameters - self.num_expert_parameters * (1 - self.expert_share)

    def weight_bytes_read(self, num_tokens: int) -> float:
        """Return the bytes of weights that a step reads. It reads no expert that none of its tokens chooses.

        Tokens choose as if by chance: all leave an expert out with probability (1 - share) ** tokens.
        """
        left_out = (1 - self.expert_share) ** num_tokens
        return (self.num_parameters - self.num_expert_parameters * left_out) * self.bytes_per_value

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V that one token leaves in all layers (paper section 3)."""
        return bytes_per_token(self.num_layers, self.num_kv_heads, self.head_dim, self.bytes_per_value)

    def bytes_read(self, num_tokens: int) -> int:
        """Return the bytes of K and V that attention reads for a new token with a context of `num_tokens`.

        A layer with a window reads the window only. The pool keeps the blocks behind it nevertheless.
        """
        if self.window is None or num_tokens <= self.window:
            return num_tokens * self.bytes_per_token
        per_layer = self.bytes_per_token // self.num_layers
        num_full_layers = self.num_layers - self.num_window_layers
        return per_layer * (num_full_layers * num_tokens + self.num_window_layers * self.window)


def _shape(name: str, sizes: str, num_parameters: float, max_model_len: int) -> ModelShape:
    layers, heads, kv_heads, head_dim = map(int, sizes.split())
    return ModelShape(
        name=name,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=heads * head_dim,
        num_parameters=int(num_parameters),
        max_model_len=max_model_len,
    )


# Layers, query heads, KV heads, head_dim; parameters; the longest sequence. In 16 bits a value.
KNOWN = {
    shape.name: shape
    for shape in (
        _shape("opt-13b", "40 40 40 128", 12_853_473_280, 2048),
        _shape("opt-66b", "64 72 72 128", 65_719_701_504, 2048),
        _shape("opt-175b", "96 96 96 128", 174_604_468_224, 2048),
        _shape("llama-13b", "40 40 40 128", 13_015_864_320, 2048),
        _shape("llama-3-8b", "32 32 8 128", 8_030_261_248, 8192),
        _shape("llama-3-70b", "80 64 8 128", 70_553_706_496, 8192),
    )
}


def find_shape(model: str) -> ModelShape:
    """Return the shape of a known model, or of a config.json, or of a folder with one.

    Raises InvalidConfigError for any other name.
    """
    if model.lower() in KNOWN:
        return KNOWN[model.lower()]
    path = Path(model)
    if os.path.isdir(path):  # unlike Path's, no error for a name that is too long
        path = path / "config.json"
    if not os.path.isfile(path):
        raise InvalidConfigError(
            f"model={model!r} is neither a config.json, or a folder with one, nor one of {', '.join(KNOWN)}"
        )
    return _read_shape(path)


def _read_shape(path: Path) -> ModelShape:
    """Let transformers read the file: it knows the names of the sizes in each architecture."""
    import torch
    import transformers

    from ..models.facts import length_limit

    try:
        config: Any = transformers.AutoConfig.from_pretrained(path)
        _check_supported(config)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        text = config.get_text_config()
        heads = int(text.num_attention_heads)
        hidden = int(text.hidden_size)
        layers = _num_layers(path, text)
        kv_heads = _num_kv_heads(text, heads)
        window, num_window_layers = _window(text, layers)
        sizes = {name: weights.numel() for name, weights in model.named_parameters()}
        num_expert_parameters = sum(size for name, size in sizes.items() if ".experts." in name)
        return ModelShape(
            name=path.parent.name if path.name == "config.json" and path.parent.name else path.stem,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=int(getattr(text, "head_dim", None) or hidden // heads),
            hidden_size=hidden,
            num_parameters=sum(sizes.values()),
            max_model_len=length_limit(config),
            window=window,
            num_window_layers=num_window_layers,
            num_expert_parameters=num_expert_parameters,
            expert_share=_expert_share(text) if num_expert_parameters else 1.0,
        )
    except Exception as error:  # transformers may raise anything
        raise InvalidConfigError(f"model={str(path)!r}: {str(error).splitlines()[0]}") from error


def _check_supported(config: Any) -> None:
    """Raise ValueError for a model whose cache or weights have another size than this file computes."""
    text = config.get_text_config(decoder=True)
    kinds = set(getattr(text, "layer_types", None) or ())
    for feature, is_used in (
        ("an encoder", getattr(config, "is_encoder_decoder", False)),
        ("quantised weights", getattr(config, "quantization_config", None)),
        ("a compressed cache (multi-head latent attention)", getattr(text, "kv_lora_rank", None)),
        ("layers that share a cache", getattr(text, "num_kv_shared_layers", None)),
        ("layers without attention", kinds - {"full_attention", "sliding_attention", "chunked_attention"}),
        ("layers without attention", hasattr(text, "attn_layer_period") or hasattr(text, "ssm_cfg")),
    ):
        if is_used:
            raise ValueError(f"{config.model_type} has {feature}, which is not simulated")


def _expert_share(text: Any) -> float:
    """Return the share of the experts that a token passes."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    total = next(int(getattr(text, name)) for name in names if getattr(text, name, None))
    return int(text.num_experts_per_tok) / total


def _num_layers(path: Path, text: Any) -> int:
    """Return the number of layers, which the file must state: transformers would assume one."""
    stated: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    stated = stated.get("text_config", stated)
    name = text.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    if not {name, "num_hidden_layers"} & stated.keys() or text.num_hidden_layers < 1:
        raise ValueError(f"{name} must be given, the number of layers, 1 or more")
    return int(text.num_hidden_layers)


def _num_kv_heads(text: Any, num_heads: int) -> int:
    """Return the number of KV heads. Falcon has its own names, and "multi_query" may go with groups there."""
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    num_kv_heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None)
    return int(num_kv_heads or num_heads)


def _window(text: Any, num_layers: int) -> tuple[int | None, int]:
    """Return the window of sliding-window attention, and how many layers have it."""
    window = getattr(text, "sliding_window", None)
    if not window or getattr(text, "use_sliding_window", True) is False:
        return None, 0
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * num_layers
    return int(window), kinds.count("sliding_attention")
