"""Traces of a tiny random model's lives beside what its engine knew, and a browser to replay them in."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import io
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pytest
import torch
import transformers
from filelock import FileLock

from minipaged import LLM, BeamSearchParams, SamplingParams
from minipaged.engine.engine import LLMEngine
from minipaged.engine.request import Request
from minipaged.engine.schedule import Schedule
from minipaged.view.page import write_page
from minipaged.view.trace import Trace

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "_build"
AXE = BUILD / "node_modules" / "axe-core" / "axe.min.js"
VOCAB = 128
BLOCK_BYTES = 4 * 2 * 2 * 2 * 8 * 8  # 4 slots; K and V, 2 layers, 2 KV heads of 8, float64
SETTINGS: dict[str, dict[str, Any]] = {
    "swap": {"num_blocks": 22, "preemption_mode": "swap", "swap_space": 16 * BLOCK_BYTES},
    "recompute": {"num_blocks": 20},
    "no_cache": {"num_blocks": 20, "enable_prefix_caching": False},
    "interrupted": {"num_blocks": 22, "preemption_mode": "swap", "swap_space": 16 * BLOCK_BYTES},
}
SHOWN = """[...document.querySelectorAll('.block-view, .playground')]
    .every((each) => each.querySelector('.bv-now, .pg-now'))"""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip


@dataclass
class Life:
    """A run: its trace, and for every step what the engine itself knew when the step was planned."""

    trace: str = ""
    truth: list[dict[str, Any]] = field(default_factory=list)
    interrupted: list[int] = field(default_factory=list)  # steps that were broken off, counted from 0


class Witness:
    """Notes the state of the engine's books at every step, without the help of minipaged.view.trace."""

    def __init__(self, engine: LLMEngine, life: Life) -> None:
        self.engine = engine
        self.life = life
        engine.observers.append(self.observe)

    def observe(self, step: Schedule) -> None:
        stops = {row.sequence: row.stop for row in step.rows}
        allocator, host = self.engine.blocks.allocator, self.engine.blocks.host_allocator
        free = set(allocator.free_order())
        counts = [allocator.reference_count(block) for block in range(allocator.num_blocks)]
        requests = list(self.engine.scheduler.requests())
        self.life.truth.append(
            {
                "live": sorted(request.request_id for request in requests),
                "tables": {
                    (request.request_id, each.index): (
                        list(each.table.blocks),
                        each.on_host,
                        stops.get(each, each.num_computed_tokens),
                    )
                    for request in requests
                    for each in request.unfinished
                    if each.table.blocks
                },
                "running": [
                    (request.request_id, each.index)
                    for request in self.engine.scheduler.running
                    for each in request.unfinished
                ],
                "counts": counts,
                "cached": {b for b, count in enumerate(counts) if count == 0 and b not in free},
                "num_free": allocator.num_free,
                "host_counts": [host.reference_count(b) for b in range(host.num_blocks)] if host else [],
            }
        )


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LLM]:
    """A function that makes an LLM of a tiny random Llama in float64, with the settings it is given."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.4, bos_token_id=1,
        eos_token_id=2, pad_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).to(torch.float64).save_pretrained(folder)

    def make(**settings: Any) -> LLM:
        return LLM(str(folder), dtype="float64", device="cpu", block_size=4, **settings)

    return make


def ask(engine: LLMEngine, request_id: str, rng: random.Random) -> None:
    """Add a request of a random kind; prompts begin alike, so that there is something to find and share."""
    prompt = [*range(10, 10 + rng.choice([0, 4, 9, 12])), *(rng.randrange(3, VOCAB) for _ in range(5))]
    if rng.random() < 0.3:
        params: Any = BeamSearchParams(beam_width=3, max_tokens=rng.randrange(2, 14))
    else:
        num_tokens = rng.randrange(1, 24)
        params = SamplingParams(n=rng.choice([1, 1, 2, 3]), max_tokens=num_tokens, seed=rng.randrange(99))
    engine.add_request(request_id, prompt, params)


def break_off_steps(engine: LLMEngine) -> None:
    """Interrupt a sixth of the steps, after they are computed and before their tokens are chosen."""
    advance, rng = engine._decoder.advance, random.Random(5)

    def interrupted(step: Schedule, logits: torch.Tensor) -> tuple[list[Request], int]:
        if rng.random() < 1 / 6:
            raise KeyboardInterrupt
        return advance(step, logits)

    engine._decoder.advance = interrupted  # type: ignore[method-assign]


def step(engine: LLMEngine, life: Life) -> None:
    """One step; an interrupt is noted."""
    try:
        engine.step()
    except KeyboardInterrupt:
        life.interrupted.append(len(life.truth) - 1)


@pytest.fixture(scope="session")
def live(start: Callable[..., LLM]) -> Callable[[str], Life]:
    """A function from the name of some settings to a random life under them: requests come, end, are aborted
    and preempted, and their ids are used again, also by a name that looks like a sequence's."""
    lives: dict[str, Life] = {}

    def run(name: str) -> Life:
        if name in lives:
            return lives[name]
        llm, life, file, rng = (
            start(max_num_batched_tokens=24, **SETTINGS[name]),
            Life(),
            io.StringIO(),
            random.Random(3),
        )
        engine = llm.engine
        if name == "interrupted":
            break_off_steps(engine)
        with Trace(engine, file):
            Witness(engine, life)
            for _ in range(160):
                unfinished = {request.request_id for request in engine.scheduler.requests()}
                request_id = rng.choice(["a", "a.0", "a.1", "b", "c", "7"])
                if request_id in unfinished and rng.random() < 0.15:
                    engine.abort_request(request_id)
                    ask(engine, request_id, rng)  # the same id, before the next step
                elif request_id not in unfinished and rng.random() < 0.6:
                    ask(engine, request_id, rng)
                step(engine, life)
            while engine.has_unfinished_requests():
                step(engine, life)
        life.trace = file.getvalue()
        lives[name] = life
        return life

    return run


@pytest.fixture(scope="session")
def beam_trace(start: Callable[..., LLM]) -> str:
    """The trace of a beam search of width 4."""
    llm, file = start(num_blocks=24), io.StringIO()
    with Trace(llm.engine, file):
        llm.beam_search(
            [[5, 6, 7, 8, 9, 10, 11]], BeamSearchParams(beam_width=4, max_tokens=16, ignore_eos=True)
        )
    return file.getvalue()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium without a window. Nothing is downloaded: where there is none, the tests are skipped."""
    reason = "the block view is tested with Playwright: pip install -e '.[docs]'"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("the block view is tested in Chromium, and none is installed: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def context(browser: Any) -> Callable[[str], Any]:
    """A function from options in JSON to the browser context that all tests with these options share."""
    return functools.cache(lambda options: browser.new_context(**json.loads(options)))


@contextmanager
def pages(
    context: Callable[[str], Any], allowed: tuple[str, ...], timeout: int
) -> Iterator[Callable[..., Any]]:
    """A function that opens a page at an address.

    In the end the console must be empty, and no request may have gone to an address that begins otherwise
    than with `allowed`. timeout: of an action, in milliseconds. clock: the page's time stands still.
    """
    noise: list[str] = []
    opened = []

    def leave(request: Any) -> None:
        if not request.url.startswith(allowed):
            noise.append(request.url)

    def open_page(address: str, clock: bool = False, **options: Any) -> Any:
        page = context(json.dumps(options, sort_keys=True)).new_page()
        opened.append(page)
        page.set_default_timeout(timeout)
        page.on("request", leave)
        page.on("console", lambda message: noise.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"{page.url}: error: {error}"))
        page.on("dialog", lambda dialog: (noise.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        if clock:
            page.clock.install(time=0)
            page.clock.pause_at(1_000)
        page.goto(address)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert noise == []


@pytest.fixture
def open_trace(context: Callable[[str], Any], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A function that opens the page of a trace from its file, see `pages`. All it asks for are files."""
    with pages(context, ("file:", "data:"), 10_000) as open_page:
        numbers = count()

        def open_one(trace: str, title: str = "A run", **options: Any) -> Any:
            path = tmp_path / f"page{next(numbers)}.html"
            write_page(trace, path, title)
            page = open_page(path.as_uri(), **options)
            page.wait_for_selector(".bv-now")
            return page

        yield open_one


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site: the one of `make docs` while it is as new as what it is made of, else
    built once, whatever the number of workers."""
    needed = [BUILD / "node_modules" / "pyodide", AXE, BUILD / "made" / "traces" / "beams.jsonl",
              BUILD / "made" / "card" / "card.png"]  # fmt: skip
    if importlib.util.find_spec("mkdocs") is None or not all(path.exists() for path in needed):
        pytest.skip("the site's tools, or what it is made of, are missing: make docs")
    if is_built():
        return ROOT / "site"
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / "site"
    with FileLock(shared / "site.lock"):
        if not (folder / "built").is_file():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
            environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            (folder / "built").touch()
    return folder


def is_built() -> bool:
    """Whether site/ was built without a warning, and nothing that it is made of has changed since."""
    stamp = BUILD / "made" / "built"
    if not stamp.is_file() or not (ROOT / "site" / "index.html").is_file():
        return False
    folders = [ROOT / name for name in ("docs", "minipaged", "reference", "kernels", "lessons", "benchmarks")]
    inputs = [ROOT / "mkdocs.yml", *(path for folder in folders for path in folder.rglob("*"))]
    ignored = {"node_modules", "made", "__pycache__", ".progress.json"}
    files = [path for path in inputs if path.is_file() and not ignored & set(path.parts)]
    return max(path.stat().st_mtime for path in files) < stamp.stat().st_mtime


class Notes(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and notes which of its files are asked for."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Note the path, and answer."""
        self.asked.append(unquote(urlsplit(self.path).path).lstrip("/"))
        super().do_GET()

    def end_headers(self) -> None:
        """Let browsers keep nothing, so that a page asks for all that it needs."""
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="session")
def asked() -> list[str]:
    """The files of the site that browsers have asked for, in their order."""
    return Notes.asked


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """The site's address on this machine."""
    handler = functools.partial(Notes, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def _visiting(context: Callable[[str], Any], address: str) -> Iterator[Callable[..., Any]]:
    """A function that opens a page of the site, see `pages`. No request may have left the machine."""
    with pages(context, (address, "data:", "blob:"), 20_000) as open_page:

        def open_one(path: str, **options: Any) -> Any:
            page = open_page(address + path, **options)
            page.wait_for_function(SHOWN)
            return page

        yield open_one


@pytest.fixture(scope="session")
def visiting(context: Callable[[str], Any], address: str) -> Callable[[], Any]:
    """A function that begins visits of the site, see `_visiting`."""
    return lambda: _visiting(context, address)


@pytest.fixture
def visit(visiting: Callable[[], Any]) -> Iterator[Callable[..., Any]]:
    """A function that opens a page of the site, see `_visiting`."""
    with visiting() as open_page:
        yield open_page


@pytest.fixture(scope="session")
def grave() -> Callable[..., list[Any]]:
    """A function from a page to axe-core's serious and critical violations of some rules or all."""

    def violations(page: Any, *rules: str, within: str = "html") -> list[Any]:
        page.wait_for_function("document.getAnimations().every((each) => each.playState !== 'running')")
        if not page.evaluate("Boolean(window.axe)"):
            page.evaluate(AXE.read_text())
        options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": rules} if rules else {})
        run = "([within, options]) => axe.run(within, options).then((found) => found.violations)"
        return [
            (each["id"], [node["target"] for node in each["nodes"]][:5], each["nodes"][0]["failureSummary"])
            for each in page.evaluate(run, [within, options])
            if each["impact"] in ("serious", "critical")
        ]

    return violations
