"""Draw the README's moving picture: the block view replays the recording of the tour, in both colour schemes.

A Chromium takes a picture of each step. Pillow makes an animated WebP of them.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

import outputs
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from minipaged.view.page import write_page

PICTURES = outputs.ROOT / "docs" / "assets"
MOST_BYTES = 1_000_000
SIZE = {"width": 960, "height": 620}
FIRST_MS, STEP_MS, LAST_MS = 2500, 1300, 3500
BARE = """
    body { margin: 0; padding: 0; max-width: none; }
    h1, .bv-controls, .bv-about, .bv-legend, .bv-counts, .bv-keys { display: none !important; }
    .block-view.block-view.block-view { border: 0; border-radius: 0; padding: 14px 20px; min-height: 100vh; }
    * { animation: none !important; transition: none !important; }
"""


def main() -> None:
    """Write both pictures, and fail if one is too large for the README."""
    trace = (outputs.TRACES / "tour.jsonl").read_text(encoding="utf-8")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page = Path(folder, "page.html")
        write_page(trace, page, "The block view")
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            path = PICTURES / f"block_view_{scheme}.webp"
            frames = shots(browser, page, scheme)
            times = [FIRST_MS, *[STEP_MS] * (len(frames) - 2), LAST_MS]
            frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=80)
            print(f"{path.relative_to(outputs.ROOT)}: {len(frames)} steps, {path.stat().st_size:,} bytes")
            assert path.stat().st_size < MOST_BYTES
        browser.close()


def shots(browser: Browser, path: Path, scheme: str) -> list[Image.Image]:
    """Return a picture of every step."""
    page = browser.new_page(viewport=SIZE, color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page.goto(path.as_uri())
    page.add_style_tag(content=BARE)
    pictures = []
    for step in range(1, int(page.get_attribute(".bv-controls input", "max") or 1)):
        page.evaluate(f"document.querySelector('.block-view').blockView.goto({step})")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        pictures.append(Image.open(io.BytesIO(page.screenshot())))
    page.close()
    return pictures


if __name__ == "__main__":
    main()
