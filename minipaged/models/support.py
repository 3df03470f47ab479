"""Refuse by name the kinds of model that paged attention can't run, from the configuration alone.

What is left is tried on the model itself once its weights are there: trial.py. Without these checks
most of the models refused here would load, and give other tokens without a word.
"""

from __future__ import annotations

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from ..errors import ModelNotSupportedError


def check_config(config: Any) -> None:
    """Refuse by name what the configuration alone tells, before any weight is read.

    Raises ModelNotSupportedError.
    """
    text = config.get_text_config(decoder=True)
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise ModelNotSupportedError(f"{kind} is an encoder-decoder model; only decoders are supported")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelNotSupportedError(f"{kind} is not a causal language model")
    method = _quantization_method(getattr(config, "quantization_config", None))
    if method not in (None, "gguf"):  # GGUF is dequantised when it is read
        raise ModelNotSupportedError(f"checkpoints quantised with {method} are not supported")
    other = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"})
    if other:
        raise ModelNotSupportedError(
            f"{kind} has layers of the kind {', '.join(other)}, which are not supported"
        )
    if getattr(text, "attention_chunk_size", None) and not getattr(text, "layer_types", None):
        raise ModelNotSupportedError(f"{kind} uses chunked attention, which is not supported")
    if getattr(text, "kv_lora_rank", None):
        raise ModelNotSupportedError(f"{kind} uses multi-head latent attention (MLA), which is not supported")
    if not _model_class(config)._supports_attention_backend:
        why = " (it adds ALiBi biases to the scores)" if _has_alibi(text) else ""
        raise ModelNotSupportedError(
            f"{kind} does not use transformers' attention interface{why}: its attention can't be replaced"
        )


def _model_class(config: Any) -> Any:
    classes = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return classes[0] if isinstance(classes, (tuple, list)) else classes


def _quantization_method(settings: Any) -> str | None:
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else settings.quant_method
    return str(getattr(method, "value", method))


def _has_alibi(text: Any) -> bool:
    return bool(getattr(text, "alibi", False)) or text.model_type in ("bloom", "mpt")
