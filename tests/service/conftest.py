"""What the tests of the server share. Helpers stand beside them, and importlib mode leaves the path to us."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted_server import examples as scripted_examples
from service_tools import Server, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A ready scripted server with quick steps, shared; leave it as you found it."""
    with running() as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="session")
def examples() -> dict[str, str]:
    """Questions that the scripted engine can answer, with their answers."""
    return scripted_examples()
