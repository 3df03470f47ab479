"""Which beams of a real search live: a small model decides once, and the simulator replays its choices.

Blocks saved by sharing depend on lengths and on which beams live, not on logits.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from minipaged.engine.request import Sequence
from minipaged.llm import LLM
from minipaged.sampling_params import BeamSearchParams
from minipaged.simulator.simulation import Parents

QUESTIONS = (
    "Explain how an operating system uses virtual memory.",
    "Write a short story about a lighthouse keeper and a storm.",
    "Give three reasons to learn a second language.",
    "Describe how bread is made, step by step.",
)


def record_parents(llm: LLM, width: int, num_tokens: int) -> list[Parents]:
    """For each of a few questions, the parents that real beams chose at each step."""
    searches: list[Parents] = []
    reorder = llm.engine.blocks.reorder

    def watch(sequences: SequenceOf[Sequence], parents: SequenceOf[int]) -> Any:
        searches[-1].append(list(parents))
        return reorder(sequences, parents)

    llm.engine.blocks.reorder = watch  # type: ignore[method-assign]
    try:
        for question in QUESTIONS:
            searches.append([])
            prompt = question
            if llm.tokenizer is not None and llm.tokenizer.chat_template:
                prompt = llm.chat_token_ids([{"role": "user", "content": question}])  # type: ignore[assignment]
            params = BeamSearchParams(beam_width=width, max_tokens=num_tokens, ignore_eos=True)
            llm.beam_search([prompt], params, use_tqdm=False)
    finally:
        del llm.engine.blocks.reorder
    return searches
