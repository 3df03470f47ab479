"""Run loads on systems in turns. A system that fails, or isn't there, has a reason in place of figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from minipaged.errors import MinipagedError
from minipaged.terminal.console import DataConsole

from ..huggingface.workload import RequestSet
from .gguf_weights import write_gguf
from .loads import LOADS, Load
from .systems import SYSTEMS, Worker, gguf_file, started

WARM_UP, WARM_UP_PROMPT = 4, 64  # output tokens and, at most, prompt tokens of each request
Row = dict[str, Any]


class Comparison:
    """The systems by name, the requests of `minipaged bench`, and token ids to make other prompts of."""

    def __init__(
        self,
        console: DataConsole,
        names: Sequence[str],
        model: str,
        requests: RequestSet,
        token_ids: list[int],
    ) -> None:
        self._console = console
        self._names = names
        self._model = model
        self._requests = requests
        self._token_ids = token_ids
        self._reasons = {name: reason for name in names if (reason := SYSTEMS[name].why_not())}

    def run(self, loads: Sequence[str], rounds: int | None) -> dict[str, dict[str, Row]]:
        """By load and system, its figures or its `reason`. rounds: of every system, or the loads' own."""
        results: dict[str, dict[str, Row]] = {}
        for prefix_cache, alone in sorted({(LOADS[name].prefix_cache, LOADS[name].alone) for name in loads}):
            same = [
                name
                for name in loads
                if (LOADS[name].prefix_cache, LOADS[name].alone) == (prefix_cache, alone)
            ]
            groups = [[name] for name in self._names] if alone else [list(self._names)]
            measured: dict[str, dict[str, Row]] = defaultdict(dict)
            tokens: dict[str, dict[str, list[Any]]] = defaultdict(dict)
            for group in groups:
                with ExitStack() as stack:
                    workers, failed = self._start(stack, group, prefix_cache)
                    for load in same:
                        measured[load] |= self._measure(load, workers, failed, rounds, tokens[load])
            for load in same:
                results[load] = {name: measured[load][name] for name in self._names}
                _compare_tokens(results[load], tokens[load])
        return {load: results[load] for load in loads}

    def _start(
        self, stack: ExitStack, names: Sequence[str], prefix_cache: bool
    ) -> tuple[dict[str, Worker], dict[str, str]]:
        """The processes that could be started, and the reasons of the others."""
        workers: dict[str, Worker] = {}
        failed = {name: self._reasons[name] for name in names if name in self._reasons}
        for name in names:
            if name in failed:
                continue
            try:
                with self._console.status(f"{name}: loading ..."):
                    self._convert(name)
                    workers[name] = stack.enter_context(started(name, self._model, prefix_cache))
            except MinipagedError as error:
                failed[name] = str(error)
        return workers, failed

    def _convert(self, name: str) -> None:
        """Make llama.cpp's file of the model, once."""
        path: Path = gguf_file(self._model)
        if SYSTEMS[name].engine == "llama.cpp" and not path.exists():
            from minipaged.models.loading import load_model  # torch: the help must not wait for it

            write_gguf(load_model(self._model).model, path)

    def _measure(
        self,
        name: str,
        workers: dict[str, Worker],
        failed: dict[str, str],
        rounds: int | None,
        tokens: dict[str, list[Any]],
    ) -> dict[str, Row]:
        """Figures of one load, after a few tokens of each request to warm up; `tokens` gets all others."""
        load = LOADS[name]
        seconds: dict[str, list[float]] = defaultdict(list)
        for turn in range(-1, rounds or load.rounds):
            requests = self._warm_up(load) if turn < 0 else self._round(load, turn)
            for system, worker in workers.items():
                if system in failed or (turn > 0 and rounds is None and SYSTEMS[system].slow):
                    continue
                try:
                    with self._console.status(f"{name}, round {turn + 1}: {system} ..."):
                        answer = worker.run(*requests, load.at_once)
                except MinipagedError as error:
                    failed[system] = str(error)
                    continue
                if turn >= 0:
                    tokens.setdefault(system, []).append(answer["tokens"])
                    seconds[system].append(answer["seconds"])
        num_tokens = sum(self._round(load, 0).output_lengths)
        return {system: _row(num_tokens, seconds[system]) for system in workers if system not in failed} | {
            system: {"reason": reason} for system, reason in failed.items()
        }

    def _round(self, load: Load, turn: int) -> RequestSet:
        return load.make(self._requests, self._token_ids, turn + 1)

    def _warm_up(self, load: Load) -> RequestSet:
        prompts, lengths = load.make(self._requests, self._token_ids, 0)
        return RequestSet([prompt[:WARM_UP_PROMPT] for prompt in prompts], [WARM_UP] * len(lengths))


def _row(num_tokens: int, seconds: list[float]) -> Row:
    return {
        "tokens_per_second": num_tokens / statistics.median(seconds),
        "lowest": num_tokens / max(seconds),
        "highest": num_tokens / min(seconds),
        "runs": len(seconds),
    }


def _compare_tokens(rows: dict[str, Row], tokens: dict[str, list[Any]]) -> None:
    """Note how many requests of round 1 got the tokens that the first system of the dtype gave them."""
    for name, row in rows.items():
        if "reason" not in row:
            alike = (other for other in rows if other in tokens and "reason" not in rows[other])
            first = next(other for other in alike if SYSTEMS[other].dtype == SYSTEMS[name].dtype)
            pairs = zip(tokens[name][0], tokens[first][0], strict=True)
            row["same_tokens"] = sum(a == b for a, b in pairs)
            row["requests"] = len(tokens[name][0])
