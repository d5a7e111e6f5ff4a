"""Settings of every test."""

import os
from functools import cache

import pytest
from hypothesis import settings

# Before torch is imported, here and in child processes: at these sizes a second thread only waits.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTHONSAFEPATH"] = ""  # scripts of the tests import what lies beside them
settings.register_profile("unhurried", deadline=None)  # a busy machine fails no test
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs a GPU on a machine without one, and run files with browser tests last.

    Playwright keeps an event loop in the main thread, and then `asyncio.run` fails there.
    """
    for item in items:
        if item.get_closest_marker("gpu") and not sees_gpu(item.path.parent.name):
            item.add_marker(pytest.mark.skip("no CUDA device on this machine"))
    with_browser = {item.path for item in items if uses_browser(item)}
    items.sort(key=lambda item: item.path in with_browser)


@cache
def sees_gpu(room: str) -> bool:
    """Whether this room's tests see a card: through PyTorch, or through the driver alone."""
    if room in ("train", "export"):
        import torch

        return torch.cuda.is_available()
    from hrm_edge_runtime.engines.factory import num_gpus

    return num_gpus() > 0


def uses_browser(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "browser" in fixtures
