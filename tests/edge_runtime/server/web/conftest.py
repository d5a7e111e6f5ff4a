"""A browser, a server with shipped bundles, a fresh page for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from service_tools import Server, hrm_serve

if TYPE_CHECKING:
    # not before a test needs it: without playwright it skips whatever imports it
    from playwright.sync_api import Playwright
    from web_tools import Browser, ConsoleMessage, Page

MODELS = ("sudoku-6x6", "sudoku", "maze-8x8", "logistics-6x6", "arc-7x7", "arc-15x15")
SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CLIPBOARD = ["clipboard-read", "clipboard-write"]
REFUSED = "Failed to load resource"  # how the browser notes each 4xx and 5xx that a test provokes


def find_chromium(playwright: Playwright) -> str | None:
    own = playwright.chromium.executable_path
    if Path(own).exists():
        return own
    for name in SYSTEM_BROWSERS:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from web_tools import sync_playwright

    with sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            missing = "no Chromium: run .venv/bin/playwright install chromium, or install chromium"
            if os.environ.get("HRM_BROWSER") == "required":
                pytest.fail(missing)
            pytest.skip(missing)
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site() -> Iterator[Server]:
    """`hrm-serve` with all models; who uses it requests a browser first, without which it skips."""
    with hrm_serve(*MODELS, "--slots=4") as server:
        yield server


@pytest.fixture(scope="session")
def window(browser: Browser) -> Iterator[tuple[Page, list[str]]]:
    """One window for all tests, and the faults in it: a new one would cost half a second a test."""
    from web_tools import new_page

    faults = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
            faults.append(message.text)

    size = {"width": 1200, "height": 900}
    with new_page(browser, viewport=size, permissions=CLIPBOARD) as page:
        page.on("console", note)
        page.on("pageerror", lambda error: faults.append(str(error)))
        yield page, faults


@pytest.fixture
def page(window: tuple[Page, list[str]], site: Server) -> Iterator[Page]:
    """The page as a new visitor finds it; a failing script or a breach of the policy fails it."""
    page, faults = window
    faults.clear()
    page.goto(f"{site.url}/livez")
    page.evaluate("localStorage.clear()")
    page.emulate_media(color_scheme="light")
    page.goto(site.url)
    page.wait_for_selector("#board [role=gridcell]")
    yield page
    page.unroute_all()
    assert faults == []


@pytest.fixture(params=[(1366, 768), (390, 844)], ids=["laptop", "phone"])
def sized_page(request: pytest.FixtureRequest, browser: Browser, site: Server) -> Iterator[Page]:
    """The page on screens that people have."""
    from web_tools import visit

    with visit(browser, site, request.param) as page:
        yield page
