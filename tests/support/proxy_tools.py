"""HAProxy with the shipped configuration of a fleet, in front of servers of a test."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from service_tools import Server, free_port, wait_for

CONFIGURATION = Path(__file__).parents[2] / "docker" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
needs_haproxy = pytest.mark.skipif(
    HAPROXY is None, reason="no haproxy on this machine: install the package haproxy"
)


def environment(secret: str) -> dict[str, str]:
    return {**os.environ, "HRM_FLEET_KEY": secret}


@contextlib.contextmanager
def proxy(
    folder: Path, boards: Sequence[Server], secret: str, limit: int = 50_000
) -> Iterator[str]:
    """Run HAProxy over these boards, and yield its address when a board is ready behind it.

    `limit` is the number of requests that a client may send in ten seconds.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    configuration = folder / "haproxy.cfg"
    configuration.write_text(_configured(port, boards).replace("gt 50000", f"gt {limit}"))
    command = [str(HAPROXY), "-db", "-f", str(configuration)]
    with proxy_process(command, url, environment(secret), secret):
        yield url


@contextlib.contextmanager
def proxy_process(
    command: list[str], url: str, environment: dict[str, str], secret: str = ""
) -> Iterator[None]:
    """Run a proxy; begins when a server behind it is ready."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=environment, **quiet)
    with process, httpx.Client(headers={"x-api-key": secret}) as http:
        try:
            wait_for(lambda: _answers(http, f"{url}/readyz"))
            yield
        finally:
            process.terminate()


def _configured(port: int, boards: Sequence[Server]) -> str:
    """The shipped configuration with the addresses of these boards, at most three."""
    text = CONFIGURATION.read_text()
    text = text.replace("bind :8000", f"bind 127.0.0.1:{port}")
    for number in (1, 2, 3):
        line = ""
        if number <= len(boards):
            address = boards[number - 1].url.removeprefix("http://")
            line = f"    server board{number} {address}"
        text, count = re.subn(rf" *server board{number} \S+", line, text)
        assert count == 2
    return text


def _answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).status_code == 200
    except httpx.TransportError:
        return False
