"""Proxies with their shipped configurations in front of servers of a test."""

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

FOLDER = Path(__file__).parents[2] / "docker"
CONFIGURATION = FOLDER / "haproxy.cfg"
PATH = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
HAPROXY = shutil.which("haproxy", path=PATH)
COMMANDS = {  # of a proxy for one board, by the name of its configuration
    "nginx.conf": ["nginx", "-p", "FOLDER", "-e", "stderr", "-g", "daemon off; pid pid;", "-c"],
    "Caddyfile": ["caddy", "run", "--adapter", "caddyfile", "--config"],
}
BELOW = {  # what puts the board of a configuration under a path
    "nginx.conf": {"location / {": "location /hrm/ {", "http://board;": "http://board/;"},
    "Caddyfile": {"reverse_proxy": "handle_path /hrm/* {\nreverse_proxy", "\n}\n": "\n}\n}\n"},
}
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


@contextlib.contextmanager
def proxied(name: str, board: Server, folder: Path, *, is_below: bool = False) -> Iterator[str]:
    """Run nginx or Caddy, and yield the board's address behind it, at the root or below /hrm/."""
    program, *options = COMMANDS[name]
    path = shutil.which(program, path=PATH)
    if path is None:
        pytest.skip(f"no {program} on this machine: install the package {program}")
    port = free_port()
    text = (FOLDER / name).read_text()
    changes = {":8000": f":{board.port}", "8080": str(port)}
    if is_below:
        changes |= BELOW[name]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    arguments = [option.replace("FOLDER", str(folder)) for option in options]
    url = f"http://127.0.0.1:{port}/hrm" if is_below else f"http://127.0.0.1:{port}"
    home = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with proxy_process([path, *arguments, str(folder / name)], url, home):
        yield url
