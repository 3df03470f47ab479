"""An engine on a stubbed model, for tests that call it thousands of times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import minipaged.engine.engine
import minipaged.models.loading
from minipaged import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).parent))

from stub_engine import VOCAB, StubRunner

spec = spec_from_file_location("engine_conftest", Path(__file__).parents[1] / "engine" / "conftest.py")
assert spec is not None and spec.loader is not None
engine_conftest = module_from_spec(spec)
spec.loader.exec_module(engine_conftest)
tiny_chat_model = engine_conftest.tiny_chat_model


@pytest.fixture
def stub_llm(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LLM]:
    """A function that makes an `LLM` on the stub: 13 blocks of 4 tokens, swap, chunks of 16 tokens."""
    loaded = SimpleNamespace(
        tokenizer=None,
        eos_token_ids=frozenset({VOCAB - 1}),
        vocab_size=VOCAB,
        num_embeddings=VOCAB,
        max_model_len=64,
        default_params=SamplingParams(),
    )
    monkeypatch.setattr(minipaged.models.loading, "load_model", lambda *_, **__: loaded)
    monkeypatch.setattr(minipaged.engine.engine, "ModelRunner", StubRunner)

    def make(**settings: Any) -> LLM:
        defaults = {"block_size": 4, "num_blocks": 13, "max_num_batched_tokens": 16}
        return LLM("stub", **(defaults | {"preemption_mode": "swap", "swap_space": 1} | settings))

    return make
