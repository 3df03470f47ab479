"""The comparison with other engines, without any of them: its loads, its table, and what it says of gaps."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.huggingface.workload import RequestSet
from benchmarks.peers import bench, compare, gguf_weights, loads, systems
from benchmarks.shared import limits
from minipaged.errors import InvalidConfigError, MinipagedError
from minipaged.terminal.console import DataConsole

IDS = range(100, 1100)
REQUESTS = RequestSet([[i] * (i + 1) for i in range(32)], list(range(50, 82)))


def test_loads_are_of_the_sizes_that_the_page_names() -> None:
    made = {name: load.make(REQUESTS, IDS, 1) for name, load in loads.LOADS.items()}
    assert {name: len(requests.prompts) for name, requests in made.items()} == {
        "32 requests": 32,
        "8 requests": 8,
        "one at a time": 3,
        "long contexts": 8,
        "shared prefix": 16,
    }
    assert made["8 requests"] == RequestSet(REQUESTS.prompts[:8], REQUESTS.output_lengths[:8])
    assert made["one at a time"].output_lengths == [50, 51, 52]
    assert {len(prompt) for prompt in made["long contexts"].prompts} == {4000}
    assert made["long contexts"].output_lengths == [64] * 8
    assert len({tuple(prompt[:2000]) for prompt in made["shared prefix"].prompts}) == 1
    assert len({tuple(prompt[:2017]) for prompt in made["shared prefix"].prompts}) == 16
    assert all(2016 <= len(prompt) <= 2064 for prompt in made["shared prefix"].prompts)


def test_a_request_alone_is_cut_short() -> None:
    longer = RequestSet(REQUESTS.prompts, [200] * 32)
    assert loads.LOADS["one at a time"].make(longer, IDS, 1).output_lengths == [64] * 3


@pytest.mark.parametrize("name", ["long contexts", "shared prefix"])
def test_each_round_has_new_prompts(name: str) -> None:
    first, second = (loads.LOADS[name].make(REQUESTS, IDS, seed) for seed in (1, 2))
    assert first == loads.LOADS[name].make(REQUESTS, IDS, 1)
    assert first.prompts[0][:16] != second.prompts[0][:16]


def test_all_loads_take_less_than_half_an_hour() -> None:
    assert 20 < loads.expected_minutes(list(loads.LOADS), None) < 30
    assert loads.expected_minutes(["8 requests"], None) == pytest.approx(1.2 + 5 * 0.9 + 1.3)
    assert loads.expected_minutes(["8 requests"], 2) == pytest.approx(1.2 + 2 * 0.9 + 2 * 1.3)


@pytest.mark.parametrize(("allowed", "text"), [({0, 1}, "0-1"), ({3}, "3"), ({0, 2, 3, 4, 9}, "0,2-4,9")])
def test_cores_follow_the_machine(monkeypatch: pytest.MonkeyPatch, allowed: set[int], text: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: allowed, raising=False)
    assert systems.cores() == text


def test_a_processor_without_units_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "has_bfloat16_units", lambda: False)
    assert systems.SYSTEMS["minipaged float32"].why_not() is None
    reason = systems.SYSTEMS["minipaged bfloat16"].why_not()
    assert reason == "not measured here: this processor has no bfloat16 units"


def test_prefix_caches_are_switched_by_load() -> None:
    for name, option in [
        ("minipaged float32", "enable_prefix_caching"),
        ("vLLM bfloat16", "enable_prefix_caching"),
        ("Hugging Face continuous float32", "allow_block_sharing"),
    ]:
        for switch in (False, True):
            assert systems.SYSTEMS[name].options_for("model", switch)[option] is switch


class _Fake:
    """A worker that answers at once, fails from its second run on, or speaks other tokens."""

    last: _Fake

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = 0
        self.prompts: list[list[list[int]]] = []
        _Fake.last = self

    def run(self, prompts: list[list[int]], lengths: list[int], at_once: int) -> dict[str, Any]:
        self.runs += 1
        self.prompts.append(prompts)
        if self.name.startswith("vLLM") and self.runs > 1:
            raise MinipagedError(f"{self.name} failed: no memory")
        token = 8 if "continuous" in self.name and len(prompts) == 8 else 7
        tokens = [[token if i == 0 else 7] * length for i, length in enumerate(lengths)]
        return {"seconds": 2.0 / self.runs, "tokens": tokens}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A comparison of fakes: vLLM fails, llama.cpp is not there, one request differs."""

    @contextmanager
    def started(name: str, model: str, prefix_cache: bool) -> Iterator[_Fake]:
        yield _Fake(name)

    monkeypatch.setattr(compare, "started", started)
    names = ["minipaged float32", "vLLM float32", "llama.cpp F32", "Hugging Face continuous float32"]
    fakes = {name: systems.System("minipaged", "float32", slow=systems.SYSTEMS[name].slow) for name in names}
    fakes["llama.cpp F32"] = systems.System("llama.cpp", "float32", {}, Path("/nowhere/python"))
    monkeypatch.setattr(compare, "SYSTEMS", fakes)
    comparison = compare.Comparison(DataConsole(quiet=True), names, "model", REQUESTS, list(IDS))
    return comparison.run(["8 requests", "long contexts"], None)


def test_gaps_are_named_and_figures_are_medians(results: dict[str, Any]) -> None:
    row = results["8 requests"]["minipaged float32"]
    num_tokens = sum(range(50, 58))  # seconds of the rounds, after the warm-up: 2/2, 2/3, 2/4, 2/5, 2/6
    assert row["tokens_per_second"] == pytest.approx(num_tokens / (2 / 4))
    assert (row["lowest"], row["highest"]) == pytest.approx((num_tokens / 1, num_tokens / (1 / 3)))
    assert (row["runs"], row["same_tokens"], row["requests"]) == (5, 8, 8)
    slow = results["8 requests"]["Hugging Face continuous float32"]
    assert (slow["runs"], slow["same_tokens"], slow["requests"]) == (1, 7, 8)
    for load in results.values():
        assert list(load) == list(results["8 requests"])
        assert load["vLLM float32"] == {"reason": "vLLM float32 failed: no memory"}
        assert load["llama.cpp F32"] == {"reason": "not installed, see `make bench-peers`"}


def test_no_round_repeats_a_shared_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "started", lambda name, *_: nullcontext(_Fake(name)))
    comparison = compare.Comparison(DataConsole(quiet=True), ["minipaged float32"], "m", REQUESTS, list(IDS))
    comparison.run(["shared prefix"], 3)
    begins = [tuple(prompts[0][:16]) for prompts in _Fake.last.prompts]
    assert len(begins) == len(set(begins)) == 4  # the warm-up too


def test_the_printed_table_gives_every_reason(results: dict[str, Any]) -> None:
    console = DataConsole(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    machine = {"cpu": "A processor", "threads": 2, "gpu": None}
    bench.print_results(
        console, {"machine": machine, "date": "today", "limits": {"read GB/s": 3.0}, "loads": results}
    )
    text = console.export_text()
    assert text.count("vLLM float32: vLLM float32 failed: no memory") == 2
    assert text.count("llama.cpp F32: not installed, see `make bench-peers`") == 2
    assert "7 of 8" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--loads", "8 requests,9 requests"], "loads must name some of .*; got 9 requests"),
        (["--only", "nobody"], "only must name some of .*; got nobody"),
        (["--rounds", "0"], "rounds must be at least 1, got 0"),
    ],
)
def test_names_that_nothing_has_are_refused(options: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    with pytest.raises(InvalidConfigError, match=message):
        bench.run(parser.parse_args(options))


def test_rows_of_q_and_k_lie_as_llama_cpp_rotates_them() -> None:
    """transformers rotates row i with row i + half of a head, llama.cpp row 2 i with row 2 i + 1."""
    weight = torch.arange(8).reshape(8, 1)  # two heads of four rows
    assert gguf_weights.interleaved(weight, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
