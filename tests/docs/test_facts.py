"""Figures and claims of the pages, derived again from something other than the page."""

from __future__ import annotations

import calendar
import json
import re
import struct
from html import unescape
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from minipaged.reference.contiguous import ContiguousCache, maximum
from minipaged.reference.slot_allocator import BuddyAllocator
from minipaged.simulator.cost_model import GPUS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILD = DOCS / "_build"
CONCEPTS = sorted(path.name for path in (DOCS / "concepts").glob("*.md") if path.name != "index.md")

# Layers, KV heads, numbers per head: from the models' config.json. A token stores a key and a value.
SMOLLM2 = 2 * 30 * 3 * 64  # numbers per token
OPT_13B = 2 * 40 * 40 * 128
LLAMA_3_8B_HEAD = 2 * 128  # of one KV head in one layer


def page(name: str) -> str:
    """The text of a page in one line."""
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def load(name: str) -> ModuleType:
    """A file of docs/_build as a module; it may import others of them."""
    spec = spec_from_file_location(f"facts_{name}", BUILD / f"{name}.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "words",
    [
        f"{OPT_13B * 2 * 2048 / 2**30:.2f} GiB for OPT-13B",
        f"{SMOLLM2 * 2 * 2048 / 2**30:.3f} GiB for SmolLM2-135M",
        f"a block of 16 tokens takes {SMOLLM2 * 4 * 16:,} bytes",
        f"so the pool has {2**30 // (SMOLLM2 * 4 * 16):,} blocks",
    ],
)
def test_the_sizes_on_the_page_of_the_cache(words: str) -> None:
    assert words in page("concepts/kv_cache.md")


def test_the_size_of_a_table_beside_its_cache() -> None:
    text = page("concepts/block_table.md")
    entries = 2048 // 16
    assert f"one table with {entries} entries" in text
    assert f"take {4 * entries} bytes, and its keys and values {SMOLLM2 * 2 * 2048 // 2**20} MiB" in text


def test_the_bytes_that_the_indirection_costs() -> None:
    text = page("concepts/kernel.md")
    data = 256 * LLAMA_3_8B_HEAD * 2
    assert f"has {data:,} bytes" in text
    for block_size, words in ((16, "64 bytes, or {:.2%}"), (1, "1,024 bytes, or {:.1%}")):
        entries = 4 * 256 // block_size
        assert words.format(entries / data).replace("%", " %") in text


def test_the_time_that_the_indirection_costs() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "cpu-paper.json").read_text())
    figure = next(each for each in measured["figures"] if each["title"] == "Figure 18a: the attention kernel")
    ratio = {row["what"]: row["value"] for row in figure["rows"]}
    text = (DOCS / "concepts" / "kernel.md").read_text()
    for size in (1, 16):
        more = ratio[f"blocks of {size}"] / ratio["blocks of 256"] - 1
        row = f"blocks of {size} | the same with blocks of 256 | {more:.0%} more time"
        assert row.replace("%", " %") in text
    machine = measured["machine"]
    assert (machine["cpu"], machine["cores"], figure["date"][:10]) == ("AMD EPYC", 2, "2026-11-30")
    assert "2 cores of an AMD EPYC, 30 November 2026" in page("concepts/kernel.md")


def test_why_decode_is_slow() -> None:
    text, gpu = page("concepts/prefill_decode.md"), GPUS["a100-40gb"]
    weights, operations = 2 * 8.03e9, 2 * 8.03e9
    read, compute = weights / gpu.bandwidth, operations / gpu.flops
    assert f"reads {gpu.bandwidth / 1e9:,.0f} GB" in text.replace("40 GB reads", "reads")
    assert f"computes {gpu.flops / 1e12:.0f} trillion operations" in text
    assert f"reads for {1000 * read:.1f} ms and computes for {1000 * compute:.2f} ms" in text
    assert f"{1 - compute / read:.1%} of".replace("%", " %") in text
    assert round(read / compute) == 201, "some 200 tokens"
    assert f"{weights / 1e9:.1f} GB in 16 bits" in text


def test_orca_max_loses_nothing_to_the_allocator_in_the_picture() -> None:
    cache = ContiguousCache(BuddyAllocator(16_384), maximum)
    for number in range(8):
        cache.admit(number, 1, 1, 2048)
    assert cache.usage(waiting_for=2048).external == 0
    text = page("concepts/fragmentation.md")
    assert "Orca (Max) loses nothing to it here" in text
    external = "slots lost because the allocator rounds a piece up, or because a gap is too small"
    assert external in text, "what the picture counts as external"


def test_kernel_resources_names_the_tools_whose_versions_it_gives() -> None:
    pinned = dict(
        re.findall(r"^([\w-]+)[^\n;]*?==?([\d.]+)(?:;| |$)", (ROOT / "constraints.txt").read_text(), re.M)
    )
    tools = dict(re.findall(r"^## (\S+) (\S+)$", (DOCS / "kernel_resources.md").read_text(), re.M))
    assert set(tools) == {"Triton", "numba-cuda"}
    assert tools["numba-cuda"] == pinned["numba-cuda"]


def test_later_requests_of_the_prefix_trace_find_one_block() -> None:
    trace = BUILD / "made" / "traces" / "prefix.jsonl"
    if not trace.is_file():
        pytest.skip("the traces are missing: make docs")
    run, *steps = map(json.loads, trace.read_text(encoding="utf-8").splitlines())
    admitted = {
        name: step["tables"][name] for step in steps for name in step.get("admitted", []) if "tables" in step
    }
    first = admitted["A"]["blocks"][0]
    text = page("concepts/prefix_cache.md")
    for name in "BCD":
        assert (admitted[name]["blocks"][0], admitted[name]["tokens"]) == (first, run["block_size"])
    words = f"B, C and D begin with the same prompt, and find physical block {first} with its first 8 tokens"
    assert words in text
    assert run["block_size"] == 8


@pytest.mark.parametrize("name", CONCEPTS)
def test_a_concept_ends_with_what_vllm_does_today(name: str) -> None:
    version = re.search(r"reads (vLLM [\d.]+) \(\d+ (November 2026)\)", page("history.md"))
    assert version
    end = " ".join(
        (DOCS / "concepts" / name).read_text(encoding="utf-8").rpartition("\n## Elsewhere\n")[2].split()
    )
    assert f"{version[1]} ({version[2]}" in end
    assert end.endswith("Sources and dates: [what became of PagedAttention](../history.md).")


def test_the_history_is_in_order() -> None:
    months = list(calendar.month_name)
    rows = re.findall(
        r"^\| (?:\d+ )?(\w+) (\d{4}) \|", (DOCS / "history.md").read_text(encoding="utf-8"), re.M
    )
    dates = [(int(year), months.index(month)) for month, year in rows]
    assert len(dates) > 12
    assert dates == sorted(dates)


# ---------------------------------------------------------------------- what the build makes of pages


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (
            "speed  12 tokens/s: 24 tokens in 52.12 s, 24 steps",
            "speed  … tokens/s: 24 tokens in … s, 24 steps",
        ),
        ("took 1,234.5 ms and 7 µs", "took … ms and … µs"),
        ("27.5% of blocks, 16 slots, 3 steps", "27.5% of blocks, 16 slots, 3 steps"),
    ],
)
def test_outputs_hold_no_time(monkeypatch: pytest.MonkeyPatch, printed: str, shown: str) -> None:
    monkeypatch.syspath_prepend(str(BUILD))
    assert load("outputs").without_times(printed) == shown


TEN = "Ten words are here, and these are just ten words. "


@pytest.mark.parametrize(
    ("markdown", "said"),
    [
        ("# A\n\n## B\n\nOne [link](x.md) and `code`.\n\nMore.", "One link and code."),
        ("# A\n\n```python\nx = 1\n\ny = 2\n```\n\n| a |\n| - |\n\nAt \\(p\\), **last**.", "At p, last."),
        (f"# A\n\n{5 * TEN}", 4 * TEN),
        ("# A\n", ""),
    ],
)
def test_a_summary_is_the_first_prose(markdown: str, said: str) -> None:
    assert load("summary").summary(markdown) == said.strip()


def test_pages_say_what_they_are_where_a_link_is_shared(site: Path) -> None:
    card = (site / "assets" / "made" / "card.png").read_bytes()
    assert struct.unpack(">II", card[16:24]) == (1200, 630)
    described = set()
    for path in [*site.glob("*.html"), *site.glob("concepts/*.html"), *site.glob("tutorials/*.html")]:
        if path.name == "404.html":
            continue
        meta = dict(
            re.findall(r'<meta property="og:(\w+)" content="([^"]*)"', path.read_text(encoding="utf-8"))
        )
        assert meta["title"], path.name
        assert meta["image"].endswith("assets/made/card.png"), path.name
        assert 20 < len(unescape(meta["description"])) <= 200, (path.name, meta["description"])
        described.add(meta["description"])
    assert len(described) > 25, "each page has its own"


def test_a_shared_link_shows_an_absolute_picture_where_the_address_is_known(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The template, drawn with the configuration as the build reads it."""
    from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader
    from mkdocs.config import load_config

    monkeypatch.setenv("SITE_URL", "https://example.org/minipaged")
    config = load_config(str(ROOT / "mkdocs.yml"))
    base = DictLoader({"base.html": "{% block extrahead %}{% endblock %}{% block scripts %}{% endblock %}"})
    templates = Environment(loader=ChoiceLoader([FileSystemLoader(BUILD / "theme"), base]))
    templates.filters["url"] = lambda path: f"../{path}"
    page = {"title": "A page", "content": "", "meta": {}, "is_homepage": False}
    head = templates.get_template("main.html").render(config=config, page=page)
    assert 'property="og:image" content="https://example.org/minipaged/assets/made/card.png"' in head


def test_examples_have_answers_and_no_times(site: Path) -> None:
    text = unescape(re.sub(r"<[^>]+>", "", (site / "tutorials" / "run.html").read_text(encoding="utf-8")))
    assert "… tokens/s" in text
    assert not re.search(r"\d tokens/s", text)
    assert not re.search(r"^'' (stop|length)$", text, re.M)
