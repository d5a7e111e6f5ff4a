"""Fixtures of the runtime's tests; the helpers behind them are in tests/support."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest
from service_tools import Server, running
from tiny_bundle import write_tiny_bundle


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A ready scripted server with quick steps, shared; leave it as you found it."""
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real bundle directory; read it only, copy it to change it."""
    return write_tiny_bundle(tmp_path_factory.mktemp("bundles") / "tiny.bundle")


@pytest.fixture
def copied(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of the tiny bundle, to be changed."""
    return copytree(tiny_bundle, tmp_path / "tiny.bundle")


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial takes a second; test_trial.py has its laws, and server processes make them."""

    async def passed(*_: object, **__: object) -> None:
        pass

    monkeypatch.setattr("hrm_parity.trial.try_bundle", passed)
