"""The numbers in the site's pictures, calculated again without the library, and how the pictures look."""

from __future__ import annotations

import heapq
import json
import random
import re
import sys
from array import array
from hashlib import sha256
from math import ceil, exp
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest
import torch

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_build"))

import pictures  # noqa: E402

PAGES = [path for path in DOCS.rglob("*.md") if "_build" not in path.parts]
LAYOUTS = ("wide", "narrow")
LOOK = """(wide) => {
  const rgb = (colour) => {
    const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    context.fillStyle = colour; context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colour) => rgb(colour).map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0);
  const page = getComputedStyle(document.body).backgroundColor, found = [];
  for (const svg of document.querySelectorAll("svg")) {
    if (!svg.clientWidth) continue;
    const room = svg.viewBox.baseVal, name = svg.getAttribute("aria-labelledby");
    const texts = [...svg.querySelectorAll("text")].map((each) => [each.textContent, each.getBBox(), each]);
    const boxes = [...svg.querySelectorAll("rect")].map((each) => [each.getBBox(), each]);
    texts.forEach(([words, box, text], i) => {
      const x = box.x + box.width / 2, y = box.y + box.height / 2;
      if (box.x < -1 || x + box.width / 2 > room.width || box.y < -1 || y + box.height / 2 > room.height)
        found.push([name, "outside", words]);
      for (const [other, its] of texts.slice(i + 1))
        if (box.x < its.x + its.width - 1 && its.x < box.x + box.width - 1
            && box.y < its.y + its.height - 3 && its.y < box.y + box.height - 3)
          found.push([name, "overlap", words, other]);
      const around = boxes.filter(
        ([its]) => its.x < x && x < its.x + its.width && its.y < y && y < its.y + its.height);
      const labelled = around.filter(([its]) => Math.abs(its.x + its.width / 2 - x) < 1);
      if (labelled.length && Math.max(...labelled.map(([its]) => its.width)) < box.width)
        found.push([name, "wider than its box", words]);
      const fills = around.map(([, rect]) => getComputedStyle(rect).fill).filter((fill) => fill !== "none");
      const ink = light(getComputedStyle(text).fill), paper = light(fills.at(-1) ?? page);
      const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      if (contrast < 4.5) found.push([name, "faint", words, contrast]);
    });
  }
  return found;
}"""


class Shape(NamedTuple):
    """A box or a line of text of a picture."""

    kind: str
    x: float
    y: float
    width: float
    words: str


class Picture(NamedTuple):
    """What a picture draws in one of its layouts."""

    title: str
    description: str
    texts: list[Shape]
    boxes: list[Shape]

    @property
    def words(self) -> list[str]:
        """The lines of text."""
        return [text.words for text in self.texts]

    def count(self, kind: str) -> int:
        """How many boxes there are of a kind, those of the legend included."""
        return sum(box.kind == kind for box in self.boxes)


def draw(name: str, layout: str = "wide") -> Picture:
    """A picture as a reader gets it: from its SVG."""
    svg = next(each for each in ElementTree.fromstring(pictures.figure(name)) if each.get("class") == layout)
    shapes = [
        Shape(
            each.get("class") or "",
            float(each.get("x", 0)),
            float(each.get("y", 0)),
            float(each.get("width", 0)),
            each.text or "",
        )
        for each in svg
    ]
    texts = [shape for shape, each in zip(shapes, svg, strict=True) if each.tag == "text"]
    boxes = [shape for shape, each in zip(shapes, svg, strict=True) if each.tag == "rect"]
    return Picture(svg[0].text or "", svg[1].text or "", texts, boxes)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_told_in_words_and_names_no_colour(name: str) -> None:
    html = pictures.figure(name)
    figure = ElementTree.fromstring(html)
    assert [each.get("class") for each in figure] == ["wide", "narrow"]
    for svg in figure:
        ids = {each.get("id") for each in svg.iter()}
        assert svg.get("role") == "img"
        assert svg.get("aria-labelledby") in ids and svg.get("aria-describedby") in ids
        assert len(svg[0].text or "") > 20 and len(svg[1].text or "") > 60
    assert not re.search(r"#[0-9a-f]{3}|rgb|fill=|stroke=|style=", html)
    assert len(html) < 60_000


def test_every_picture_stands_on_a_page_and_none_is_drawn_with_letters() -> None:
    asked: set[str] = set()
    for path in PAGES:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        asked |= set(re.findall(r"^\{\{ picture (\w+) \}\}$", text, re.MULTILINE))
        assert not re.search("[│├└┌┐┘┤┬┴]|──", text), path.name
    assert asked == set(pictures.PICTURES)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fold_agrees_with_a_softmax_over_what_was_seen(layout: str) -> None:
    scores, values = [1, 3, 2, 5, 0], [1, 2, 3, 4, 5]
    picture = draw("fold", layout)
    for stop in (2, 4, 5):
        largest = max(scores[:stop])
        weights = [exp(score - largest) for score in scores[:stop]]
        weighted = sum(weight * value for weight, value in zip(weights, values, strict=False))
        for line in (f"maximum m = {largest}", f"sum ℓ = {sum(weights):.3f}", f"weighted a = {weighted:.3f}"):
            assert line in picture.words
    assert f"= {exp(3 - 5):.3f}" in picture.words and "= 1.000" in picture.words
    total = sum(exp(score) for score in scores)
    result = sum(exp(score) * value for score, value in zip(scores, values, strict=True)) / total
    assert any(words.endswith(f"= {result:.3f}") for words in picture.words)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_position_is_drawn_in_the_slot_that_the_picture_names(layout: str) -> None:
    picture = draw("page_tables", layout)
    last = picture.words.index("block table")
    # The second of the two drawn fives is the one in the pool; rows of the pool are numbered at its right.
    five = [text for text in picture.texts[last:] if text.words == "5" and text.kind == "small"][1]
    block = next(each for each in picture.texts[last:] if each.kind == "quiet small" and each.y == five.y
                 and each.x > five.x and each.words.isdigit())  # fmt: skip
    first = min(text.x for text in picture.texts[last:] if text.y == five.y and text.kind == "small"
                and five.x - 100 < text.x)  # fmt: skip
    slot = 4 * int(block.words) + round((five.x - first) / 23)
    assert f"slot {block.words} × 4 + {slot % 4} = {slot}" in picture.words
    assert f"entry 1 names physical block {block.words}" in picture.words
    page, offset = divmod(4500, 4096)
    assert f"virtual address 4,500 = {page} × 4,096 + {offset}" in picture.words
    assert f"physical address 3 × 4,096 + {offset} = {3 * 4096 + offset:,}" in picture.words


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_strip_shows_as_many_slots_as_it_says(layout: str) -> None:
    # Tokens now, at the end, and at most: A and C; B had ten slots between them and has ended.
    now, final, most = (8, 7), (14, 13), (22, 20)
    reserved, internal = sum(final) - sum(now), sum(most) - sum(final)
    external = 64 - sum(most)
    blocks = [ceil(tokens / 4) for tokens in (*now, 9)]
    empty = 4 * sum(blocks) - sum(now) - 9
    picture = draw("waste_strip", layout)
    assert picture.count("h0") == 2 * 8 and picture.count("h2") == 2 * 7 and picture.count("h1") == 9
    assert picture.count("reserved") == reserved + 1, "and one in the legend"
    assert picture.count("external") == external + 1
    assert picture.count("internal") == internal + empty + 1
    assert picture.count("") == 4 * (16 - sum(blocks))
    assert len(picture.boxes) == 2 * 64 + 3
    assert f"{empty} slots are empty, {16 - sum(blocks)} blocks are free" in " ".join(picture.words)
    assert f"{external} are free, but no gap is that large" in " ".join(picture.words)
    assert max(10, external - 10) < 16, "no gap has room for D"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bytes_of_the_pool_are_those_of_a_tensor(layout: str) -> None:
    pool = torch.empty(12, 30, 2, 16, 3, 64, dtype=torch.float32, device="meta")
    block, layer, half, slot, head, _ = (4 * stride for stride in pool.stride())
    words = draw("pool_tensor", layout).words
    assert words.count(f"the pool, 1 GiB: {2**30 // block:,} blocks") == 1
    for line in (
        f"block 11, {block:,} bytes: 30 layers",
        f"layer 7, {layer:,} bytes: keys, then values",
        f"keys, {half:,} bytes: 16 slots",
        f"slot 5, {slot:,} bytes: 3 KV heads",
        f"KV head 0, {head:,} bytes: 64 numbers of 4 bytes",
        f"This key begins at byte {4 * pool[11, 7, 0, 5].storage_offset():,} of the pool.",
    ):
        assert line in words


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_take_the_steps_that_a_calculation_says(layout: str) -> None:
    requests = [3, 12, 4, 5, 9, 2, 8, 3]
    static = sum(max(requests[i : i + 4]) for i in (0, 4))
    ends = [0] * 4
    for tokens in requests:  # each takes the place that is free first
        heapq.heappush(ends, heapq.heappop(ends) + tokens)
    picture = draw("batches", layout)
    for words, steps in (("Static batches", static), ("Continuous batching", max(ends))):
        assert f"{words}: {steps} steps" in picture.words
        assert f"{4 * steps - sum(requests)} of {4 * steps} cells idle" in picture.words
    step = max(box.width + 1.5 for box in picture.boxes) / 12  # B's bar
    drawn = [round((box.width + 1.5) / step) for box in picture.boxes if box.kind.startswith("h")]
    assert drawn == requests * 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prompt_gets_what_the_decodes_leave_of_a_step(layout: str) -> None:
    picture = draw("chunks", layout)
    done, step = 0, 3  # L comes at step 3
    while done < 38:
        stop = min(38, done + 16 - 2)  # A and B decode
        assert f"in step {step} tokens {done} to {stop - 1}" in picture.description
        assert any(words.endswith(f"{done}–{stop - 1}") for words in picture.words)
        done, step = stop, step + 1
    assert f"in step {step}" not in picture.description
    # A computes 7 tokens of prompt and its first token comes with them: 8 tokens take 8 steps.
    assert picture.words.count("A") == 8 and picture.words.count("B") == 6 and picture.words.count("L") == 5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_chain_is_the_hash_of_all_tokens_so_far(layout: str) -> None:
    prompts = ["You are a kind teacher and be brief What is a page table",
               "You are a kind teacher and be brief Why is the sky blue"]  # fmt: skip
    vocabulary = sorted({word for prompt in prompts for word in prompt.split()})
    picture = draw("chain", layout)
    blocks: dict[str, str] = {}
    for prompt in prompts:
        digest = sha256(b"(None,)").digest()
        words = prompt.split()
        for start in range(0, 12, 4):
            part = words[start : start + 4]
            digest = sha256(digest + array("q", map(vocabulary.index, part)).tobytes()).digest()
            assert f"hash {digest.hex()[:6]}" in picture.words
            found = re.search(f"block (\\d) holds “{' '.join(part)}” under hash {digest.hex()[:6]}",
                              picture.description)  # fmt: skip
            assert found
            blocks[" ".join(part)] = found[1]
    head, second, a, b = blocks.values()
    assert len(set(blocks.values())) == 4
    # A's last block was used when A ended; the other three when B ended, tails first.
    line = [text.words for text in picture.texts if text.kind == "bold" and text.words.isdigit()]
    assert line == [a, b, second, head]
    assert f"evicts {a}." in " ".join(picture.words)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_splits_merge_to_a_softmax_over_the_whole_context(layout: str) -> None:
    picture = draw("splits", layout)
    for sequence, tokens in enumerate((90, 700, 3)):
        chance = random.Random(sequence)
        pairs = [(chance.gauss(0, 1.5), chance.gauss(0, 1)) for _ in range(tokens)]
        for part in (pairs[i : i + 256] for i in range(0, tokens, 256)):
            largest = max(score for score, _ in part)
            assert f"m {largest:.2f}" in picture.words
            assert f"ℓ {sum(exp(score - largest) for score, _ in part):.2f}" in picture.words
        output = sum(exp(s) * v for s, v in pairs) / sum(exp(s) for s, _ in pairs)
        assert any(words.endswith(f"o {output:.3f}".replace("-", "−")) for words in picture.words)
    programs, busy = 3 * 3 * 4, 3 * (1 + 3 + 1)
    assert f"{programs} programs for 3 KV heads, {busy} with work." in picture.words
    assert picture.count("idle") == (programs - busy) // 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_gpu_keeps_its_share_of_the_heads(layout: str) -> None:
    token = 2 * 80 * (8 // 4) * 128 * 2
    blocks = int(0.9 * 80 * 2**30 - 141e9 / 4) // (16 * token)
    words = draw("tensor_parallelism", layout).words
    assert words.count(f"{token // 1024} KiB per token") == words.count(f"{blocks:,} blocks") == 4
    for gpu in range(4):
        assert f"query heads {16 * gpu}–{16 * gpu + 15}" in words
        assert f"KV heads {2 * gpu}–{2 * gpu + 1}" in words


def test_the_charts_say_what_a_calculation_says() -> None:
    chance = random.Random(0)
    lengths = [max(8, min(2048, int(chance.lognormvariate(5.45, 0.9)))) for _ in range(2000)]
    waste = draw("waste").description
    for size, words in ((16, "blocks of 16 leave"), (256, "Blocks of 256 leave"), (2048, "blocks of 2,048")):
        slots = sum(ceil(length / size) * size for length in lengths)
        assert f"{words} {100 * (1 - sum(lengths) / slots):.1f} %" in waste
    mean = sum(lengths) / 2000
    assert f"The formula says {100 * 7.5 / (mean + 7.5):.1f} %" in waste

    sizes = draw("cache_size").description
    assert f"{2 * 40 * 40 * 128 * 2 * 2048 / 2**30:.3g} GiB for OPT-13B" in sizes
    assert f"{2 * 30 * 3 * 64 * 2 * 2048 / 2**30:.3g} GiB for SmolLM2-135M" in sizes

    reservation = draw("reservation").description
    for line in reservation.split(". ")[:3]:
        assert sum(map(float, re.findall(r"([\d.]+) %", line))) == pytest.approx(100, abs=0.2)
    assert (
        f"Orca (Max): {100 * sum(max(1, n * 2 // 3) for n in lengths[:8]) / 16_384:.1f} % tokens"
        in reservation
    )

    measured = json.loads((ROOT / "benchmarks" / "results" / "cpu-paper.json").read_text())
    curves = next(
        each["curves"] for each in measured["figures"] if each["title"].endswith("sharegpt, opt-13b")
    )
    best = max(rate for rate, seconds in curves["paged"] if seconds <= 0.25)
    assert f"vLLM up to {best:.2f}" in draw("rates").description


def test_the_axes_of_what_is_proportional_are_linear() -> None:
    svg = ElementTree.fromstring(pictures.figure("cache_size"))[0]
    for line in (
        each
        for each in svg
        if (each.get("class") or "").startswith("curve") and len(each.get("points", "")) > 40
    ):
        points = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
        (x0, y0), (x1, y1), (x2, y2) = points[0], points[4], points[8]
        assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y1 - y0 == pytest.approx(y2 - y1, abs=0.2)


@pytest.mark.parametrize("scheme, paper", [("light", "#ffffff"), ("dark", "#1e2129")])
def test_words_of_pictures_fit_and_can_be_read(browser: Any, tmp_path: Path, scheme: str, paper: str) -> None:
    files = (ROOT / "minipaged" / "view" / "block_view.css", DOCS / "assets" / "pictures.css")
    css = "".join(path.read_text() for path in files)
    body = "".join(map(pictures.figure, pictures.PICTURES))
    path = tmp_path / "pictures.html"
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><style>{css} body {{ background: {paper} }}</style>'
        f'<body style="color-scheme: {scheme}">{body}',
        encoding="utf-8",
    )
    page = browser.new_page()
    for width, layout in ((390, "narrow"), (900, "wide")):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(path.as_uri())
        shown = page.locator("svg:visible")
        assert shown.count() == len(pictures.PICTURES)
        assert set(shown.evaluate_all("(all) => all.map((each) => each.classList[0])")) == {layout}
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(LOOK, width) == []
    page.close()
