"""The comparison must be right before it is fast: same requests, true counts, honest waste."""

from __future__ import annotations

import argparse
import io
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from benchmarks.huggingface import bench, report, systems
from benchmarks.huggingface.workload import RequestSet, Settings, make_workload, make_workloads, padded_waste
from benchmarks.shared.meters import PeakMemory, timed_parts
from benchmarks.shared.models import plain_token_ids
from minipaged.engine.model_hook import ATTENTION_NAME, paged_attention
from minipaged.errors import InvalidConfigError, MinipagedError
from minipaged.models.loading import load_model
from minipaged.terminal.console import DataConsole

SYSTEMS = ("minipaged", "hf-1", "hf-8", "hf-32", "hf-32-moved")
CPU = torch.device("cpu")

# Of the tiny Llama: embedding and head, the last norm, and per layer q and o, k and v, the MLP, two norms.
NUM_WEIGHTS = 2 * 128 * 32 + 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32)
KV_BYTES = 2 * 2 * 2 * 8 * 4  # a token: K and V, 2 layers, 2 KV heads of 8, 4 bytes


def arguments(folder: Path | str, **changed: Any) -> argparse.Namespace:
    """Command line of a small run: ten requests, so that batches of 8 are one full and one of two."""
    line = ["--model", str(folder), "--device", "cpu", "--attention-backend", "reference"]
    line += ["--num-requests", "10", "--min-prompt", "2", "--max-prompt", "40"]
    line += ["--min-output", "1", "--max-output", "9"]
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return argparse.Namespace(**(vars(parser.parse_args(line)) | changed))


@pytest.fixture(scope="module")
def run(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of a whole run, in this process, with tokens and the report added."""
    output = tmp_path_factory.mktemp("bench") / "results.json"
    tokens: dict[str, Any] = {}

    def measure(system: str, settings: Settings, rivals: dict[str, Any]) -> dict[str, Any]:
        figures = systems.measure(system, settings, rivals)
        tokens[system] = figures.get("tokens")
        return figures

    results = bench.run(arguments(tiny_model("llama"), output=str(output)), measure)
    console = DataConsole(record=True, width=80, file=open("/dev/null", "w"))  # noqa: SIM115
    report.print_head(console, results)
    report.print_results(console, results)
    return {"results": results, "file": output, "tokens": tokens, "report": console.export_text()}


def test_all_systems_give_the_same_right_tokens(
    run: dict[str, Any], tiny_model: Callable[[str], Path], hf_greedy: Callable[..., list[list[int]]]
) -> None:
    results, tokens = run["results"], run["tokens"]
    lengths = results["workload"]["output_lengths"]
    settings = Settings(**results["settings"])
    workload, _ = make_workloads(settings, load_model(settings.model))
    expected = hf_greedy("llama", workload.prompts, 9)  # eos may end one of these early
    for system in SYSTEMS:
        assert [len(row) for row in tokens[system]] == lengths
        for ours, theirs, length in zip(tokens[system], expected, lengths, strict=True):
            assert ours[: len(theirs)] == theirs[:length]
    for name in ("minipaged", "hf-8", "hf-32", "hf-32-moved"):
        assert results["same_tokens_as_hf_1"][name] == {"same": list(range(10)), "different": []}


def test_throughput_counts_what_was_asked_for(run: dict[str, Any]) -> None:
    results = run["results"]
    num_tokens = sum(results["workload"]["output_lengths"])
    assert results["workload"]["num_output_tokens"] == num_tokens
    speeds = {name: results["systems"][name]["tokens_per_second"] for name in SYSTEMS}
    best = max(speeds[name] for name in ("hf-1", "hf-8", "hf-32"))
    assert speeds[results["best_hf"]] == best
    for name in SYSTEMS:
        figures = results["systems"][name]
        assert speeds[name] == pytest.approx(num_tokens / figures["seconds"])
        assert figures["ratio_to_best_hf"] == pytest.approx(speeds[name] / best)
        assert figures["dtype"] == "float32" and figures["threads"] == torch.get_num_threads()
        assert figures["weight_bytes"] == 4 * NUM_WEIGHTS


def test_engine_waste_is_that_of_last_blocks(run: dict[str, Any]) -> None:
    """All requests start in one step, so after k more each holds prompt + k tokens in whole blocks of 16."""
    results = run["results"]
    reserved = used = peak = 0
    workload = results["workload"]
    requests = list(zip(workload["prompt_lengths"], workload["output_lengths"], strict=True))
    for k in range(max(workload["output_lengths"])):
        held = [prompt + k for prompt, output in requests if k < output]
        blocks = sum(math.ceil(tokens / 16) for tokens in held)
        reserved, used, peak = reserved + 16 * blocks, used + sum(held), max(peak, blocks)
    cache = results["systems"]["minipaged"]["kv_cache"]
    assert cache["waste"] == pytest.approx(1 - used / reserved)
    assert cache["peak_used_blocks"] == peak
    assert cache["reserved_bytes"] == peak * 16 * KV_BYTES
    assert cache["num_steps"] == max(workload["output_lengths"])


@pytest.mark.parametrize(("system", "size"), [("hf-1", 1), ("hf-8", 8), ("hf-32", 32)])
def test_padded_caches_are_weighed(run: dict[str, Any], system: str, size: int) -> None:
    workload = run["results"]["workload"]
    prompts, outputs = workload["prompt_lengths"], workload["output_lengths"]
    slots = []
    for i in range(0, 10, size):
        batch = prompts[i : i + size], outputs[i : i + size]
        slots.append(len(batch[0]) * (max(batch[0]) + max(batch[1]) - 1))  # the last token is never cached
    cache = run["results"]["systems"][system]["kv_cache"]
    assert cache["reserved_bytes"] == max(slots) * KV_BYTES
    assert cache["attention"] == "sdpa"
    assert (cache["waste"] == 0) == (size == 1)


def test_padded_waste_by_hand() -> None:
    # Slots after 0, 1 and 2 decode steps: 8, 10, 12. Used: 2+4, 3+5, 3+6 (the first one wants one token).
    pair = RequestSet([[0] * 2, [0] * 4], [1, 3])
    assert padded_waste(pair, 2) == pytest.approx(7 / 30)
    assert padded_waste(pair, 32) == padded_waste(pair, 2)
    assert padded_waste(pair, 1) == 0


def test_parts_of_a_step_add_up(run: dict[str, Any]) -> None:
    profile = run["results"]["engine_step"]
    assert len(profile["parts"]) == 5
    assert all(seconds > 0 for seconds in profile["parts"].values())
    assert sum(profile["parts"].values()) == pytest.approx(profile["step_seconds"])
    assert profile["num_steps"] == run["results"]["systems"]["minipaged"]["kv_cache"]["num_steps"]


def test_file_and_report_say_it_all(run: dict[str, Any]) -> None:
    results, printed = run["results"], run["report"]
    assert json.loads(run["file"].read_text()) == results
    assert results["machine"]["threads"] == torch.get_num_threads()
    assert results["versions"]["torch"] == torch.__version__
    assert "…" not in printed  # nothing is cut off at 80 columns
    for text in (results["date"], *report.TITLES.values(), "order of arrival", "linear layers"):
        if text != "minipaged, profiled":
            assert text in printed.replace("\n", " ")
    figures = results["systems"]["minipaged"]
    cells = next(line.split() for line in printed.splitlines() if line.split()[:1] == ["minipaged"])
    assert cells[1] == f"{figures['tokens_per_second']:.1f}"
    assert cells[3] == f"{figures['ratio_to_best_hf']:.2f}"
    assert cells[6] == f"{100 * figures['kv_cache']['waste']:.1f}%"
    assert cells[7] == "10"


def test_difference_is_placed_and_measured(tiny_model: Callable[[str], Path]) -> None:
    model = load_model(str(tiny_model("llama")), dtype="float64", attn_implementation="sdpa").model
    prompt = [5, 6, 7]
    tokens = []
    for _ in range(4):
        logits = model(torch.tensor([prompt + tokens])).logits[0, -1]
        tokens.append(int(logits.argmax()))
    ranked = logits.sort(descending=True)
    second, third = ranked.indices[1].item(), ranked.indices[2].item()
    top, gaps = ranked.values[0], (ranked.values[0] - ranked.values[1:3]).tolist()
    assert top > ranked.values[1]
    theirs = [tokens, [*tokens[:3], second], [*tokens[:3], third]]
    found = systems.compare(model, [prompt] * 3, [tokens] * 3, theirs)
    assert found["same"] == [0]
    assert [one["request"] for one in found["different"]] == [1, 2]
    for one, gap in zip(found["different"], gaps, strict=True):
        assert one["position"] == 3
        assert one["logit_gap"] == pytest.approx(gap, abs=1e-6)
        assert one["top2_gap"] == pytest.approx(gaps[0], abs=1e-6)


def test_report_tells_of_differences(run: dict[str, Any]) -> None:
    different = [{"request": i, "position": 2, "logit_gap": 1.5e-7, "top2_gap": 1.5e-7} for i in range(7)]
    changed = {"minipaged": {"same": [7, 8, 9], "different": different}}
    results = run["results"] | {"same_tokens_as_hf_1": changed}
    console = DataConsole(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    report.print_results(console, results)
    text = console.export_text()
    assert "minipaged: request 4 differs from output token 2 on" in text and "1.5e-07 apart" in text
    assert "request 5" not in text and "minipaged: 2 more differ" in text


def test_generate_goes_on_past_eos(tiny_model: Callable[[str], Path]) -> None:
    model = load_model(str(tiny_model("llama")), attn_implementation="sdpa").model
    workload = RequestSet([[5, 6, 7], [9] * 6], [12, 3])
    systems._make_greedy(model)
    free, _ = systems._generate_hf(model, workload, 2)
    model.config.eos_token_id = model.generation_config.eos_token_id = free[0][1]
    model.generation_config.repetition_penalty = 3.0
    systems._make_greedy(model)
    again, _ = systems._generate_hf(model, workload, 2)
    assert again == free
    assert [len(row) for row in again] == [12, 3]


def test_workload_depends_on_its_seed_alone(tiny_model: Callable[[str], Path]) -> None:
    settings = bench.settings_from(arguments("any", num_requests=200, min_prompt=16, max_prompt=256))
    ids = list(range(3, 128))
    random.seed(1)
    workload = make_workload(settings, ids)
    random.seed(2)
    assert make_workload(settings, ids) == workload
    lengths = [len(prompt) for prompt in workload.prompts]
    assert min(lengths) >= 16 and max(lengths) <= 256 and len(set(lengths)) > 80
    assert set(workload.output_lengths) == set(range(1, 10))
    assert set().union(*workload.prompts) == set(ids)
    other = bench.settings_from(arguments("any", num_requests=200, min_prompt=16, max_prompt=256, seed=1))
    assert make_workload(other, ids).prompts != workload.prompts
    loaded = load_model(str(tiny_model("llama")))
    assert plain_token_ids(loaded) == [0, *range(3, 128)]  # bos is 1, eos and pad are 2


def test_stopwatches_are_taken_off_again(tiny_model: Callable[[str], Path]) -> None:
    from minipaged import LLM
    from minipaged.engine import decoding

    llm = LLM(str(tiny_model("llama")), device="cpu", attention_backend="reference", num_blocks=8)
    sample = decoding.sample
    with pytest.raises(KeyError), timed_parts(llm.engine):
        assert decoding.sample is not sample
        raise KeyError
    assert decoding.sample is sample and "step" not in vars(llm.engine)
    assert AttentionInterface()[ATTENTION_NAME] is paged_attention
    modules = list(llm.engine.runner.model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_peak_memory_sees_what_is_gone_again() -> None:
    with PeakMemory(CPU) as memory:
        torch.ones(16 << 20)  # 64 MiB, written and freed at once
    if memory.growth is None:
        pytest.skip("this system can't measure resident memory for a part of a process's life")
    assert 63 << 20 <= memory.growth <= 80 << 20
    with PeakMemory(CPU) as memory:
        pass
    assert memory.growth is not None and memory.growth < 4 << 20  # an earlier peak doesn't count


def test_each_system_gets_a_process_of_its_own(
    run: dict[str, Any], tiny_model: Callable[[str], Path]
) -> None:
    settings = bench.settings_from(arguments(tiny_model("llama")))
    figures = bench._Apart(1)("hf-8", settings, {})
    assert figures["tokens"] == run["tokens"]["hf-8"]
    assert figures["threads"] == 1
    assert figures["memory"]["run_bytes"] is None or figures["memory"]["run_bytes"] > 0


def test_failure_of_a_system_is_one_line(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The child's side, which says why it ends, and the parent's, which passes that on."""
    settings = bench.settings_from(arguments(tiny_model("llama"), max_prompt=250))
    reason = "max_prompt=250 + max_output=9 is beyond the model's own limit of 256 tokens"

    def run(command: list[str], *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(input))
        code = systems.measure_here(command[-1])
        return subprocess.CompletedProcess(command, code, "", f"a warning\n{capsys.readouterr().err}")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(MinipagedError) as error:
        bench._Apart(1)("hf-1", settings, {})
    assert str(error.value) == f"HF, one at a time failed: {reason}"


def test_unequal_workloads_are_refused(run: dict[str, Any]) -> None:
    def measure(system: str, settings: Settings, rivals: dict[str, Any]) -> dict[str, Any]:
        workload = run["results"]["workload"]
        threads = 2 if system == "hf-8" else 1
        figures = {"dtype": "float32", "device": "cpu", "threads": threads, "tokens": [], "compared": {}}
        return workload | figures

    settings = bench.settings_from(arguments("any"))
    with pytest.raises(MinipagedError, match="did not run the same workload: threads differs"):
        bench.compare_systems(settings, measure, DataConsole(quiet=True))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_requests": 0}, "num_requests must be at least 1, got 0"),
        ({"min_output": 0}, "min_output must be at least 1, got 0"),
        ({"max_prompt": 1}, "max_prompt=1 is below min_prompt=2"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"output": "/no/such/folder/x.json"}, "output='/no/such/folder/x.json' is not a file in a folder"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(changed: dict[str, Any], message: str) -> None:
    def measure(*_: Any) -> dict[str, Any]:
        raise AssertionError("it ran")

    with pytest.raises(InvalidConfigError, match=message):
        bench.run(arguments("any", **changed), measure)
