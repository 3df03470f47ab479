"""A tiny random Llama for the engine that the simulator is compared with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, in float64."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,  # many, so that samples differ from their first token on
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).to(torch.float64).save_pretrained(folder)
    return folder
