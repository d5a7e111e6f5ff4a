"""What holds for every test."""

import os

import pytest

# Before torch is imported, here and in child processes: at these sizes a second thread only waits.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests run last: Playwright keeps an event loop in the main thread, where asyncio.run then refuses."""
    items.sort(key=lambda item: "browser" in getattr(item, "fixturenames", ()))
