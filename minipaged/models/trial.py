"""Try a loaded model on a few tokens, the way the engine will call it, before anything is generated.

A model may do more in attention than it tells (sinks, masks of its own), or mix tokens elsewhere (short
convolutions, recurrent states). Its own eager attention is the judge: logits by way of a flattened row,
stored keys and values and positions must be the same. Kinds refused by name: support.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from ..errors import ModelNotSupportedError, one_line
from .attention_call import check_attention_call
from .facts import length_limit
from .support import check_config

_TRIAL_NAME = "minipaged_trial"
_TRIAL_TOKENS = 5  # per sequence


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of the KV cache, as the model's own attention calls have shown them."""

    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int


def check_supported(config: Any, model: Any) -> AttentionShape:
    """Refuse a model that paged attention would run wrong. Returns the shape of its KV cache.

    After `check_config`, two sequences go through the model's own eager attention, then through one
    flattened row with a plain attention function in its place: all tokens but the last as a prefill, the
    last ones as a decode step over stored K and V. The logits must agree.
    Raises ModelNotSupportedError.
    """
    check_config(config)
    with _attending(model, "eager"):
        expected = model(input_ids=_trial_tokens(model), use_cache=False).logits
    trial = _Trial()
    got = paged_logits(model, trial)
    shape = _common_shape(model, trial)
    _check_windows(model, trial)
    _compare(model, expected, got)
    return shape


def check_unchanged(model: Any, expected: torch.Tensor) -> None:
    """Raise ModelNotSupportedError if a changed model gives other logits than `paged_logits` gave before."""
    trial = _Trial()
    got = paged_logits(model, trial)
    _check_windows(model, trial)
    _compare(model, expected, got)


def paged_logits(model: Any, trial: _Trial | None = None) -> torch.Tensor:
    """Logits [sequences, tokens, vocabulary] of the trial's tokens, by one prefill row and one decode row."""
    trial = trial or _Trial()
    tokens = _trial_tokens(model)
    count, length = tokens.shape
    logits = []
    with _attending(model, _TRIAL_NAME):
        for start, stop in ((0, length - 1), (length - 1, length)):
            positions = torch.arange(start, stop, device=tokens.device).repeat(count)
            sequences = torch.arange(count, device=tokens.device).repeat_interleave(stop - start)
            trial.begin(sequences, positions)
            row = tokens[:, start:stop].reshape(1, -1)
            arguments = {"use_cache": False, "minipaged_trial": trial}
            output = model(input_ids=row, position_ids=positions[None], **arguments)
            logits.append(output.logits[0].unflatten(0, (count, -1)))
    return torch.cat(logits, dim=1)


@contextmanager
def _attending(model: Any, name: str) -> Iterator[None]:
    """Run a model with another attention. Whatever it raises becomes a ModelNotSupportedError."""
    chosen = model.config._attn_implementation
    try:
        model.set_attn_implementation(name)
        with torch.no_grad():
            yield
    except (torch.OutOfMemoryError, ModelNotSupportedError):
        raise
    except Exception as error:
        raise ModelNotSupportedError(
            f"{_name(model)} fails on its first few tokens: {one_line(error)}"
        ) from error
    finally:
        model.set_attn_implementation(chosen)


class _Trial:
    """The attention function of the trial: it checks how it is called, stores K and V, and attends."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[torch.Tensor, ...]] = {}
        self.shapes: dict[int, tuple[int, int, int]] = {}
        self.windows: dict[int, int | None] = {}

    def begin(self, sequences: torch.Tensor, positions: torch.Tensor) -> None:
        """Start a forward pass over a row whose token i is at positions[i] of sequences[i]."""
        self.row = (sequences, positions)
        self.done: set[int] = set()

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """Causal attention within each sequence. query [1, heads, T, D] -> [1, T, heads, D]."""
        layer = self._layer(module, query, key, value)
        self.windows[layer] = window
        sequences, positions = self.row
        seen: tuple[torch.Tensor, ...]
        seen = (key[0].transpose(0, 1), value[0].transpose(0, 1), sequences, positions)
        if layer in self.stored:
            seen = tuple(torch.cat(pair) for pair in zip(self.stored[layer], seen, strict=True))
        self.stored[layer] = seen
        keys, values, key_sequences, key_positions = seen
        exact = torch.float64 if query.dtype == torch.float64 else torch.float32
        group = query.shape[1] // keys.shape[1]
        keys, values = (cached.to(exact).repeat_interleave(group, dim=1) for cached in (keys, values))
        scores = torch.einsum("htd,jhd->htj", query[0].to(exact), keys) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        distance = positions[:, None] - key_positions[None]
        allowed = (sequences[:, None] == key_sequences[None]) & (distance >= 0)
        if window is not None:
            allowed &= distance < window
        weights = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
        return torch.einsum("htj,jhd->thd", weights, values).to(query.dtype)[None].contiguous()

    def _layer(
        self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> int:
        name, tokens = type(module).__name__, len(self.row[0])
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int):
            raise ModelNotSupportedError(f"{name} does not know its layer's index")
        if layer in self.done:
            raise ModelNotSupportedError(
                f"{name} attends more than once in layer {layer}: one KV cache is not enough"
            )
        if key.shape != value.shape:
            raise ModelNotSupportedError(
                f"{name} has keys of {_heads(key)} and values of {_heads(value)} (heads, head_dim): "
                "only equal ones are supported"
            )
        if query.shape[0] != 1 or query.shape[2] != tokens or key.shape[2] != tokens:
            raise ModelNotSupportedError(
                f"{name} does not hand over the queries, keys and values of the row's tokens"
            )
        if query.shape[1] % key.shape[1] or query.shape[3] != key.shape[3]:
            raise ModelNotSupportedError(f"{name} has queries of {_heads(query)} and keys of {_heads(key)}")
        self.done.add(layer)
        self.shapes[layer] = (query.shape[1], key.shape[1], key.shape[3])
        return layer


def _trial_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    minipaged_trial: _Trial | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    name = type(module).__name__
    if minipaged_trial is None:
        raise ModelNotSupportedError(f"{name} is not handed the keyword arguments of the model's forward")
    check_attention_call(module, attention_mask, dropout, is_causal, others)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    return minipaged_trial.attend(module, query, key, value, scale, sliding_window, softcap), None


AttentionInterface.register(_TRIAL_NAME, _trial_attention)


def _trial_tokens(model: Any) -> torch.Tensor:
    """Two different sequences of the same length, [2, tokens], from the middle of the vocabulary."""
    vocabulary = model.get_input_embeddings().num_embeddings
    limit = getattr(_text_config(model), "max_position_embeddings", None) or _TRIAL_TOKENS
    length = max(2, min(_TRIAL_TOKENS, limit))
    ids = torch.arange(2 * length, device=model.device) * 7 + vocabulary // 3
    return (ids % vocabulary).reshape(2, length)


def _common_shape(model: Any, trial: _Trial) -> AttentionShape:
    layers = sorted(trial.shapes)
    num_layers = _text_config(model).num_hidden_layers
    if layers != list(range(num_layers)):
        raise ModelNotSupportedError(
            f"{len(layers)} of the {num_layers} layers of {_name(model)} "
            "use transformers' attention interface"
        )
    shapes = sorted(set(trial.shapes.values()))
    if len(shapes) > 1:
        told = " and ".join(f"{kv_heads} KV heads of {head_dim}" for _, kv_heads, head_dim in shapes)
        raise ModelNotSupportedError(f"{_name(model)} has layers of unequal K and V shape ({told})")
    return AttentionShape(num_layers, *shapes[0])


def _check_windows(model: Any, trial: _Trial) -> None:
    """The trial is shorter than a real window, so what the configuration says must have been handed over."""
    text = _text_config(model)
    limit = length_limit(model.config)

    def effective(window: int | None) -> int | None:
        return None if window is None or window >= limit else window

    size = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
    usual = "full_attention" if size is None else "sliding_attention"
    kinds = getattr(text, "layer_types", None) or [usual] * len(trial.windows)
    for layer, kind in enumerate(kinds):
        expected = size if kind == "sliding_attention" else None
        if effective(trial.windows[layer]) != effective(expected):
            raise ModelNotSupportedError(
                f"{_name(model)} asks for a window of {trial.windows[layer]} in layer {layer}, "
                f"where its configuration says {expected}"
            )


def _compare(model: Any, expected: torch.Tensor, got: torch.Tensor) -> None:
    """Raise unless the logits agree: to rounding in float32 and float64, for most tokens in half precision.

    In half precision a token may be sent to another expert by rounding alone, so the median token counts.
    """
    expected, got = expected.double(), got.double()
    if not expected.isfinite().all():
        raise ModelNotSupportedError(f"{_name(model)} gives logits that are not finite in {model.dtype}")
    spread = (expected - expected.mean(dim=-1, keepdim=True)).abs().amax(dim=-1)
    error = (got - expected).abs().amax(dim=-1) / spread.clamp(min=1e-30)
    exact = model.dtype in (torch.float32, torch.float64)
    worst = float(error.max() if exact else error.median())
    if not worst <= (1e-2 if exact else 0.25):
        raise ModelNotSupportedError(
            f"{_name(model)} gives other logits with its attention replaced (off by {worst:.0%}): "
            "its tokens depend on each other elsewhere, or its attention is of a kind not known here"
        )


def _heads(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.shape[1], tensor.shape[3]


def _text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def _name(model: Any) -> str:
    return type(model).__name__
