"""Servers for tests: real processes on a free port."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

PATIENCE_S = 60.0  # how long a busy machine may take for what usually takes a second


class Server:
    """A server process on a free port, from a command that takes `--port`; its standard error is kept in `log`.

    `options` are those of `httpx.Client`, for every request. It runs until the `with` block ends.
    """

    def __init__(self, command: list[str], scheme: str = "http", **options: Any) -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [*command, f"--port={self.port}"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, **options)
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self._lines.extend(self.process.stderr)

    def status(self, path: str) -> int:
        """The status of a GET, 0 where nothing listens."""
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return 0

    def slots(self) -> Any:
        return self.http.get("/slots").json()

    def solve(self, puzzle: object, **fields: object) -> httpx.Response:
        return self.http.post("/solve", json={"puzzle": puzzle, **fields})

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.status("/readyz") == 200)

    def exit_status(self) -> int:
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


def wait_for(holds: Callable[[], bool], every_s: float = 0.02) -> None:
    """Wait until a condition holds."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s, "it never came true"
        time.sleep(every_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(name: str, *arguments: object) -> list[str]:
    start = {
        "serve": "from hrm_edge_runtime.cli import serve as main",
        "solve": "from hrm_edge_runtime.solve.cli import main",
        "data": "from hrm_puzzles.cli import main",
        "train": "from hrm_train.cli import main",
        "eval": "from hrm_export.eval_cli import main",
        "export": "from hrm_export.cli import main",
        "parity": "from hrm_edge_runtime.parity.cli import main",
    }
    return [sys.executable, "-c", f"{start[name]}; main()", *map(str, arguments)]


def scripted_command(**options: float | str | Path) -> list[str]:
    """Options are those of `scripted_server.py`, with underscores."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return [sys.executable, str(Path(__file__).parent / "scripted_server.py"), *flags]


@contextlib.contextmanager
def running(**options: float | str | Path) -> Iterator[Server]:
    """A scripted server that is alive."""
    with Server(scripted_command(**options)) as server:
        wait_for(lambda: server.status("/livez") == 200)
        yield server


@contextlib.contextmanager
def asking(server: Server, puzzles: list[str]) -> Iterator[list[Future[httpx.Response]]]:
    """Task for all of them at once, each over a connection of its own, and wait until the server holds them all."""
    with ThreadPoolExecutor(len(puzzles)) as pool:

        def ask(puzzle: str) -> httpx.Response:
            return httpx.post(f"{server.url}/solve", json={"puzzle": puzzle}, timeout=PATIENCE_S)

        futures = [pool.submit(ask, puzzle) for puzzle in puzzles]
        wait_for(lambda: server.slots()["waiting"] == len(puzzles))
        yield futures


def ask_and_stay(
    server: Server, puzzle: str, route: str = "/solve", key: str = "none", **fields: object
) -> socket.socket:
    """A request sent by hand, over a connection that the caller reads or closes."""
    body = json.dumps({"puzzle": puzzle, **fields}).encode()
    media_type = "application/x-ndjson" if route == "/solve/batch" else "application/json"
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST {route} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-type: {media_type}\r\n"
    connection.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    return connection
