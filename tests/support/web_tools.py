"""The page in a real browser: where it is, what it shows, and how a person would use it."""

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

from playwright.sync_api import Browser, Error, Locator, Page, Playwright, Route, expect, sync_playwright

__all__ = ["Browser", "Error", "Locator", "Page", "Playwright", "Route", "expect", "sync_playwright"]

PATIENCE_MS = 60_000  # how long a busy machine may take for what usually takes a second
expect.set_options(timeout=PATIENCE_MS)

DONE = "#verdict:is(.good, .bad, .open)"
SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PASTE = """text => {
  const clipboardData = new DataTransfer();
  clipboardData.setData("text", text);
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
}"""


def find_chromium(playwright: Playwright) -> str | None:
    """Playwright's own Chromium where it is installed, else the system's."""
    own = playwright.chromium.executable_path
    return own if Path(own).exists() else next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)


def choose(page: Page, model: str, sample: str | None = None) -> None:
    page.select_option("#model", model)
    if sample:
        page.select_option("#samples", sample)


def paste(page: Page, text: str) -> None:
    page.evaluate(PASTE, text)


def solve(page: Page) -> str:
    """Press Solve and wait; the title of the verdict."""
    page.click("#solve")
    return verdict(page)


def verdict(page: Page) -> str:
    page.wait_for_selector(DONE)
    return page.inner_text("#verdict-title")


def cell(page: Page, row: int, col: int) -> Locator:
    """A cell of the question's board, from 1."""
    return page.locator(f"#board [role=row]:nth-child({row}) [role=gridcell]:nth-child({col})")


def digits(page: Page) -> str:
    """What stands in the cells of the board, a point where nothing does."""
    cells = page.locator("#board [role=gridcell]").all_text_contents()
    return "".join(text or "." for text in cells)


def screen(page: Page, name: str, *, whole: bool = True) -> None:
    """A picture for docs/screens, where HRM_SCREENS names a folder for them."""
    folder = os.environ.get("HRM_SCREENS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.mouse.move(0, 0)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=whole)
