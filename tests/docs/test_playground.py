"""The playground on Home: the numbers of its scenes by hand, and what a browser makes of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "_build"
LOADING = 90_000  # milliseconds, for 13 MB of Python to be compiled on a busy machine
THREE, SHARED, SMALL = "Three short requests", "One beginning, stored once", "A pool too small"


def load(name: str) -> ModuleType:
    """A file of docs/_build as a module, under the name by which its neighbours import it."""
    spec = spec_from_file_location(name, BUILD / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


playground = load("playground")
playground_page = load("playground_page")


def scene(name: str) -> dict[str, Any]:
    """The recording of a scene."""
    return playground.record(playground.SCENES[name])


def at(recording: dict[str, Any], side: str, step: int) -> dict[str, Any]:
    """A frame, by the number that the page shows."""
    return recording[side][step - 1]


def states(frame: dict[str, Any]) -> list[str]:
    return [state for state, *_ in frame["requests"]]


def counts(frame: dict[str, Any]) -> tuple[int, int, int, int]:
    return frame["filled"], frame["empty"], frame["free"], frame["saved"]


# ---------------------------------------------------------------------- by hand


def test_three_short_requests_by_hand() -> None:
    """Prompts of 6, 5 and 5 tokens come in steps 1, 2 and 3. The pool has 64 slots, a piece 32."""
    recording = scene(THREE)
    before, after = at(recording, "one_piece", 3), at(recording, "in_blocks", 3)
    assert recording["telling"] == 3 - 1
    assert states(before) == ["running", "running", "waiting"]
    assert states(after) == ["running", "running", "running"]
    assert counts(before) == (8 + 6, 64 - 14, 0, 0)
    assert counts(after) == (8 + 6 + 5, 6 * 4 - 19, 64 - 24, 0)
    assert [place for *_, place, _ in before["requests"]] == [[0, 32], [32, 32], []]


def test_the_ninth_token_takes_a_block() -> None:
    recording = scene(THREE)
    (_, tokens, fresh, before, _), *_ = at(recording, "in_blocks", 3)["requests"]
    assert (tokens, fresh, len(before)) == (8, 1, 2)
    (_, tokens, fresh, table, _), *_ = at(recording, "in_blocks", 4)["requests"]
    assert (tokens, fresh, len(table)) == (9, 1, 3)
    assert table[:2] == before and table != sorted(table)
    words = f"Token 9 of A finds 2 blocks full, and takes block {table[2]}."
    assert at(recording, "in_blocks", 4)["events"] == [words]


def test_who_waits_ends_later() -> None:
    """In blocks B is last: 7 tokens from step 2 on. In one piece C is: 5 tokens after the 6 steps of A."""
    recording = scene(THREE)
    assert "running" in states(at(recording, "in_blocks", 8))
    assert states(at(recording, "in_blocks", 9)) == ["ended"] * 3
    assert states(at(recording, "one_piece", 7))[2] == "running"
    assert "running" in states(at(recording, "one_piece", 11))
    assert len(recording["one_piece"]) == len(recording["in_blocks"]) == 12
    assert at(recording, "in_blocks", 12)["events"] == ["All have ended, 8 steps after the first came."]


def test_sharing_saves_the_beginning() -> None:
    """The 8 common words are 2 blocks. B and C save them: 16 slots. Without sharing nothing is saved."""
    recording = scene(SHARED)
    tables = [place for *_, place, _ in at(recording, "in_blocks", 3)["requests"]]
    assert [table[:2] for table in tables] == [tables[0][:2]] * 3
    assert len({block for table in tables for block in table}) == 4 + 2 + 2
    assert counts(at(recording, "in_blocks", 3)) == (16 + 6 + 5, 8 * 4 - 27, 64 - 32, 16)
    assert at(recording, "in_blocks", 3)["requests"][2][1:3] == [13, 5], "C computes 5 of its 13 tokens"
    settings = playground.SCENES[SHARED].__dict__ | {"sharing": False}
    alone = playground.record(playground.Settings(**settings))
    assert counts(at(alone, "in_blocks", 3)) == (16 + 14 + 13, 12 * 4 - 43, 64 - 48, 0)


def test_a_small_pool_makes_a_request_give_way() -> None:
    """8 blocks: in step 7, C needs a third when A and B have three each. It comes back with 9 tokens."""
    recording = scene(SMALL)
    assert counts(at(recording, "in_blocks", 6)) == (11 + 9 + 8, 4, 0, 0)
    assert states(at(recording, "in_blocks", 7)) == ["running", "running", "waiting"]
    assert at(recording, "in_blocks", 7)["events"] == [
        "No block is free: C gives its 2 blocks up, and will compute them again."
    ]
    assert at(recording, "in_blocks", 12)["requests"][2][:3] == ["running", 9, 9]
    assert states(at(recording, "one_piece", 3))[2] == "waiting", "16 + 16 slots are taken, exactly"


@pytest.mark.parametrize(
    ("policy", "sizes"),
    # 11, 11 and 9 tokens in the end: of these 6, 5 and 5 are prompts, and 5, 6 and 4 come.
    [("exact", [11, 11, 9]), ("power of two", [6 + 8, 5 + 8, 5 + 4])],
)
def test_what_the_other_policies_reserve(policy: str, sizes: list[int]) -> None:
    recording = playground.record(playground.Settings(playground.QUESTIONS, policy=policy))
    pieces = [place for *_, place, _ in at(recording, "one_piece", 3)["requests"]]
    assert pieces == [[0, sizes[0]], [sizes[0], sizes[1]], [sizes[0] + sizes[1], sizes[2]]]


# ---------------------------------------------------------------------- for any settings


def random_settings(seed: int) -> Any:
    chance = random.Random(seed)
    prompts = []
    for _ in range(chance.randint(1, 3)):
        length = chance.randint(1, 24)
        prompts.append((" ".join(chance.choices("ab", k=length)), chance.randint(1, 32 - length)))
    return playground.Settings(
        tuple(prompts),
        chance.choice(playground.BLOCK_SIZES),
        chance.choice(playground.POOLS),
        chance.choice([*playground.POLICIES]),
        chance.random() < 0.5,
    )


@pytest.mark.parametrize("seed", range(60))
def test_every_request_ends_and_every_slot_is_counted(seed: int) -> None:
    settings = random_settings(seed)
    recording = playground.record(settings)
    for side in ("one_piece", "in_blocks"):
        for frame in recording[side]:
            assert frame["filled"] + frame["empty"] + frame["free"] == settings.num_slots
            assert min(counts(frame)) >= 0
            tokens = sum(tokens for _, tokens, *_ in frame["requests"])
            assert frame["filled"] <= tokens and (frame["saved"] or frame["filled"] == tokens)
        assert set(states(recording[side][-1])) == {"ended"}
        assert counts(recording[side][-1]) == (0, 0, settings.num_slots, 0)


@pytest.mark.parametrize("seed", range(60))
def test_a_block_of_two_tables_holds_the_same_words(seed: int) -> None:
    """And so do all words before it: a table that named a wrong block would show."""
    settings = random_settings(seed)
    recording = playground.record(settings)
    for frame in recording["in_blocks"]:
        held: dict[int, list[str]] = {}
        for (_, words), (_, tokens, _, table, _) in zip(recording["asks"], frame["requests"], strict=True):
            assert len(table) == -(-tokens // settings.block_size)
            for index, block in enumerate(table):
                until = (index + 1) * settings.block_size
                assert held.setdefault(block, words[:until]) == words[:until]
                assert block not in frame["cached"]


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ([["", 5], ["  ", 5]], "Write a prompt"),
        ([["a b", 0]], "A: an answer of 0 tokens. An answer has at least 1 token."),
        (
            [["a b c d e", 31]],
            "A: 5 words and an answer of 31 tokens are 36 tokens. The limit for both together is 32 ",
        ),
        ([["a", 5], ["a " * 32, 1]], "B: 32 words and an answer of 1 token are 33 tokens."),
    ],
)
def test_what_makes_no_sense_is_said(prompts: list[Any], words: str) -> None:
    assert words in json.loads(playground.answer(json.dumps({"prompts": prompts})))["error"]


def test_the_files_for_the_browser_suffice(tmp_path: Path) -> None:
    """As the cells' worker lays them out, with reference/ and nothing else installed."""
    files = json.loads(playground_page.sources())
    files |= {f"minipaged/reference/{path.name}": path.read_text() for path in ROOT.glob("reference/*.py")}
    files["minipaged/__init__.py"] = ""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code = "import sys; sys.path.insert(0, sys.argv[1]); import playground as p; print(p.answer(sys.argv[2]))"
    settings = json.dumps(playground.record(random_settings(1))["settings"])
    command = [sys.executable, "-I", "-S", "-c", code, str(tmp_path), settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert json.loads(done.stdout) == json.loads(playground.answer(settings))


def test_home_says_what_the_scenes_show() -> None:
    text = " ".join((ROOT / "docs" / "index.md").read_text().split())
    recording, shared = scene(THREE), scene(SHARED)
    third, fourth = at(recording, "in_blocks", 3), at(recording, "in_blocks", 4)
    table = fourth["requests"][0][3]
    filled, empty, _, _ = counts(at(recording, "one_piece", 3))
    first, second = at(shared, "in_blocks", 3)["requests"][2][3][:2]
    for words in (
        f"They lie in physical blocks {table[0]} and {table[1]}",
        f"physical block {table[2]}. Its table gets a third entry",
        f"A and B hold {filled} tokens, and all 64 slots are taken. {empty} of them are empty, and C waits",
        f"In blocks all three run, and {third['empty']} taken slots are empty",
        f"the tables of A, B and C all begin with {first} and {second}",
        f"B and C each save two blocks, together {at(shared, 'in_blocks', 3)['saved']} slots",
    ):
        assert words in text
    assert [len(ask[1]) for ask in recording["asks"]] == [6 + 6, 5 + 7, 5 + 5]


# ---------------------------------------------------------------------- in a browser


@pytest.fixture
def home(visit: Callable[..., Any]) -> Callable[..., Any]:
    """A function that opens Home."""

    def open_home(width: int = 1280, height: int = 900, **options: Any) -> Any:
        options = {"reduced_motion": "reduce", "color_scheme": "light"} | options
        return visit("index.html", viewport={"width": width, "height": height}, **options)

    return open_home


def shown(page: Any) -> list[str]:
    """The counts of both sides."""
    return [each.inner_text() for each in page.locator(".pg-counts").all()]


def wanted(recording: dict[str, Any], step: int) -> list[str]:
    """The same from a recording."""
    texts = []
    for side in ("one_piece", "in_blocks"):
        filled, empty, free, saved = counts(at(recording, side, step))
        sharing = [f"sharing saves {saved}"] * bool(saved)
        texts.append(
            "\n".join([f"{filled} slots hold a token", f"{empty} taken and empty", f"{free} free", *sharing])
        )
    return texts


def choose_step(page: Any, step: int) -> None:
    page.locator(".pg-controls input").evaluate(
        "(each, step) => { each.value = step; each.dispatchEvent(new Event('input')); }", step - 1
    )


def test_a_recording_is_there_before_python(home: Callable[..., Any], asked: list[str]) -> None:
    asked.clear()
    page = home()
    assert page.locator(".pg-state").all_inner_texts() == ["2 running, C waits", "3 running"]
    assert shown(page) == wanted(scene(THREE), 3)
    page.get_by_label("One step on").click()
    assert page.locator(".pg-now").inner_text() == "Step 4 of 12"
    assert shown(page) == wanted(scene(THREE), 4)
    entries = page.locator(".pg-side").nth(1).locator(".pg-row")
    assert entries.all_text_contents()[:3] == ["0 in block 9", "1 in block 4", "2 in block 8"]
    for name in (SHARED, SMALL):
        page.get_by_role("button", name=name).click()
        assert shown(page) == wanted(scene(name), 3)
    assert "index.html" in asked and not [path for path in asked if "pyodide" in path]


def test_numbers_and_signs_say_what_they_count(home: Callable[..., Any]) -> None:
    """64 slots are 8 rows of 8, or 16 blocks of 4. Blocks that can still be found are dashed."""
    page = home()
    for side, label, numbers in (
        (0, "Numbers: the first slot of each row", range(0, 64, 8)),
        (1, "Numbers: physical blocks. A0: logical block 0 of A", range(16)),
    ):
        half = page.locator(".pg-side").nth(side)
        assert half.locator(".pg-numbers").inner_text() == label
        assert half.locator(".pg-number").all_inner_texts() == [str(number) for number in numbers]
    page.get_by_role("button", name=SHARED).click()
    choose_step(page, 9)
    kept = page.locator(".pg-pool [data-kept] .pg-number").all_inner_texts()
    assert list(map(int, kept)) == sorted(at(scene(SHARED), "in_blocks", 9)["cached"]) != []
    words = "free, but a prompt with the same beginning finds it until it is reused"
    assert page.locator(".pg-legend li", has=page.locator("[data-kept]")).inner_text() == words


def test_the_opening_scene_plays_by_itself_and_comes_to_rest(home: Callable[..., Any]) -> None:
    """It waits for three times the time of a step, 1.6 s. The page's clock stands still but for `run_for`."""
    page = home(reduced_motion="no-preference", clock=True)
    seen = (
        "new Promise((done) => new IntersectionObserver(done).observe(document.querySelector('.playground')))"
    )
    page.evaluate(seen)
    now, button = page.locator(".pg-now"), page.locator(".pg-play")
    assert (now.inner_text(), button.inner_text()) == ("Step 3 of 12", "Play")
    page.clock.run_for(3 * 1_600)
    assert (now.inner_text(), button.inner_text()) == ("Step 1 of 12", "Pause")
    page.clock.run_for(1_600)
    assert now.inner_text() == "Step 2 of 12"
    page.clock.run_for(11 * 1_600)
    assert (now.inner_text(), button.inner_text()) == ("Step 3 of 12", "Play"), "the step that tells most"

    button.click()
    page.clock.run_for(1_600)
    button.click()
    page.clock.run_for(10_000)
    assert (now.inner_text(), button.inner_text()) == ("Step 4 of 12", "Play")


def test_a_changed_setting_is_served_live(home: Callable[..., Any], asked: list[str]) -> None:
    asked.clear()
    page = home()
    page.get_by_label("Block of").select_option("8")
    page.wait_for_function(
        "document.querySelector('.pg-status').textContent.startsWith('Just')", timeout=LOADING
    )
    assert shown(page) == wanted(playground.record(playground.Settings(playground.QUESTIONS, 8)), 3)

    page.get_by_label("Prompt of A").fill("one two three four five six seven eight nine")
    page.get_by_label("Tokens of the answer to A").fill("3")
    page.get_by_label("Pool of").select_option("32")
    page.get_by_label("In one piece, reserve").select_option("exact")
    prompts = (("one two three four five six seven eight nine", 3), *playground.QUESTIONS[1:])
    recording = playground.record(playground.Settings(prompts, 8, 32, "exact"))
    page.wait_for_function(
        f"document.querySelector('.pg-counts').innerText === {json.dumps(wanted(recording, 3)[0])}"
    )
    assert shown(page) == wanted(recording, 3)
    assert "seven" in page.locator(".pg-pool").first.inner_text()

    page.get_by_label("Prompt of B").fill("word " * 40)
    page.get_by_label("Prompt of B").blur()
    page.wait_for_function("document.querySelector('.pg-error')")
    assert page.locator(".pg-status").inner_text().startswith("B: 40 words and an answer of 7 tokens are 47")
    assert shown(page) == wanted(recording, 3), "what was there before stays"

    page.locator(".cell-run").first.click()  # one Python serves cells and playground
    page.wait_for_function("document.querySelector('.cell-note').textContent === 'done'")
    page.get_by_role("button", name=SHARED).click()
    assert shown(page) == wanted(scene(SHARED), 3)
    assert asked.count("assets/pyodide/pyodide.asm.wasm") == 1


SIZES = """(step) => {
    const steps = document.querySelector(".pg-controls input");
    steps.value = step;
    steps.dispatchEvent(new Event("input"));
    const cells = [...document.querySelectorAll(".pg-cell")];
    const cut = cells.filter((each) => each.scrollWidth > each.clientWidth + 1).length;
    return [document.querySelector(".playground").offsetHeight, document.documentElement.scrollWidth, cut];
}"""


def test_a_request_can_be_looked_at_alone(home: Callable[..., Any]) -> None:
    page = home()
    blocks = page.locator(".pg-side").nth(1)
    blocks.get_by_label("Show B alone").focus()
    page.keyboard.press("Enter")
    assert blocks.get_by_label("Show B alone").get_attribute("aria-pressed") == "true"
    assert page.evaluate("document.activeElement.textContent") == "B"
    owners = "(cells) => cells.map((cell) => cell.dataset.owner)"
    lit = blocks.locator(".pg-pool .pg-cell[data-owner]:not([data-dim])")
    assert lit.evaluate_all(owners) == ["1"] * 8
    page.keyboard.press("Enter")
    assert blocks.locator(".pg-cell[data-dim]").count() == 0


@pytest.mark.parametrize(
    ("width", "height", "scheme"), [(390, 844, "light"), (1280, 900, "dark"), (1440, 900, "light")]
)
def test_nothing_jumps_and_nothing_is_cut(
    home: Callable[..., Any], width: int, height: int, scheme: str
) -> None:
    page = home(width, height, color_scheme=scheme)
    seen = set()
    for name in (THREE, SHARED, SMALL, THREE):
        page.get_by_role("button", name=name).click()
        steps = len(scene(name)["in_blocks"])
        shown = [page.evaluate(SIZES, step) for step in range(steps)]
        heights = {high for high, _, _ in shown}
        assert len(heights) == 1, name
        assert max(wide for _, wide, _ in shown) <= width
        assert sum(cut for _, _, cut in shown) == 0
        seen |= heights
    assert len(seen) == 1, "there is room for the tallest scene, so what is below a scene stays where it is"
    if width > 1000:
        page.evaluate("scrollTo(0, 0)")
        box = page.locator(".pg-legend").bounding_box()
        assert box["y"] + box["height"] <= height, "both pools and all tables are on the first screen"
    else:
        page.locator(".pg-side").first.scroll_into_view_if_needed()
        assert all(side.bounding_box()["height"] <= height for side in page.locator(".pg-side").all())


def test_it_is_accessible_in_both_schemes(home: Callable[..., Any], grave: Callable[..., Any]) -> None:
    page = home()
    for name in (THREE, SHARED, SMALL):
        page.get_by_role("button", name=name).click()
        choose_step(page, 7)  # one waits, one has ended
        for scheme in ("default", "slate"):
            page.evaluate(f"document.body.dataset.mdColorScheme = '{scheme}'")
            assert grave(page, within=".playground") == [], (name, scheme)


def test_it_plays_from_a_folder(browser: Any, site: Path) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    page.get_by_label("One step on").click()
    assert shown(page) == wanted(scene(THREE), 4)
    page.get_by_label("Block of").select_option("8")
    assert "only on pages that are served" in page.locator(".pg-status").inner_text()
    context.close()
