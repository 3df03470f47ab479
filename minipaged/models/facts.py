"""Read from a model's configuration what the engine has to know: its limit, end tokens and sampling defaults.

These files are written by many hands. A value of the wrong kind is refused here, where its name is known; it
would otherwise pass, and fail later or never match.
"""

from __future__ import annotations

import math
from typing import Any

from ..config import is_integer, is_number
from ..errors import InvalidRequestError, ModelNotSupportedError
from ..sampling_params import SamplingParams

_LENGTH_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")
# What generation_config.json may say about sampling: the same six as in vLLM, under our names.
_SAMPLING_NAMES = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
_SAMPLING_NAMES["max_new_tokens"] = "max_tokens"


def length_limit(config: Any) -> int:
    """Tokens of the longest text that the model was made for. Raises ModelNotSupportedError.

    Linear and YaRN scaling stretch the rotary positions, so they raise the limit. Two other kinds, "longrope"
    and "dynamic", change all frequencies once the longest sequence of a batch passes a length: keys already
    in the cache would then be wrong, and other requests in the batch would change the tokens. For them the
    limit is that length.

    A rotary model may state its limit as `model_max_length` (Command R: 131072, where
    max_position_embeddings is 8192). A tokenizer's own model_max_length plays no role, as in vLLM and in
    `generate`: it is 10**30 where nobody set it, and says nothing of what the positions can tell apart.
    """
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    own = getattr(text, "model_max_length", None) if rope else None
    limit = position_limit(text) if own is None else _positive(text, "model_max_length", own)
    for settings in [rope, *(part for part in rope.values() if isinstance(part, dict))]:
        original = settings.get("original_max_position_embeddings")
        if settings.get("rope_type") in ("longrope", "dynamic") and original is not None:
            limit = min(limit, _positive(text, "original_max_position_embeddings", original))
    # Scaling of some layers only (Gemma 3) is part of the design: max_position_embeddings includes it.
    factor = rope.get("factor")
    if own is not None:
        return limit
    if rope.get("rope_type") == "linear":
        return _stretched(text, limit, factor)
    if rope.get("rope_type") == "yarn" and factor is not None:
        original = rope.get("original_max_position_embeddings", limit)
        return _stretched(text, _positive(text, "original_max_position_embeddings", original), factor)
    return limit


def position_limit(text: Any) -> int:
    """Positions that the configuration itself names, whatever its rotary scaling."""
    stated = ((name, getattr(text, name, None)) for name in _LENGTH_NAMES)
    name, limit = next(((name, length) for name, length in stated if length is not None), ("", None))
    if limit is None:
        raise ModelNotSupportedError(f"the configuration of {text.model_type} gives no maximal length")
    return _positive(text, name, limit)


def _stretched(text: Any, length: int, factor: Any) -> int:
    if not is_number(factor) or not 1 <= factor < math.inf:
        raise ModelNotSupportedError(
            f"the configuration of {text.model_type} scales its rotary embeddings by {factor!r}, "
            "which must be a number of at least 1"
        )
    return int(length * factor)


def _positive(text: Any, name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():  # 1e6 in a file of JSON
        value = int(value)
    if not is_integer(value) or value < 1:
        raise ModelNotSupportedError(
            f"the configuration of {text.model_type} has {name} = {value!r}, which must be a positive integer"
        )
    return value


def vocabulary(network: Any) -> tuple[int, int]:
    """How many tokens can be chosen (outputs that have an embedding), and how many have an embedding."""
    num_embeddings = int(network.get_input_embeddings().num_embeddings)
    layer = network.get_output_embeddings()
    text = network.config.get_text_config(decoder=True)
    num_outputs = int(text.vocab_size if layer is None else layer.weight.shape[0])
    return min(num_outputs, num_embeddings), num_embeddings


def eos_token_ids(network: Any, vocab_size: int) -> frozenset[int]:
    """Every id that ends a text: the generation config's, else the configuration's (a number or a list).

    An id outside the vocabulary (-1 means "none" in some files) can never be chosen, so it is left out.
    Raises ModelNotSupportedError for what is no id.
    """
    text = network.config.get_text_config(decoder=True)
    for holder in (network.generation_config, network.config, text):
        ids = getattr(holder, "eos_token_id", None)
        if ids is None:
            continue
        listed = list(ids) if isinstance(ids, (list, tuple)) else [ids]
        if not all(map(is_integer, listed)):
            raise ModelNotSupportedError(f"eos_token_id must be an integer or a list of them, got {ids!r}")
        return frozenset(token_id for token_id in listed if 0 <= token_id < vocab_size)
    return frozenset()


def sampling_defaults(generation_config: Any) -> SamplingParams:
    """The parameters that generation_config.json asks for, the usual ones where it says nothing.

    As in vLLM, `do_sample` plays no role: a file without a temperature leaves it at 1.
    Raises ModelNotSupportedError for values that nothing could be sampled with.
    """
    stated = generation_config.to_diff_dict()
    given = {ours: stated[name] for name, ours in _SAMPLING_NAMES.items() if stated.get(name) is not None}
    try:
        return SamplingParams(**given)
    except InvalidRequestError as error:
        raise ModelNotSupportedError(f"generation_config.json can't be used: {error}") from error


def changed_parameters(params: SamplingParams) -> str:
    """The parameters that differ from the usual ones, as "top_k=20, top_p=0.8"; empty where none does."""
    usual = SamplingParams()
    values = {name: getattr(params, name) for name in sorted(_SAMPLING_NAMES.values())}
    return ", ".join(f"{name}={value}" for name, value in values.items() if value != getattr(usual, name))
