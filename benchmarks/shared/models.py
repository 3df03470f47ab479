"""The model that a bench serves, and tokens to make prompts of."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minipaged.models.loading import LoadedModel


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The model that is loaded."""
    parser.add_argument("--model", default="smollm2-135m", help="a Hugging Face id or a folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")


def load(args: argparse.Namespace) -> LoadedModel:
    """The model of these arguments, with paged attention."""
    from minipaged.engine.model_hook import (
        ATTENTION_NAME,  # not before a bench runs: its help must not wait for it
    )
    from minipaged.models.loading import load_model

    return load_model(args.model, dtype=args.dtype, device=args.device, attn_implementation=ATTENTION_NAME)


def plain_token_ids(loaded: LoadedModel) -> list[int]:
    """All ids of the model's vocabulary but the special ones."""
    special: set[int | None] = set(loaded.eos_token_ids)
    size = loaded.vocab_size
    if loaded.tokenizer is not None:
        special |= set(loaded.tokenizer.all_special_ids)
        size = min(size, len(loaded.tokenizer))
    special |= {getattr(loaded.config, f"{name}_token_id", None) for name in ("bos", "pad")}
    return [i for i in range(size) if i not in special]
