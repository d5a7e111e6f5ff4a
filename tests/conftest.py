"""What holds for every test."""

import os

import pytest

# Before torch is imported, here and in child processes: at these sizes a second thread only waits.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with browser tests run last: Playwright keeps an event loop in the main thread and asyncio.run refuses."""
    with_browser = {item.path for item in items if "browser" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path in with_browser)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many browser tests were left out, and the one command that brings them back."""
    skipped = terminalreporter.stats.get("skipped", [])
    count = sum("no Chromium" in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} browser tests were left out: .venv/bin/playwright install chromium")
