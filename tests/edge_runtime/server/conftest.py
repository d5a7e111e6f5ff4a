"""Fixtures of the server's tests."""

from collections.abc import Iterator

import pytest
from asgi_tools import QUICK, app_over, serving
from starlette.testclient import TestClient


@pytest.fixture
def keyless() -> Iterator[TestClient]:
    """A client of the scripted application in this process, which is ready and asks for no key."""
    with serving(app_over(QUICK)) as http:
        yield http
