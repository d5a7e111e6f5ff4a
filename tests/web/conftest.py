"""A browser, a server with every shipped bundle and a small one for ARC, and a fresh page for each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "service"))  # importlib mode leaves the path to us
sys.path.insert(0, str(HERE))

from service_tools import Server, free_port, wait_for

if TYPE_CHECKING:
    from web_tools import Browser, Page  # not before a test needs it: without playwright it skips what imports it

MODELS = ("sudoku-6x6", "sudoku", "maze-8x8", "logistics-6x6")
PATIENCE_MS = 30_000
REFUSED = "Failed to load resource"  # how the browser notes each 4xx and 5xx that a test provokes


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from web_tools import find_chromium, sync_playwright

    with sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            pytest.skip("no Chromium: playwright install chromium, or install the package chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Server]:  # noqa: ARG001
    """`hrm-serve` with all models; asks for the browser so that nothing is started where there is none."""
    from arc_bundle import write_arc_bundle

    arc = write_arc_bundle(tmp_path_factory.mktemp("bundles") / "arc.bundle")
    port = free_port()
    served = [*MODELS, str(arc), f"--port={port}", "--threads=1", "--slots=4"]
    server = Server([sys.executable, "-c", "from hrm_edge_runtime.cli import serve; serve()", *served], port)
    try:
        wait_for(lambda: server.status("/readyz") == 200)
        yield server
    finally:
        server.close()


@pytest.fixture
def page(browser: Browser, site: Server) -> Iterator[Page]:
    """The page as a new visitor finds it; a script that fails, or a breach of the policy, fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, accept_downloads=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if is_fault(said.type, said.text) else None)
    page.goto(site.url)
    page.wait_for_selector("#board [role=gridcell]")
    yield page
    context.close()
    assert faults == []


def is_fault(kind: str, text: str) -> bool:
    return kind in ("error", "warning") and not text.startswith(REFUSED)
