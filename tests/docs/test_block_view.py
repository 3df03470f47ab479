"""The block view in a real browser: it shows what the trace says, to eyes, hands and screen readers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minipaged.view.page import SCRIPTS, VIEW

HOSTILE = "</script><img src=x onerror=alert(1)><!-- <script>"

# A run written by hand, with every event, and what must be said of each step.
RUN = {"trace": 1, "minipaged": "0", "model": "by hand", "block_size": 4, "num_blocks": 6,
       "num_host_blocks": 4, "bytes_per_block": 1024}  # fmt: skip
STEPS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"step": 1, "arrived": [{"id": "first", "prompt": HOSTILE, "prompt_tokens": 6, "sequences": 2},
                                {"id": "second", "prompt": "", "prompt_tokens": 9, "sequences": 1}],
         "admitted": ["first"], "tables": {"first.0": {"blocks": [0, 1], "tokens": 0}},
         "rows": [["first.0", 0, 6]]},
        ["computes 6 tokens for A.0", "B arrives and waits", "A begins"],
    ),
    (
        {"step": 2, "moves": [["copy", 1, 2, "first"]],
         "tables": {"first.0": {"blocks": [0, 2], "tokens": 6}, "first.1": {"blocks": [0, 1], "tokens": 6}},
         "rows": [["first.0", 6, 7], ["first.1", 6, 7]]},
        ["computes one token each for A.0, A.1", "A.1 forks from A.0", "copy-on-write: block 1 → 2 for A.0"],
    ),
    (
        {"step": 3, "preempted": ["first"],
         "moves": [["out", 0, 0, "first"], ["out", 2, 1, "first"], ["out", 1, 2, "first"]],
         "admitted": ["second"],
         "tables": {"first.0": {"blocks": [0, 1], "tokens": 7, "host": True},
                    "first.1": {"blocks": [0, 2], "tokens": 7, "host": True},
                    "second": {"blocks": [5, 4, 3], "tokens": 0}},
         "rows": [["second", 0, 9]], "cached": [0]},
        ["computes 9 tokens for B", "B begins",
         "preempted: A is swapped out, block 0 → host 0, 2 → host 1, 1 → host 2"],
    ),
    (
        {"step": 4, "ended": [{"id": "second", "cached_tokens": 0, "outputs": [["stop", 1, "Yes."]]}],
         "moves": [["in", 1, 3, "first"], ["in", 2, 2, "first"]], "dropped": ["second"],
         "tables": {"first.0": {"blocks": [0, 3], "tokens": 7}, "first.1": {"blocks": [0, 2], "tokens": 7}},
         "rows": [["first.0", 7, 8], ["first.1", 7, 8]], "cached": [4, 5]},
        ["computes one token each for A.0, A.1", "B ended: stop after 1 token, “Yes.”",
         "A is swapped in: host 1 → block 3, host 2 → block 2", "still in the pool and not copied: block 0"],
    ),
    (
        {"step": 5, "preempted": ["first"], "dropped": ["first.0", "first.1"],
         "arrived": [{"id": "third", "prompt": "x", "prompt_tokens": 14, "sequences": 1}],
         "admitted": ["third"],
         "tables": {"third": {"blocks": [5, 1, 3, 4], "tokens": 4}}, "rows": [["third", 4, 14]],
         "cached": [2, 0]},
        ["computes 10 tokens for C", "C begins", "preempted: A gives its blocks up, to compute them again",
         "prefix hit: C finds block 5 computed (4 tokens)", "evicted from the cache: block 4"],
    ),
    (
        {"ended": [{"id": "third", "cached_tokens": 4, "outputs": [["abort", 1, ""]]},
                   {"id": "first", "cached_tokens": 0, "outputs": [["abort", 2, "a"], ["abort", 2, "b"]]}],
         "dropped": ["third"]},
        ["nothing more is computed", "C ended: abort after 1 token", "A ended: abort after 2 tokens"],
    ),
]  # fmt: skip
BY_HAND = "".join(json.dumps(line) + "\n" for line in [RUN, *(step for step, _ in STEPS)])


def go(page: Any, step: int) -> None:
    page.evaluate(f"document.querySelector('.block-view').blockView.goto({step})")


def words(page: Any) -> list[str]:
    """What the step computes, and what else it did."""
    now = page.inner_text(".bv-now").partition(": ")[2].rstrip(".")
    return [now, *page.locator(".bv-events li").all_inner_texts()]


def lanes(page: Any) -> dict[str, list[str]]:
    """The block table that each lane shows: "3×2" is block 3, shared by two."""
    return page.evaluate("""() => Object.fromEntries([...document.querySelectorAll(".bv-lane")].map(
        (lane) => [lane.querySelector(".bv-chip").textContent,
        [...lane.querySelectorAll(".bv-mark")].map((mark) => mark.textContent + mark.dataset.badge),
    ]))""")


def pool(page: Any, name: str = "The pool") -> list[str]:
    return page.evaluate("""(name) => [...document.querySelectorAll(`[aria-label="${name}"] .bv-mark`)].map(
        (mark) => mark.textContent + mark.dataset.badge)""", name)  # fmt: skip


def counts(page: Any) -> dict[str, str]:
    return page.evaluate("""() => Object.fromEntries([...document.querySelectorAll(".bv-counts div")].map(
        (each) => [each.firstChild.textContent, each.lastChild.textContent]))""")


def large_trace(num_steps: int = 600, num_blocks: int = 640, num_sequences: int = 20) -> str:
    """Sequences that grow over a large pool, a block every 16 steps, and share their first."""
    lines: list[dict[str, Any]] = [RUN | {"block_size": 16, "num_blocks": num_blocks, "num_host_blocks": 0}]
    names = [f"r{i:02}" for i in range(num_sequences)]
    for step in range(1, num_steps + 1):
        line: dict[str, Any] = {"step": step, "rows": [[name, 15 + step, 16 + step] for name in names]}
        if step == 1:
            prompts = [{"id": name, "prompt": "p", "prompt_tokens": 17, "sequences": 1} for name in names]
            line |= {"arrived": prompts, "admitted": names}
        if step % 16 == 1:
            size = step // 16 + 1
            line["tables"] = {
                name: {
                    "blocks": [0, *range(1 + i, 1 + num_sequences * size, num_sequences)],
                    "tokens": 15 + step,
                }
                for i, name in enumerate(names)
            }
        lines.append(line)
    return "".join(json.dumps(line) + "\n" for line in lines)


# ---------------------------------------------------------------- what is shown


def test_every_event_is_said_in_words(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND)
    for number, (_, expected) in enumerate(STEPS, start=1):
        go(page, number)
        assert words(page) == expected


def test_tables_pools_and_counts_of_a_step(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND)
    go(page, 2)
    assert lanes(page) == {"A.0": ["0×2", "2"], "A.1": ["0×2", "1"], "B": []}
    assert pool(page) == ["A×2", "A.1", "A.0", "", "", ""]
    assert counts(page) == {
        "step": "2 of 5", "blocks used": "3 of 6", "free": "3", "cached": "0", "shared": "1",
        "saved by sharing": "1 · 0.0 MiB", "waste": "2 slots · 17 %", "on the host": "0 of 4",
    }  # fmt: skip
    go(page, 3)
    assert lanes(page) == {"A.0": ["h0×2", "h1"], "A.1": ["h0×2", "h2"], "B": ["5", "4", "3"]}
    assert page.locator(".bv-status").all_inner_texts() == ["swapped out", "swapped out", "running"]
    assert pool(page) == ["c", "", "", "B", "B", "B"]
    assert pool(page, "The host pool") == ["A×2", "A.0", "A.1", ""]
    assert counts(page)["waste"] == "3 slots · 25 %" and counts(page)["on the host"] == "3 of 4"


def test_a_beam_search_steps_to_its_copies(beam_trace: str, open_trace: Callable[..., Any]) -> None:
    tables: dict[str, Any] = {}
    for text in beam_trace.splitlines()[1:]:
        line = json.loads(text)
        tables |= line.get("tables", {})
        if line.get("moves") and line["step"] > 2:  # at 2 the prompt's block is copied for the first time
            break
    page = open_trace(beam_trace)
    for _ in range(line["step"] - 1):
        page.get_by_role("button", name="Step forward").click()
    uses = Counter(block for table in tables.values() for block in table["blocks"])
    letter = page.locator(".bv-chip").first.inner_text().partition(".")[0]
    assert lanes(page) == {
        f"{letter}.{name[-1]}": [f"{b}" + (f"×{uses[b]}" if uses[b] > 1 else "") for b in table["blocks"]]
        for name, table in tables.items()
    }
    for _, source, destination, _ in line["moves"]:
        (writer,) = [name for name, table in tables.items() if destination in table["blocks"]]
        said = f"copy-on-write: block {source} → {destination} for {letter}.{writer[-1]}"
        assert said in words(page)


def test_hostile_text_stays_text(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND, title=f"{{{{TRACE}}}} {HOSTILE}")
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    assert HOSTILE in page.locator(".bv-prompt").first.text_content()
    assert page.locator("h1").inner_text() == f"{{{{TRACE}}}} {HOSTILE}"


# ---------------------------------------------------------------- hands


def test_the_keyboard_is_enough(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND)
    now = page.locator(".bv-now")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "block-view"
    for key, step in [("ArrowRight", "Step 2"), ("ArrowRight", "Step 3"), ("ArrowLeft", "Step 2"),
                      ("End", "After the last step"), ("ArrowRight", "After the last step"),
                      ("Home", "Step 1"), ("ArrowLeft", "Step 1")]:  # fmt: skip
        page.keyboard.press(key)
        assert now.inner_text().startswith(step), key
    page.keyboard.press(" ")
    assert page.get_by_role("button", name="Pause").count() == 1
    page.wait_for_function("document.querySelector('.bv-now').textContent.startsWith('Step 2')")
    page.keyboard.press(" ")
    assert page.get_by_role("button", name="Play").count() == 1
    for _ in range(12):  # Tab reaches every part, and the arrows still step from the slider and from a block
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.bv-pool') !== null"):
            break
    assert page.evaluate("document.activeElement.dataset.block") == "0"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.block") == "1"
    assert page.inner_text(".bv-about") == "Block 1: used by A.1 (its 1); 3 of 4 slots filled."
    page.keyboard.press("ArrowRight")
    assert now.inner_text().startswith("Step 3")
    assert page.inner_text(".bv-about") == "Block 1: free."
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "block-view"


def test_the_focus_is_not_lost_with_the_cell_that_had_it(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND)
    go(page, 3)
    page.locator(".bv-lane .bv-cell[data-block='3']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(".bv-now").startswith("Step 5")


@pytest.mark.parametrize(
    ("button", "begin", "end", "key", "then"),
    [
        ("Step forward", 5, "After the last step", "ArrowLeft", "Step 5"),
        ("Step back", 2, "Step 1", "End", "After"),
    ],
)
def test_a_step_button_keeps_the_focus_where_there_is_no_further_step(
    button: str, begin: int, end: str, key: str, then: str, open_trace: Callable[..., Any]
) -> None:
    page = open_trace(BY_HAND)
    go(page, begin)
    page.get_by_role("button", name=button).click()
    assert page.inner_text(".bv-now").startswith(end)
    page.keyboard.press("Enter")  # does nothing, and moves no focus
    assert page.inner_text(".bv-now").startswith(end)
    assert page.evaluate("document.activeElement.title") == button
    page.keyboard.press(key)
    assert page.inner_text(".bv-now").startswith(then)
    assert (
        page.get_by_role("button", name="Step forward").get_attribute("aria-disabled")
        == str(then == "After").lower()
    )


def test_what_waits_says_how_much_is_to_be_computed(open_trace: Callable[..., Any]) -> None:
    """A prompt of 5 tokens, of which 3 were computed; then all, and two more of the answer, the last of them
    sampled and not computed: 7 tokens. A request of several sequences has no one number."""
    tables = {"a": {"blocks": [0, 1], "tokens": 0}}
    steps: list[dict[str, Any]] = [
        {"arrived": [{"id": "a", "prompt": "", "prompt_tokens": 5, "sequences": 1},
                     {"id": "b", "prompt": "", "prompt_tokens": 2, "sequences": 2}],
         "admitted": ["a"], "tables": tables, "rows": [["a", 0, 3]]},
        {"preempted": ["a"], "dropped": ["a"], "admitted": ["b"],
         "tables": {"b.0": {"blocks": [0], "tokens": 0}}, "rows": [["b.0", 0, 2]]},
        {"tables": tables | {"b.0": {"blocks": [2], "tokens": 2}, "b.1": {"blocks": [2], "tokens": 2}},
         "rows": [["a", 0, 5]]},
        {"rows": [["a", 5, 6]]},
        {"preempted": ["a", "b"], "dropped": ["a", "b.0", "b.1"]},
    ]  # fmt: skip
    lines = [RUN, *({"step": number} | step for number, step in enumerate(steps, start=1))]
    page = open_trace("".join(json.dumps(line) + "\n" for line in lines))
    waiting = page.locator(".bv-lane[data-status=waiting] .bv-tokens")
    assert waiting.all_inner_texts() == ["2 prompt tokens"]
    go(page, 2)
    assert waiting.all_inner_texts() == ["5 tokens to compute"]
    go(page, 5)
    assert waiting.all_inner_texts() == ["7 tokens to compute", "to be computed again"]


def test_scrubbing_and_playing_to_the_end(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND)
    page.get_by_label("Step", exact=True).fill("4")
    assert page.inner_text(".bv-now").startswith("Step 4")
    assert page.get_by_label("Step", exact=True).get_attribute("aria-valuetext") == "step 4"
    page.get_by_label("Steps a second").select_option("20")
    page.get_by_role("button", name="Play").click()
    assert page.locator(".bv-words").get_attribute("aria-live") == "off"
    page.get_by_role("button", name="Play").wait_for()
    assert page.inner_text(".bv-now").startswith("After the last step")
    assert page.locator(".bv-words").get_attribute("aria-live") == "polite"
    assert page.get_by_role("button", name="Step forward").get_attribute("aria-disabled") == "true"


def test_a_block_lights_up_wherever_it_stands(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND)
    go(page, 2)
    lit = "() => [...document.querySelectorAll('.bv-lit')].map((each) => each.className.split(' ')[0])"
    page.locator(".bv-lane .bv-cell[data-block='2']").hover()
    assert sorted(page.evaluate(lit)) == ["bv-cell", "bv-cell", "bv-ref"]  # its lane, the pool, the words
    page.locator(".bv-pool .bv-cell[data-block='0']").first.hover()
    assert page.evaluate(lit) == ["bv-cell"] * 3  # two lanes and the pool
    page.locator(".bv-ref").first.hover()
    assert page.inner_text(".bv-about").startswith("Block 1: used by A.1")
    page.locator(".bv-pool .bv-cell[data-block='5']").click()
    go(page, 3)
    page.mouse.move(0, 0)
    assert page.inner_text(".bv-about") == "Block 5: used by B (its 0); 4 of 4 slots filled."  # it was kept


# ---------------------------------------------------------------- eyes and ears


def test_a_screen_reader_finds_names_and_sentences(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND)
    go(page, 4)
    assert page.get_by_role("group", name="Block view: a run of the paged KV cache, replayed").count() == 1
    blocks = page.get_by_role("list", name="The pool", exact=True).get_by_role("listitem")
    assert blocks.nth(0).locator(".bv-said").text_content() == (
        "block 0: shared by A.0 (its 0), A.1 (its 0); 4 of 4 slots filled"
    )
    assert blocks.nth(4).locator(".bv-said").text_content() == (
        "block 4: cached, used by nobody, number 1 to be evicted"
    )
    assert page.locator("button").evaluate_all(
        "(all) => all.every((button) => /[a-z]/i.test(button.ariaLabel ?? button.textContent))"
    )
    signs = page.locator(".bv-cell :is(.bv-mark, .bv-small, .bv-slots)")
    assert signs.evaluate_all("(all) => all.every((each) => each.ariaHidden)")


def test_a_small_phone_needs_no_sideways_scrolling(
    beam_trace: str, live: Callable[[str], Any], open_trace: Callable[..., Any]
) -> None:
    for trace in (BY_HAND, beam_trace, live("swap").trace, large_trace(50)):
        page = open_trace(trace, viewport={"width": 320, "height": 740})
        for step in (1, 5, 50):
            go(page, step)
            assert page.evaluate("document.documentElement.scrollWidth") == 320
        box = page.locator(".bv-controls select").bounding_box()
        assert box["y"] < 200 and box["height"] >= 40


@pytest.mark.parametrize(("motion", "moves"), [("reduce", False), ("no-preference", True)])
def test_motion_is_spared_where_it_is_unwanted(
    motion: str, moves: bool, open_trace: Callable[..., Any]
) -> None:
    page = open_trace(BY_HAND, reduced_motion=motion)
    durations = page.evaluate("""() => [...document.querySelectorAll(".block-view *")].map(
        (each) => parseFloat(getComputedStyle(each).transitionDuration))""")
    assert any(durations) == moves


def test_light_and_dark_follow_the_system_and_the_site(open_trace: Callable[..., Any]) -> None:
    paper = "() => getComputedStyle(document.querySelector('.block-view')).backgroundColor"
    light, dark = (open_trace(BY_HAND, color_scheme=scheme) for scheme in ("light", "dark"))
    assert light.evaluate(paper) == "rgb(255, 255, 255)"
    assert dark.evaluate(paper) == "rgb(22, 26, 31)"
    for page, scheme in ((light, "slate"), (dark, "default")):
        before = page.evaluate(paper)
        page.evaluate(f"document.body.dataset.mdColorScheme = {scheme!r}")
        assert page.evaluate(paper) != before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(scheme: str, open_trace: Callable[..., Any]) -> None:
    """At least 4.5 to 1, for every hue, filled and not."""
    ratios = open_trace(BY_HAND, color_scheme=scheme).evaluate("""() => {
        const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        const probe = document.querySelector(".block-view").appendChild(document.createElement("i"));
        const light = (...colours) => {
            pixel.fillStyle = "#fff";
            for (const colour of colours) {
                probe.style.color = colour;
                pixel.fillStyle = getComputedStyle(probe).color;
                pixel.fillRect(0, 0, 1, 1);
            }
            const linear = [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3).map((c) => c / 255)
                .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
        };
        const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const ink = light("var(--bv-ink)");
        const quiet = light("var(--bv-quiet)");
        const hues = [0, 1, 2, 3, 4, 5, 6, 7].map((hue) => `var(--bv-fill-${hue})`);
        return [
            ...hues.flatMap((hue) => [ratio(ink, light(hue)), ratio(ink, light(hue, "var(--bv-veil)"))]),
            ...["--bv-paper", "--bv-plate"].map((name) => ratio(quiet, light(`var(${name})`))),
        ];
    }""")
    assert len(ratios) == 18 and min(ratios) >= 4.5


# ---------------------------------------------------------------- large, live and broken traces


def test_a_step_of_a_large_trace_rebuilds_nothing(open_trace: Callable[..., Any]) -> None:
    page = open_trace(large_trace())
    assert page.locator(".bv-pool .bv-cell").count() == 640
    go(page, 500)
    changed, slowest = page.evaluate("""() => {
        const view = document.querySelector(".block-view").blockView;
        const seen = new MutationObserver(() => {});
        const changed = new Set();
        const all = { subtree: true, childList: true, attributes: true };
        seen.observe(document.querySelector(".bv-body"), all);
        const begin = performance.now();
        view.goto(501);
        for (const record of seen.takeRecords()) changed.add(record.target.closest(".bv-cell"));
        for (let step = 501; step <= 600; step++) view.goto(step);
        return [changed.size, (performance.now() - begin) / 100];
    }""")
    assert 0 < changed <= 2 * 20 + 2  # the last block of each of 20 sequences, in its lane and in the pool
    assert slowest < 100, "milliseconds a step"


def test_a_huge_pool_shows_what_was_used(open_trace: Callable[..., Any]) -> None:
    page = open_trace(large_trace(40, num_blocks=100_000))
    assert page.locator(".bv-pool .bv-cell").count() == 64
    assert "and 99,936 blocks more, never used" in page.locator(".bv-side").inner_text()


def test_lines_can_be_appended_while_a_run_goes_on(open_trace: Callable[..., Any]) -> None:
    lines = BY_HAND.splitlines()
    page = open_trace("\n".join(lines[:1]))
    assert page.inner_text(".bv-now") == "The trace has no step yet."
    append = "(line) => document.querySelector('.block-view').blockView.append(line)"
    for line, (_, expected) in zip(lines[1:], STEPS, strict=True):  # who looks at the last step follows
        page.evaluate(append, line)
        assert words(page) == expected
    go(page, 2)
    page.evaluate(append, json.dumps({"step": 7}))
    assert page.inner_text(".bv-now").startswith("Step 2")


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ('{"trace":1,\n{"step":1}\n', "line 1 of the trace is not JSON"),
        ('{"trace":2}\n', "not a trace of version 1"),
        ("", "not a trace of version 1"),
    ],
)
def test_a_trace_that_cannot_be_read_is_named(trace: str, message: str, browser: Any, tmp_path: Path) -> None:
    page = browser.new_page()
    page.set_content(
        '<div class="block-view" data-trace="#trace"></div><script type="x" id="trace"></script>'
    )
    page.evaluate("(trace) => (document.getElementById('trace').textContent = trace)", trace)
    for name in SCRIPTS:
        page.add_script_tag(path=VIEW / name)
    assert message in page.get_by_role("alert").inner_text()
    page.close()


def test_a_trace_that_breaks_off_shows_what_there_is(open_trace: Callable[..., Any]) -> None:
    page = open_trace(BY_HAND[:-40])
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    assert words(page) == STEPS[-2][1]
