"""What the block view shows around the tables: arrows, tokens, the tour, links, and a frame of one size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRACES = Path(__file__).parents[2] / "docs" / "_build" / "made" / "traces"
LAPTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 900}

# A computes five tokens, block 5 before block 2. Then B finds the first block, and A ends.
RUN = {"trace": 1, "minipaged": "0", "model": "by hand", "block_size": 4, "num_blocks": 20,
       "num_host_blocks": 0, "bytes_per_block": 1024}  # fmt: skip
STEPS: list[dict[str, Any]] = [
    {"step": 1, "arrived": [{"id": "A", "prompt": "p", "prompt_tokens": 5, "sequences": 1}],
     "admitted": ["A"],
     "tables": {"A": {"blocks": [5, 2], "tokens": 0}}, "rows": [["A", 0, 5]],
     "texts": {"A": [0, "Once", " upon", " a", " time", "\n"]}},
    {"step": 2, "rows": [["A", 5, 6]], "texts": {"A": [5, " there"]}},
    {"step": 3, "arrived": [{"id": "B", "prompt": "q", "prompt_tokens": 6, "sequences": 1}],
     "admitted": ["B"],
     "tables": {"B": {"blocks": [5, 18], "tokens": 4}}, "rows": [["A", 6, 7], ["B", 4, 6]],
     "texts": {"A": [6, " was"], "B": [0, "Once", " upon", " a", " time", " the", ""]}},
    {"step": 4, "ended": [{"id": "A", "cached_tokens": 0, "outputs": [["length", 2, "x"]]}], "dropped": ["A"],
     "preempted": ["B"], "cached": [5]},
]  # fmt: skip
STEPS[3]["dropped"] = ["A", "B"]
TRACE = "".join(json.dumps(line) + "\n" for line in [RUN, *STEPS])
CARDS = [
    {"title": "First", "step": 1, "table": "A", "points": ["table"], "text": "#A has blocks @5 and @2."},
    {"title": "Second", "step": 3, "table": "B", "points": ["5", "18"], "text": "#B shares @5."},
]


def go(page: Any, step: int) -> None:
    """Go to a step, and wait until its arrows are drawn."""
    page.evaluate(f"document.querySelector('.block-view').blockView.goto({step})")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def arrows(page: Any) -> list[int]:
    """The physical blocks at whose edge the arrows end, in the order of the table."""
    return page.evaluate("""() => {
        const origin = document.querySelector(".bv-body").getBoundingClientRect();
        const tip = (path) => path.getAttribute("d").match(/^M([\\d.]+),([\\d.]+)/).slice(1).map(Number);
        const near = ([x, y], box) => Math.abs(x + origin.left - box.left) < 1
            && Math.abs(y + origin.top - (box.top + box.bottom) / 2) < 1;
        return [...document.querySelectorAll(".bv-arrows g")].map((group) => {
            const cells = [...document.querySelectorAll(".bv-pool .bv-cell")];
            return cells.findIndex((cell) => near(tip(group.lastChild), cell.getBoundingClientRect()));
        });
    }""")


def slots(page: Any, cell: str) -> list[str]:
    return page.locator(f"{cell} .bv-slot").all_text_contents()


def test_arrows_lead_from_the_open_table_to_its_physical_blocks(open_trace: Callable[..., Any]) -> None:
    page = open_trace(TRACE, viewport=LAPTOP)
    go(page, 3)
    assert arrows(page) == [5, 2]
    page.get_by_role("button", name="B", exact=True).click()
    go(page, 3)
    assert arrows(page) == [5, 18]
    assert page.locator(".bv-chip[aria-expanded=true]").all_inner_texts() == ["B"]
    go(page, 4)
    assert arrows(page) == []
    page.set_viewport_size(PHONE)
    go(page, 2)
    assert page.locator(".bv-arrows g").count() == 1, "on a phone, the newest block's"


def test_tokens_stand_in_their_slots_and_stay_in_cached_blocks(open_trace: Callable[..., Any]) -> None:
    page = open_trace(TRACE, viewport=LAPTOP)
    go(page, 2)
    table, pool = ".bv-lane [data-block='2']", ".bv-pool [data-block='2']"
    assert slots(page, table) == slots(page, pool) == ["⏎", "there", "", ""]
    assert page.locator(f"{table} .bv-slot[data-full]").count() == 2
    assert page.inner_text(f"{table} .bv-note") == "2/4"
    go(page, 3)
    assert slots(page, ".bv-pool [data-block='18']") == ["the", "", "", ""]
    assert page.locator(".bv-pool [data-block='18'] .bv-slot[data-full]").count() == 2
    go(page, 4)
    assert slots(page, ".bv-pool [data-block='5']") == ["Once", "upon", "a", "time"]
    assert slots(page, ".bv-pool [data-block='2']") == ["", "", "", ""]


def test_the_legend_explains_its_signs(open_trace: Callable[..., Any]) -> None:
    legend = open_trace(TRACE).locator(".bv-legend").text_content()
    assert "A ×4: four tables of A name this block" in legend
    assert "2/4: two of four slots hold a token" in legend


@pytest.mark.parametrize(
    ("screen", "scheme"),
    [(DESK, "dark"), (LAPTOP, "light"), (PHONE, "dark")],
    ids=["desk", "laptop", "phone"],
)
def test_a_long_replay_stays_in_its_frame(
    screen: dict[str, int],
    scheme: str,
    beam_trace: str,
    live: Callable[[str], Any],
    open_trace: Callable[..., Any],
) -> None:
    """Its height is the same at every step, and it needs no sideways scrolling."""
    for trace in (beam_trace, live("swap").trace, TRACE):
        page = open_trace(trace, viewport=screen, color_scheme=scheme)
        shown = page.evaluate("""() => {
            const root = document.querySelector(".block-view");
            const steps = Array.from({ length: Number(root.querySelector("input").max) }, (_, i) => i + 1);
            return steps.map((step) => {
                root.blockView.goto(step);
                const { left, right } = root.getBoundingClientRect();
                return [root.offsetHeight, left, right, document.documentElement.scrollWidth];
            });
        }""")
        heights, lefts, rights, widths = map(set, zip(*shown, strict=True))
        assert len(heights) == 1
        assert min(lefts) >= 0 and max(rights) <= screen["width"]
        assert widths == {screen["width"]}


def test_the_tour_points_at_what_it_speaks_of(open_trace: Callable[..., Any]) -> None:
    page = open_trace(TRACE, viewport=LAPTOP, reduced_motion="reduce")
    page.evaluate("(cards) => document.querySelector('.block-view').blockView.guide(cards)", CARDS)
    tour = page.get_by_role("region", name="Guided tour")
    height = page.evaluate("document.querySelector('.block-view').offsetHeight")
    assert tour.locator(".bv-title:visible").all_inner_texts() == ["First"]
    assert page.locator(".bv-pointed").evaluate_all("(all) => all.map((each) => each.className)") == [
        "bv-lane bv-pointed"
    ]
    tour.get_by_role("button", name="Next").click()
    assert tour.locator(".bv-page:visible").inner_text().split() == ["Second", "B", "shares", "5."]
    assert page.inner_text(".bv-chip[aria-expanded=true]") == "B"
    pointed = "(all) => all.map((each) => [each.closest('.bv-pool') ? 'pool' : 'table', each.dataset.block])"
    assert page.locator(".bv-pointed").evaluate_all(pointed) == [
        ["table", "5"], ["table", "18"], ["pool", "5"], ["pool", "18"]
    ]  # fmt: skip
    assert page.evaluate("document.querySelector('.block-view').offsetHeight") == height
    tour.get_by_role("button", name="Back").click()
    assert tour.locator(".bv-title:visible").all_inner_texts() == ["First"]
    page.keyboard.press("ArrowRight")  # whoever steps on has left the tour
    assert tour.locator(".bv-title:visible").count() == 0
    assert page.inner_text(".bv-now").startswith("Step 2") and page.locator(".bv-pointed").count() == 0
    page.get_by_role("button", name="Tour").click()
    assert tour.locator(".bv-title:visible").all_inner_texts() == ["First"], "and comes back to its card"
    tour.get_by_role("button", name="Close the tour").click()
    assert page.evaluate("document.activeElement.textContent") == "Tour"


def test_the_tour_plays_up_to_its_card(open_trace: Callable[..., Any]) -> None:
    page = open_trace(TRACE, reduced_motion="no-preference")
    page.evaluate("(cards) => document.querySelector('.block-view').blockView.guide(cards)", CARDS)
    page.get_by_role("button", name="Next").click()
    steps = page.get_by_label("Step", exact=True)
    assert steps.get_attribute("aria-valuetext") == "step 2"
    page.wait_for_function("document.querySelector('input[type=range]').value === '3'")
    assert page.locator(".bv-pool .bv-pointed").count() == 2


def test_the_eight_cards_are_of_the_recording(open_trace: Callable[..., Any]) -> None:
    if not (TRACES / "tour.json").is_file():
        pytest.skip("the tour is missing: make docs")
    page = open_trace((TRACES / "tour.jsonl").read_text(encoding="utf-8"), reduced_motion="reduce")
    cards = json.loads((TRACES / "tour.json").read_text(encoding="utf-8"))
    page.evaluate("(cards) => document.querySelector('.block-view').blockView.guide(cards)", cards)
    said = []
    for _ in cards:
        said.append(
            " ".join(
                [page.locator(".bv-page:visible").inner_text(), page.locator(".bv-events").text_content()]
            )
        )
        assert page.locator(".bv-pool .bv-pointed").count() or page.locator(".bv-lane.bv-pointed").count()
        page.locator(".bv-primary").click()
    expected = [
        "A begins", "physical block 11", "ninth", "blocks 3 and 4", "forks from C.0", "copy-on-write: block",
        "prefix hit: D finds block 11", "preempted: D gives its blocks up",
    ]  # fmt: skip
    assert len(said) == 8 and all(each in text for each, text in zip(expected, said, strict=True))
    pool = page.locator(".bv-pool .bv-mark").all_text_contents()
    assert "" not in pool, "the pool is full when a request is preempted"


def test_an_address_leads_to_a_step(open_trace: Callable[..., Any]) -> None:
    page = open_trace(TRACE)
    assert page.locator(".bv-link").get_attribute("href") == "#step=1"
    page.evaluate("location.hash = '#step=3'")
    page.wait_for_function("document.querySelector('.bv-now').textContent.startsWith('Step 3')")
    assert page.locator(".bv-link").get_attribute("href") == "#step=3"
    page.reload()
    page.wait_for_function("document.querySelector('.bv-now').textContent.startsWith('Step 3')")
    page.evaluate("document.querySelector('.block-view').dataset.scene = 'by hand'")
    page.evaluate("location.hash = '#step=2'")  # of a view without a name: there is none
    page.evaluate("location.hash = '#scene=by%20hand&step=1'")
    page.wait_for_function("document.querySelector('.bv-now').textContent.startsWith('Step 1')")
    assert page.locator(".bv-link").get_attribute("href") == "#scene=by%20hand&step=1"


@pytest.mark.parametrize(
    ("step", "shown"), [("2.5", "Step 2"), ("4.9", "Step 4"), ("99.5", "Step 4"), ("-1.5", "Step 1")]
)
def test_an_address_with_a_fraction_leads_to_a_whole_step(
    open_trace: Callable[..., Any], step: str, shown: str
) -> None:
    page = open_trace(TRACE)
    page.evaluate(f"location.hash = '#step={step}'")
    page.wait_for_function(
        "(text) => document.querySelector('.bv-now').textContent.startsWith(text)", arg=shown
    )
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    assert page.inner_text(".bv-now").startswith("Step 1")


def test_links_skip_to_the_tables_the_pool_and_the_end(open_trace: Callable[..., Any]) -> None:
    page = open_trace(TRACE)
    focused = "document.activeElement.closest('.bv-lanes, .bv-pool, .bv-keys').className.split(' ')[0]"
    for number, group in enumerate(["bv-lanes", "bv-pool", "bv-keys"], start=2):
        page.locator(".block-view").focus()
        for _ in range(number - 1):
            page.keyboard.press("Tab")
        assert page.locator(".bv-skips a:focus").bounding_box()["width"] > 40
        page.keyboard.press("Enter")
        assert page.evaluate(focused) == group
    assert page.evaluate("location.hash") == ""


def test_a_stream_of_lines_is_drawn_as_they_come(open_trace: Callable[..., Any]) -> None:
    page = open_trace(TRACE)
    page.evaluate("""() => {
        const root = document.body.appendChild(document.createElement("div"));
        root.id = "live";
        root.blockView = minipagedBlockView(root);
    }""")
    assert page.inner_text("#live .bv-now") == "Waiting for the first step."
    for number, line in enumerate(TRACE.splitlines()):
        page.evaluate("(line) => document.querySelector('#live').blockView.append(line)", line)
        if number:
            title = page.inner_text("#live .bv-now")
            assert title == page.evaluate(
                "(step) => (document.querySelector('.block-view').blockView.goto(step),"
                "document.querySelector('.bv-now').textContent)", number
            )  # fmt: skip


def test_a_page_follows_an_answer_that_goes_on(open_trace: Callable[..., Any]) -> None:
    """The answer comes in pieces that end inside of lines and of characters."""
    page = open_trace(TRACE)
    page.evaluate("""(trace) => {
        const bytes = new TextEncoder().encode(trace);
        globalThis.fetch = async () => new Response(new ReadableStream({
            start(stream) { globalThis.send = (from, to) => stream.enqueue(bytes.slice(from, to)); },
        }));
        document.body.innerHTML = '<div class="block-view" data-stream="/trace"></div>';
        minipagedBlockView.start();
    }""", TRACE.replace(" was", " 였다"))  # fmt: skip
    size = len(TRACE.replace(" was", " 였다").encode())
    page.wait_for_function("Boolean(globalThis.send)")
    for start in range(0, size, 7):
        page.evaluate(f"send({start}, {start + 7})")
    page.wait_for_function("document.querySelector('.bv-now').textContent.startsWith('Step 4')")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert slots(page, ".bv-pool [data-block='2']") == ["⏎", "there", "였다", ""]
