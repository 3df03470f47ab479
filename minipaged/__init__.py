"""minipaged: PagedAttention you can run.

Every concept of the paper is plain Python (`minipaged.reference`), and six are kernels as well
(`minipaged.kernels`). A small engine made of these parts serves real Hugging Face models. Importing the
package loads no torch: the engine's names are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.engine import LLMEngine
    from .engine.parts import Parts
    from .engine.policies import FirstComeFirstServed, Policy, Priority, ShortestFirst
    from .llm import LLM
    from .outputs import CacheStats, CompletionOutput, RequestOutput
    from .sampling_params import BeamSearchParams, SamplingParams

__version__ = "0.1.0"

_HOMES = {
    "LLM": "llm",
    "LLMEngine": "engine.engine",
    "Parts": "engine.parts",
    "Policy": "engine.policies",
    "FirstComeFirstServed": "engine.policies",
    "ShortestFirst": "engine.policies",
    "Priority": "engine.policies",
    "SamplingParams": "sampling_params",
    "BeamSearchParams": "sampling_params",
    "RequestOutput": "outputs",
    "CompletionOutput": "outputs",
    "CacheStats": "outputs",
}

__all__ = [
    "LLM",
    "BeamSearchParams",
    "CacheStats",
    "CompletionOutput",
    "FirstComeFirstServed",
    "LLMEngine",
    "Parts",
    "Policy",
    "Priority",
    "RequestOutput",
    "SamplingParams",
    "ShortestFirst",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'minipaged' has no attribute {name!r}")
    return getattr(import_module(f"minipaged.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
