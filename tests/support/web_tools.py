"""The page in a real browser, used as a person uses it."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from service_tools import Server

pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)

from PIL import Image
from playwright.sync_api import Browser as Browser
from playwright.sync_api import Error as Error
from playwright.sync_api import Locator as Locator
from playwright.sync_api import Page as Page
from playwright.sync_api import Request as Request
from playwright.sync_api import Route as Route
from playwright.sync_api import expect as expect
from playwright.sync_api import sync_playwright as sync_playwright

PATIENCE_MS = 60_000  # of one wait; a busy machine takes ten times as long as a quiet one
expect.set_options(timeout=PATIENCE_MS)

Size = tuple[int, int]
LAPTOPS = [(1366, 768), (1440, 900)]
PHONE = (390, 844)
SIZES = [LAPTOPS[0], PHONE]
NUM_COLORS = 256
GLOW_MS = 900  # cells that changed last light up
BOARD = "#board [role=gridcell]"
DONE = "#verdict:is(.good, .bad, .open)"
PASTE = """text => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text", text);
  const options = { clipboardData, bubbles: true, cancelable: true };
  document.body.dispatchEvent(new ClipboardEvent("paste", options));
}"""


@contextmanager
def new_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page of its own, without what others have stored; every wait of it has a bound."""
    with browser.new_context(**options) as context:
        context.set_default_timeout(PATIENCE_MS)
        yield context.new_page()


@contextmanager
def visit(
    browser: Browser, site: Server, size: Size, address: str = "/", **options: Any
) -> Iterator[Page]:
    """A new visitor on a screen of that size; a script that fails, fails the test."""
    width, height = size
    is_phone = size == PHONE
    faults = []
    with new_page(
        browser,
        viewport={"width": width, "height": height},
        has_touch=is_phone,
        is_mobile=is_phone,
        permissions=["clipboard-read", "clipboard-write"],
        **options,
    ) as page:
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{site.url}{address}")
        page.wait_for_selector(BOARD, state="attached")
        yield page
    assert faults == []


def width_of(page: Page) -> int:
    return page.viewport_size["width"]


def require_no_sideways_scroll(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == width_of(page)


def choose(page: Page, model: str, sample: str | None = None) -> None:
    page.select_option("#model", model)
    if sample:
        page.select_option("#samples", sample)


def paste(page: Page, text: str) -> None:
    page.evaluate(PASTE, text)


def think_for(page: Page, segments: int) -> None:
    """Let the next solves run so many segments; a curve needs two."""
    page.evaluate(f"document.querySelector('#segments-wanted').value = '{segments}'")
    page.evaluate("document.querySelector('#policy').value = 'fixed'")


def solve(page: Page) -> str:
    page.click("#solve")
    return verdict(page)


def verdict(page: Page) -> str:
    page.wait_for_selector(DONE)
    return page.inner_text("#verdict-title")


def cell(page: Page, row: int, col: int) -> Locator:
    """Return a cell of the question's board; rows and columns count from 1."""
    row_selector = f"#board [role=row]:nth-child({row})"
    return page.locator(f"{row_selector} [role=gridcell]:nth-child({col})")


def digits(page: Page) -> str:
    """Return the text of the board's cells, with a point for an empty one."""
    cells = page.locator(BOARD).all_text_contents()
    return "".join(text or "." for text in cells)


PAINTED = """canvas => {
  if (!canvas.width) return "";
  const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, -4, -4);
  const [red, green, blue] = context.getImageData(0, 0, 1, 1).data;
  return `rgb(${red}, ${green}, ${blue})`;
}"""


def painted(canvas: Locator) -> str:
    """Return the color of a canvas near its upper left corner; empty if it is not painted."""
    return canvas.evaluate(PAINTED)


def screen(page: Page, name: str, *, whole: bool = True, after_ms: int = GLOW_MS) -> None:
    """Take a picture for docs/screens, after a while, if HRM_SCREENS names a folder."""
    folder = os.environ.get("HRM_SCREENS")
    if not folder:
        return
    path = Path(folder) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.mouse.move(0, 0)
    if whole:
        page.evaluate("scrollTo(0, 0)")  # or else the right column begins where the screen does
    page.wait_for_timeout(after_ms)
    content = page.screenshot(full_page=whole)
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture.quantize(NUM_COLORS).save(path, optimize=True)  # a third of the bytes
