"""How the systems of `minipaged bench` are measured: this engine, and Hugging Face `generate` in three ways.

`measure` loads the model, warms up, runs all requests against the clock and returns plain data.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from minipaged.engine.usage import Usage
from minipaged.errors import MinipagedError
from minipaged.models.loading import load_model
from minipaged.sampling_params import SamplingParams

from ..shared.meters import PeakMemory, timed_parts
from .workload import (
    ENGINE,
    HF_BATCH_SIZES,
    MOVED,
    PROFILE,
    RequestSet,
    Settings,
    batches,
    make_workloads,
    padded_waste,
)


def measure_here(result: str) -> int:
    """What a fresh process does: read a task, measure, write the figures to the file `result`.

    Returns the exit code; why it is not 0 is the last line on standard error.
    """
    task = json.load(sys.stdin)
    try:
        figures = measure(task["system"], Settings(**task["settings"]), task["rivals"])
    except MinipagedError as error:
        print(error, file=sys.stderr)
        return 1
    Path(result).write_text(json.dumps(figures))
    return 0


def measure(system: str, settings: Settings, rivals: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Run one system on the workload that `settings` describes, and return its figures as plain data.

    rivals: the tokens of other systems, by name; "hf-1" compares them with its own. Raises
    InvalidConfigError where the model can't hold the longest request.
    """
    if system == ENGINE:
        return _measure_engine(settings)
    if system == PROFILE:
        return _profile_engine(settings)
    if system == MOVED:
        return _measure_hf(settings, 32, rivals, moved=True)
    return _measure_hf(settings, HF_BATCH_SIZES[system], rivals)


# ---------------------------------------------------------------------- this engine


def _measure_engine(settings: Settings) -> dict[str, Any]:
    llm, workload = _start_engine(settings)
    device = llm.engine.runner.device
    with PeakMemory(device) as memory:
        start = time.perf_counter()
        tokens = _generate(llm, workload)
        seconds = time.perf_counter() - start
    stats = llm.stats()
    if device.type == "cuda":  # a CPU's pool takes memory as blocks are first written, a GPU's at once
        memory.include(llm.engine.runner.cache.num_bytes)
    cache = {
        "reserved_bytes": stats.peak_used_blocks * stats.bytes_per_block,
        "waste": stats.waste,
        "waste_if_reserved": stats.waste_if_reserved,
        "pool_bytes": stats.num_blocks * stats.bytes_per_block,
        "block_size": stats.block_size,
        "num_blocks": stats.num_blocks,
        "peak_used_blocks": stats.peak_used_blocks,
        "num_steps": stats.num_steps,
        "num_preemptions": stats.num_preemptions,
        "num_cached_prompt_tokens": stats.num_cached_prompt_tokens,
        "attention_backend": llm.engine.runner.backend.name,
    }
    return _figures(llm.engine.loaded.model, workload, tokens, seconds, memory, cache)


def _start_engine(settings: Settings) -> tuple[Any, RequestSet]:
    """An engine that is warm and whose totals are at zero, and its requests."""
    from minipaged.llm import LLM  # not in the processes of the others, whose memory is measured too

    llm = LLM(
        settings.model,
        dtype=settings.dtype,
        device=settings.device,
        attention_backend=settings.attention_backend,
    )
    workload, warm_up = make_workloads(settings, llm.engine.loaded)
    _generate(llm, warm_up)
    llm.engine.usage = Usage()
    return llm, workload


def _generate(llm: Any, workload: RequestSet) -> list[list[int]]:
    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        for length in workload.output_lengths
    ]
    outputs = llm.generate(workload.prompts, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def _profile_engine(settings: Settings) -> dict[str, Any]:
    """Where the time of a step goes. The wrappers cost a little, so this is never the run that is timed."""
    llm, workload = _start_engine(settings)
    with timed_parts(llm.engine) as seconds:
        _generate(llm, workload)
    forward, linear, attention = seconds["forward"], seconds["linear"], seconds["attention"]
    parts = {
        "linear layers": linear,
        "attention and KV write": attention,
        "rest of the model: norms, rotary, Python": forward - linear - attention,
        "sampler": seconds["sampler"],
        "scheduler, block manager, batch building": seconds["step"] - forward - seconds["sampler"],
    }
    return {"step_seconds": seconds["step"], "num_steps": llm.stats().num_steps, "parts": parts}


# ---------------------------------------------------------------------- Hugging Face generate


def _measure_hf(
    settings: Settings, batch_size: int, rivals: dict[str, list[list[int]]], moved: bool = False
) -> dict[str, Any]:
    loaded = load_model(
        settings.model, dtype=settings.dtype, device=settings.device, attn_implementation="sdpa"
    )
    model = loaded.model
    if not moved:  # `load_model` has put them into huge pages, which transformers doesn't
        for weight in model.parameters():
            weight.data = weight.data.clone()
    workload, warm_up = make_workloads(settings, loaded)
    _make_greedy(model)
    _generate_hf(model, warm_up, batch_size)
    with PeakMemory(model.device) as memory:
        start = time.perf_counter()
        tokens, reserved_bytes = _generate_hf(model, workload, batch_size)
        seconds = time.perf_counter() - start
    cache = {
        "reserved_bytes": reserved_bytes,
        "waste": padded_waste(workload, batch_size),
        "attention": model.config._attn_implementation,
    }
    figures = _figures(model, workload, tokens, seconds, memory, cache)
    compared = {name: compare(model, workload.prompts, tokens, theirs) for name, theirs in rivals.items()}
    return figures | {"compared": compared}


def _make_greedy(model: Any) -> None:
    """Plain argmax without an end: whatever else the checkpoint's generation settings ask for is dropped."""
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0, use_cache=True)


def _generate_hf(model: Any, workload: RequestSet, batch_size: int) -> tuple[list[list[int]], int]:
    """Tokens asked for, and the bytes of the largest cache: batches in order of arrival, padded on the left,
    each run to the longest output that one of its requests wants."""
    tokens: list[list[int]] = []
    most_bytes = 0
    for prompts, lengths in batches(workload, batch_size):
        width = max(map(len, prompts))
        input_ids = torch.zeros((len(prompts), width), dtype=torch.int64)
        mask = torch.zeros_like(input_ids)
        for i, prompt in enumerate(prompts):
            input_ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        output = model.generate(
            input_ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=max(lengths),
            return_dict_in_generate=True,
        )
        most_bytes = max(most_bytes, _cache_bytes(output))
        rows = output.sequences[:, width:].tolist()
        tokens += [row[:length] for row, length in zip(rows, lengths, strict=True)]
    return tokens, most_bytes


def _cache_bytes(output: Any) -> int:
    """Bytes of the cache as it was when `generate` ended: it only grows until then."""
    cache = output.cache if hasattr(output, "cache") else output.past_key_values  # its older name
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@torch.inference_mode()
def compare(
    model: Any, prompts: list[list[int]], tokens: list[list[int]], theirs: list[list[int]]
) -> dict[str, Any]:
    """Which requests got the same tokens, and for the others where they part and how close the choice was.

    logit_gap: by how much the model, given the tokens up to there, prefers its own choice to the other;
    top2_gap: to its own second choice. Where both are tiny, rounding decided.
    """
    same, different = [], []
    for i, (prompt, ours, other) in enumerate(zip(prompts, tokens, theirs, strict=True)):
        if ours == other:
            same.append(i)
            continue
        at = next(k for k in range(len(ours)) if ours[k] != other[k])
        ids = torch.tensor([prompt + ours[:at]], device=model.device)
        logits = model(input_ids=ids, use_cache=False).logits[0, -1].double()
        best, second = logits.topk(2).values.tolist()
        gap = float(logits[ours[at]] - logits[other[at]])
        different.append({"request": i, "position": at, "logit_gap": gap, "top2_gap": best - second})
    return {"same": same, "different": different}


# ---------------------------------------------------------------------- what both have in common


def _figures(
    model: Any,
    workload: RequestSet,
    tokens: list[list[int]],
    seconds: float,
    memory: PeakMemory,
    cache: dict[str, Any],
) -> dict[str, Any]:
    """A system's result. Raises MinipagedError where it did not give every request what it wants."""
    if [len(row) for row in tokens] != workload.output_lengths:
        raise MinipagedError("a request got another number of tokens than it asked for")
    num_tokens = sum(workload.output_lengths)
    return {
        "num_output_tokens": num_tokens,
        "seconds": seconds,
        "tokens_per_second": num_tokens / seconds,
        "memory": {"before_bytes": memory.before, "peak_bytes": memory.peak, "run_bytes": memory.growth},
        "weight_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "kv_cache": cache,
        "prompt_lengths": [len(prompt) for prompt in workload.prompts],
        "output_lengths": workload.output_lengths,
        "tokens": tokens,
    }
