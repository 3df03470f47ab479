"""What every measured process does: load once, then run a load whenever it is asked to, against the clock.

It stands alone, because a peer's environment has no minipaged in it. Started as `python worker.py ENGINE
MODEL DTYPE FD`; a line of JSON on standard input is a load, a line of JSON on file descriptor FD its result.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Generate = Callable[[list[list[int]], list[int]], list[list[int]]]  # prompts and output lengths to tokens
MAX_SEQS = 64


def minipaged(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    """This engine, greedy; options: those of `LLM`, such as enforce_eager=False."""
    from minipaged import LLM, SamplingParams

    llm = LLM(model, dtype=dtype, device="cpu", max_num_seqs=MAX_SEQS, **options)

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]

    return generate


def vllm(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    """vLLM's CPU build, compiled as it does by default."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, dtype=dtype, max_num_seqs=MAX_SEQS, disable_log_stats=True, **options)

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in lengths]
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    return generate


def transformers(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    """Hugging Face `generate` on batches of up to 32 requests, padded on the left."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), **options).eval()
    network.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        rows = network.generate(ids, attention_mask=mask, max_new_tokens=max(lengths))[:, width:].tolist()
        return [row[:length] for row, length in zip(rows, lengths, strict=True)]

    return generate


def continuous(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    """Hugging Face's own continuous batching; options: those of `ContinuousBatchingConfig`."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    manager = network.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(**options),
    )
    manager.start()

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
        ids = [
            manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
        finished: dict[str, list[int]] = {}
        while len(finished) < len(ids):
            result = manager.get_result(timeout=1)
            if result is not None and result.error is not None:
                raise RuntimeError(result.error)
            if result is not None and result.is_finished():
                finished[result.request_id] = list(result.generated_tokens)
            elif result is None and not manager.is_running():
                raise RuntimeError("continuous batching stopped")
        return [finished[name] for name in ids]

    return generate


def llama(model: str, dtype: str, options: dict[str, Any]) -> Generate:
    """llama.cpp; options: `gguf`, the file that holds the model."""
    sys.path.append(str(Path(__file__).parent))
    generate: Generate = importlib.import_module("llama_batches").Engine(**options).generate
    return generate


ENGINES = {
    "minipaged": minipaged,
    "vllm": vllm,
    "transformers": transformers,
    "continuous": continuous,
    "llama.cpp": llama,
}


def main(engine: str, model: str, dtype: str, descriptor: str, options: str) -> None:
    """Load, say so, and run loads until standard input ends."""
    with os.fdopen(int(descriptor), "w", buffering=1) as results:
        generate = ENGINES[engine](model, dtype, json.loads(options))
        print(json.dumps("ready"), file=results)
        for line in sys.stdin:
            print(json.dumps(timed(generate, **json.loads(line))), file=results)


def timed(generate: Generate, prompts: list[list[int]], lengths: list[int], at_once: int) -> dict[str, Any]:
    """Run a load, `at_once` requests after the other; seconds, and the tokens of each request."""
    tokens: list[list[int]] = []
    start = time.perf_counter()
    for i in range(0, len(prompts), at_once):
        tokens += generate(prompts[i : i + at_once], lengths[i : i + at_once])
    seconds = time.perf_counter() - start
    if [len(row) for row in tokens] != lengths:
        raise RuntimeError(f"asked for {lengths} tokens, got {[len(row) for row in tokens]}")
    return {"seconds": seconds, "tokens": tokens}


if __name__ == "__main__":
    main(*sys.argv[1:])
