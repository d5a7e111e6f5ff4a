"""Servers for tests: real processes on a free port, some with the keys of a user and an admin."""

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

from hrm_edge_server.auth import Key, hash_of, new_secret, write_keys

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
PATIENCE_S = 120.0  # of one wait; a busy machine takes a few seconds
USER = new_secret()
ADMIN = new_secret()
AS_USER = {"x-api-key": USER}
AS_ADMIN = {"x-api-key": ADMIN}


class Server:
    """A server process on a free port, from a command that takes `--port`."""

    def __init__(
        self, command: list[str], scheme: str = "http", port: int | None = None, **options: Any
    ) -> None:
        self.port = port or free_port()
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
        self._lines.extend(self.process.stderr)

    def status(self, path: str) -> int:
        """Return the status of a GET; 0 if nothing listens."""
        try:
            return self.http.get(path).status_code
        except httpx.TransportError:
            return 0

    def models(self) -> Any:
        return self.http.get("/models").json()["models"]

    def slots(self) -> Any:
        return self.http.get("/slots").json()

    @property
    def engine(self) -> Any:
        return self.slots()["engine"]

    @property
    def num_waiting(self) -> int:
        return self.slots()["waiting"]

    def solve(self, puzzle: object, **fields: object) -> httpx.Response:
        return self.http.post("/solve", json={"puzzle": puzzle, **fields})

    def wait_until_ready(self) -> None:
        wait_for(lambda: self.runs() and self.status("/readyz") == 200)

    def runs(self) -> bool:
        assert self.process.poll() is None, f"the server has ended:\n{self.log}"
        return True

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
        self.process.stderr.close()


def wait_for(holds: Callable[[], bool], every_s: float = 0.02) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up_s, "the condition never became true"
        time.sleep(every_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


HRM = "from hrm_edge.commands import main; main()"


def command(name: str, *arguments: object) -> list[str]:
    """Return the command line of `hrm NAME`."""
    return [sys.executable, "-c", HRM, name, *map(str, arguments)]


def scripted_command(**options: float | str | Path) -> list[str]:
    """Return the command line of `scripted_server.py`; its options have underscores here."""
    program = Path(__file__).parent / "scripted_server.py"
    line = [sys.executable, str(program)]
    for name, value in options.items():
        option = name.replace("_", "-")
        line.append(f"--{option}={value}")
    return line


@contextlib.contextmanager
def starting(**options: float | str | Path) -> Iterator[Server]:
    """Run the scripted server; it listens, and may not be ready yet."""
    with Server(scripted_command(**options)) as server:
        wait_for(lambda: server.runs() and server.status("/livez") == 200)
        yield server


@contextlib.contextmanager
def running(**options: float | str | Path) -> Iterator[Server]:
    """Run the scripted server, which is ready."""
    with starting(**options) as server:
        server.wait_until_ready()
        yield server


@contextlib.contextmanager
def hrm_serve(*arguments: object, key: str = "none") -> Iterator[Server]:
    """Run `hrm-serve` with one thread, which is ready; its client sends the key."""
    with Server(command("serve", *arguments, "--threads=1"), headers={"x-api-key": key}) as server:
        server.wait_until_ready()
        yield server


def write_key_file(folder: Path, *more: Key) -> Path:
    user = Key(label="kitchen", sha256=hash_of(USER))
    admin = Key(label="office", role="admin", sha256=hash_of(ADMIN))
    write_keys(folder / "keys", [user, admin, *more])
    return folder / "keys"


def upload_server(folder: Path, *arguments: object) -> contextlib.AbstractContextManager[Server]:
    """Run `hrm-serve`, which takes the models of the admin, its client, into a folder here."""
    rights = (f"--keys={write_key_file(folder)}", f"--upload-dir={folder}/uploads")
    return hrm_serve(*arguments, *rights, key=ADMIN)


def refusal(response: httpx.Response) -> tuple[int, str]:
    """Return the status and the reason of an error."""
    return response.status_code, response.json()["error"]["reason"]


@contextlib.contextmanager
def asking(server: Server, puzzles: list[str]) -> Iterator[list[Future[httpx.Response]]]:
    """Send all puzzles at once, each over its own connection; wait until the server holds them."""
    with ThreadPoolExecutor(len(puzzles)) as pool:

        def ask(puzzle: str) -> httpx.Response:
            url = f"{server.url}/solve"
            return httpx.post(url, json={"puzzle": puzzle}, timeout=PATIENCE_S)

        futures = [pool.submit(ask, puzzle) for puzzle in puzzles]
        wait_for(lambda: server.num_waiting == len(puzzles))
        yield futures


CRUMBS = b"1\r\n\n\r\n" * 20_000  # pieces of a body in chunks


def head(route: str, *headers: str, version: str = "1.1") -> bytes:
    """The head of a request; the route has its method, as `POST /solve`."""
    lines = [f"{route} HTTP/{version}", "host: x", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def ask_and_stay(
    server: Server, puzzle: str, route: str = "/solve", num_lines: int = 1, **fields: object
) -> socket.socket:
    """Send a request by hand, to /solve/batch several times; read or close the connection."""
    line = json.dumps({"puzzle": puzzle, **fields}) + "\n"
    body = num_lines * line.encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head(f"POST {route}", f"content-length: {len(body)}") + body)
    return connection


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def seconds_of_livez(server: Server) -> float:
    """CPU time of the server while `/livez` waits; on a quiet machine this is how long it waits."""
    cpu_clock = (~server.process.pid << 3) | 2  # how Linux names the CPU clock of a process
    began_s = time.clock_gettime(cpu_clock)
    assert server.status("/livez") == 200
    return time.clock_gettime(cpu_clock) - began_s


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of its children, in the order of their start."""
    tasks = Path(f"/proc/{process.pid}/task")
    return [int(pid) for file in tasks.glob("*/children") for pid in file.read_text().split()]


def is_gone(pid: int) -> bool:
    """A process that nobody has buried yet counts as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"
