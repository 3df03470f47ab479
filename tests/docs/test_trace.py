"""A trace replays to the tables that the engine really had, at every step, whatever happens to requests."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minipaged import LLM, SamplingParams
from minipaged.terminal.console import DataConsole
from minipaged.view import replay as reader
from minipaged.view.page import VIEW, write_page
from minipaged.view.terminal_view import KEY, draw_blocks
from minipaged.view.trace import Trace

NAMES = ["swap", "recompute", "no_cache"]
ALL = [*NAMES, "interrupted"]
PAGE = Path(__file__).parents[2] / "docs/trace.md"


def key(name: str) -> tuple[str, int]:
    """The request and the number of a sequence, from its name."""
    match = re.fullmatch(r"(.*)\.([0-9]+)", name, re.DOTALL)
    return (match[1], int(match[2])) if match else (name, 0)


def replay(trace: str) -> Iterator[dict[str, Any]]:
    """The state after every line but the first: docs/trace.md, in as few words as Python allows."""
    tables: dict[str, dict[str, Any]] = {}
    live: set[str] = set()
    cached: list[int] = []
    for line in map(json.loads, trace.splitlines()[1:]):
        live -= {request["id"] for request in line.get("ended", [])}
        live |= {request["id"] for request in line.get("arrived", [])}
        for name in line.get("dropped", []):
            del tables[name]
        tables |= line.get("tables", {})
        for name, start, stop in line.get("rows", []):
            assert start == tables[name]["tokens"]
            tables[name] = tables[name] | {"tokens": stop}
        cached = line.get("cached", cached)
        yield {
            "line": line,
            "live": sorted(live),
            "cached": cached,
            "tables": {key(n): (t["blocks"], t.get("host", False), t["tokens"]) for n, t in tables.items()},
        }


@pytest.mark.parametrize("name", ALL)
def test_the_trace_replays_to_the_tables_that_the_engine_had(name: str, live: Callable[[str], Any]) -> None:
    life = live(name)
    *states, last = replay(life.trace)
    assert len(states) == len(life.truth) > 100
    for number, (state, truth) in enumerate(zip(states, life.truth, strict=True), start=1):
        assert state["line"]["step"] == number
        assert state["tables"] == truth["tables"]
        assert state["live"] == truth["live"]
        assert set(state["cached"]) == truth["cached"] and len(state["cached"]) == len(truth["cached"])
        used = Counter(b for blocks, on_host, _ in state["tables"].values() if not on_host for b in blocks)
        assert [used[block] for block in range(len(truth["counts"]))] == truth["counts"]
        assert len(truth["counts"]) - len(used) - len(state["cached"]) == truth["num_free"]
        waiting = Counter(b for blocks, on_host, _ in state["tables"].values() if on_host for b in blocks)
        assert [waiting[block] for block in range(len(truth["host_counts"]))] == truth["host_counts"]
    assert last["tables"] == {} and last["live"] == [] and "step" not in last["line"]


def states_of(trace: str) -> list[reader.State]:
    """What minipaged's own reader makes of a trace."""
    return reader.replay(trace.strip().split("\n"))[1]


@pytest.mark.parametrize("name", ALL)
def test_the_reader_knows_what_each_block_was(name: str, live: Callable[[str], Any]) -> None:
    life = live(name)
    *states, last = states_of(life.trace)
    for number, (state, truth) in enumerate(zip(states, life.truth, strict=True), start=1):
        assert state.step == number and sorted(state.requests) == truth["live"]
        assert {key(t.name): (t.blocks, t.on_host, t.num_tokens) for t in state.tables} == truth["tables"]
        assert [key(t.name) for t in state.in_pool] == truth["running"], "in the order of the scheduler's"
        counts, cached = truth["counts"], truth["cached"]
        assert [state.block_state(block) for block in range(len(counts))] == [
            ("used" if n else "cached" if block in cached else "free", n) for block, n in enumerate(counts)
        ]
    assert last == reader.State(cached=last.cached)


def in_browser_code(expression: str, trace: str) -> Any:
    """What an expression over `run` and `states` is in replay.js. Node runs it: it touches no page."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("the browser's reader runs in Node here, and none is installed")
    code = (
        (VIEW / "replay.js").read_text(encoding="utf-8")
        + """
        const { replay, survey, blockState } = minipagedReplay;
        const { run, states } = replay(require("fs").readFileSync(0, "utf8"));
    """
    )
    code += f"console.log(JSON.stringify({expression}));"
    done = subprocess.run([node, "-e", code], input=trace, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ALL)
def test_the_browser_reads_every_block_as_python_does(name: str, live: Callable[[str], Any]) -> None:
    trace = live(name).trace
    blocks = range(json.loads(trace.split("\n")[0])["num_blocks"])
    found = in_browser_code("""states.map((state) => {
        const seen = survey(run, state);
        return [...Array(run.num_blocks).keys()].map((block) => {
            const { kind, count } = blockState(`${block}`, seen);
            return [kind, count];
        });
    })""", trace)  # fmt: skip
    assert found == [[list(state.block_state(block)) for block in blocks] for state in states_of(trace)]


@pytest.mark.parametrize("name", NAMES)
def test_the_browser_has_the_tables_and_counts_that_the_engine_had(
    name: str, live: Callable[[str], Any]
) -> None:
    life = live(name)
    *states, _ = in_browser_code("""states.map((state) => {
        const { users, counts } = survey(run, state);
        return {
            tables: [...state.tables.values()].map((t) => [t.name, t.blocks, t.host, t.tokens]),
            users: [...users].map(([block, uses]) => [block, uses.length]),
            counts,
        };
    })""", life.trace)  # fmt: skip
    for state, truth in zip(states, life.truth, strict=True):
        tables = {key(each): (blocks, host, tokens) for each, blocks, host, tokens in state["tables"]}
        assert tables == truth["tables"]
        in_use = {f"{b}": n for b, n in enumerate(truth["counts"]) if n}
        in_use |= {f"h{b}": n for b, n in enumerate(truth["host_counts"]) if n}
        assert dict(state["users"]) == in_use
        assert state["counts"]["free"] == truth["num_free"]
        assert state["counts"]["saved"] == sum(n - 1 for n in truth["counts"] if n)


def test_the_browser_says_who_begins_again_after_an_interrupt() -> None:
    arrived = [{"id": "A", "prompt": "", "prompt_tokens": 6, "sequences": 1}]
    table = {"A": {"blocks": [0, 1], "tokens": 0}}
    lines: list[dict[str, Any]] = [
        {"trace": 1, "block_size": 4, "num_blocks": 8},
        {"step": 1, "arrived": arrived, "admitted": ["A"], "tables": table, "rows": [["A", 0, 6]]},
        {"step": 2, "dropped": ["A"], "tables": table, "rows": [["A", 0, 6]]},
    ]
    events = in_browser_code("states.map((state) => state.events)", "\n".join(map(json.dumps, lines)))
    assert events[1] == [{"kind": "admitted", "parts": ["A begins again"]}]


@pytest.mark.parametrize("name", NAMES)
def test_the_lives_hold_what_can_happen(name: str, live: Callable[[str], Any]) -> None:
    """Else the test above would prove less than it says."""
    lines = [json.loads(line) for line in live(name).trace.splitlines()[1:]]
    moves = {move[0] for line in lines for move in line.get("moves", [])}
    reasons = {output[0] for line in lines for ended in line.get("ended", []) for output in ended["outputs"]}
    both = [
        {e["id"] for e in line.get("ended", [])} & {a["id"] for a in line.get("arrived", [])}
        for line in lines
    ]
    found = max(e["cached_tokens"] for line in lines for e in line.get("ended", []))
    assert moves == ({"copy", "in", "out"} if name == "swap" else {"copy"})
    assert {"length", "abort"} <= reasons
    assert any(both), "no id was used again within one line"
    assert any(line.get("preempted") for line in lines)
    assert (found > 0) == (name != "no_cache")
    assert any(name.startswith("a.0.") for line in lines for name in line.get("tables", {}))


def test_an_engine_without_a_trace_is_left_as_it_was(start: Callable[..., LLM]) -> None:
    llm, file = start(num_blocks=8), io.StringIO()
    assert llm.engine.observers == []
    with Trace(llm.engine, file) as trace:
        llm.generate([[3, 4, 5]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert llm.engine.observers == []
    written = file.getvalue()
    trace.close()
    llm.generate([[3, 4, 5]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert file.getvalue() == written


def test_a_trace_that_begins_midway_says_all_there_is(start: Callable[..., LLM]) -> None:
    llm, file = start(num_blocks=8), io.StringIO()
    llm.generate([list(range(3, 12))], SamplingParams(max_tokens=2), use_tqdm=False)
    llm.engine.add_request("late", [50, 51, 52, 53, 54], SamplingParams(max_tokens=9, ignore_eos=True))
    llm.engine.step()
    with Trace(llm.engine, file):
        llm.engine.step()
        llm.engine.forget(["late"])
    first, end = [json.loads(line) for line in file.getvalue().splitlines()[1:]]
    assert [arrival["id"] for arrival in first["arrived"]] == ["late"] and "admitted" not in first
    assert first["tables"]["late"]["tokens"] == 5 and len(first["cached"]) == 2
    assert end["dropped"] == ["late"] and end["ended"][0]["outputs"][0][0] == "abort"


def test_an_id_that_comes_again_with_the_very_same_blocks_is_another_table(start: Callable[..., LLM]) -> None:
    """The second request finds the block that the first computed: blocks and tokens are as they were."""
    llm, file = start(num_blocks=8, max_num_batched_tokens=4), io.StringIO()
    with Trace(llm.engine, file):
        for _ in range(2):
            llm.engine.add_request("a", [50, 51, 52, 53, 54], SamplingParams(max_tokens=2))
            llm.engine.step()
            llm.engine.abort_request("a")
        llm.engine.step()
    first, second, _ = [json.loads(line) for line in file.getvalue().splitlines()[1:]]
    assert first["tables"]["a"]["blocks"] == second["tables"]["a"]["blocks"] == [0, 1]
    assert first["rows"] == [["a", 0, 4]] and second["rows"] == [["a", 4, 5]]
    assert second["tables"]["a"]["tokens"] == 4 and second["dropped"] == ["a"]
    assert [request["id"] for request in second["ended"] + second["arrived"]] == ["a", "a"]


def test_after_an_interrupt_all_tables_are_new(live: Callable[[str], Any]) -> None:
    """The engine has emptied the pool: no table goes on, not even where a request gets the same blocks."""
    life = live("interrupted")
    lines = [json.loads(line) for line in life.trace.split("\n")[1:-1]]
    states, num_renewed = [set(), *(state["tables"].keys() for state in replay(life.trace))], 0
    for number in life.interrupted:  # the line of the step that was broken off has this index
        before, line = states[number + 1], lines[number + 1]
        assert {key(name) for name in line["dropped"]} == before
        assert all(table["tokens"] % 4 == 0 for table in line.get("tables", {}).values())
        num_renewed += len(line.get("tables", {}).keys() & line["dropped"])
    assert len(life.interrupted) > 10 and num_renewed > 5


def test_what_a_line_that_could_not_be_written_would_say_is_in_the_next(start: Callable[..., LLM]) -> None:
    llm, lines = start(num_blocks=8), list[str]()

    class Stream:
        is_full = False

        def write(self, text: str) -> None:
            if self.is_full:
                raise OSError("no space is left")
            lines.append(text)

    stream, params = Stream(), SamplingParams(max_tokens=4, ignore_eos=True)
    with Trace(llm.engine, stream):
        llm.engine.add_request("a", [3, 4, 5], params)
        llm.engine.step()
        llm.engine.add_request("b", [6, 7, 8], params)
        stream.is_full = True
        with pytest.raises(OSError):
            llm.engine.step()
        stream.is_full = False
        llm.engine.add_request("c", [9, 10, 11], params)
        llm.engine.step()
        llm.engine.forget(["c"])
    first, second, last = [json.loads(line) for line in lines[1:]]
    assert [first["step"], second["step"]] == [1, 2] and all(line.endswith("\n") for line in lines)
    assert second["dropped"] == ["a"] and [each["id"] for each in second["ended"]] == ["a"]
    assert [each["id"] for each in second["arrived"]] == ["c"], "b came and went between the lines"
    assert last["dropped"] == ["c"]


def test_the_terminal_draws_what_the_lines_say() -> None:
    """Blocks of 4. A computes 6 of 9 prompt tokens in the step when most tables are in the pool; B shares its
    first block with A and is not computed further; C is on the host, and block 5 is cached."""
    arrived = [{"id": name, "prompt": "", "prompt_tokens": 9, "sequences": 1} for name in "ABC"]
    lines: list[dict[str, Any]] = [
        {"trace": 1, "block_size": 4, "num_blocks": 8},
        {"step": 1, "arrived": arrived, "tables": {"C": {"blocks": [4], "tokens": 0}}, "rows": [["C", 0, 3]]},
        {"step": 2, "preempted": ["C"], "moves": [["out", 4, 0, "C"]], "rows": [["A", 4, 6]], "cached": [5],
         "tables": {"B": {"blocks": [0, 6], "tokens": 4}, "A": {"blocks": [0, 2, 1], "tokens": 4},
                    "C": {"blocks": [0], "tokens": 3, "host": True}}},
        {"ended": [{"id": name, "cached_tokens": 0, "outputs": []} for name in "ABC"],
         "dropped": ["A", "B", "C"]},
    ]  # fmt: skip
    drawn = io.StringIO()
    trace = "".join(json.dumps(line) + "\n" for line in lines)
    draw_blocks(DataConsole(file=drawn, width=60), trace, {"A": "ask", "B": "beg", "C": "cry"})
    rule, *rest = [line.rstrip() for line in drawn.getvalue().split("\n")]
    assert rule.strip("─ ") == "step 2 of 2: the block tables"
    assert rest == [
        "", "A  ask  6 tokens in 3 blocks",
        "  logical   0    1    2", "  physical  0×2  2    1", "  filled    4/4  2/4  0/4",
        "", "B  beg  4 tokens in 2 blocks",
        "  logical   0    1", "  physical  0×2  6", "  filled    4/4  0/4",
        "", f"The pool{KEY}", "    0  2AA··○B",
        "", "Over time, blocks 0 to 6:", "step   1  ····C··", "step   2  2AA··○B", "",
    ]  # fmt: skip


def test_the_page_about_the_format_names_every_field_and_shows_it(live: Callable[[str], Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, *lines = [json.loads(line) for name in NAMES for line in live(name).trace.splitlines()]
    written = {field for line in lines if "trace" not in line for field in line}
    examples = [json.loads(line) for line in re.findall(r"```json\n(.*?)\n```", page)]
    written.add("texts")  # the tiny model of these lives has no tokenizer
    assert written == set(re.findall(r"\*\*`(\w+)`\*\*", page))
    assert set(head) == set(examples[0]) == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert written == {field for example in examples[1:] for field in example}


def test_the_page_takes_every_text_as_text(tmp_path: Path) -> None:
    trace = json.dumps({"trace": 1, "model": "</script><b>{{SCRIPT}}"})
    write_page(trace, tmp_path / "page.html", "{{TRACE}} & </title>")
    page = (tmp_path / "page.html").read_text()
    assert "<h1>{{TRACE}} &amp; &lt;/title></h1>" in page
    assert "\\u003c/script>\\u003cb>{{SCRIPT}}" in page
    assert page.count("</script>") == 2 and page.count("</title>") == 1
