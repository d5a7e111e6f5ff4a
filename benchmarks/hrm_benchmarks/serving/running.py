"""A server in processes of its own, as a user would start it, and what can be seen of it from outside.

Memory and descriptors are read from /proc, so this part knows Linux only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

READY_S = 120.0
LEAVE_S = 60.0
LOOK_EVERY_S = 0.005


class ServerFailedError(ValueError):
    """A server that does not start, or does not leave as it should."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one process holds at a moment; `cpu_s` is all it has ever used."""

    resident_mb: float
    threads: int
    descriptors: int
    cpu_s: float


class Running:
    """A started server; `ready_s` is the time from its start to the first 200 of /readyz."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the server
        self._http = httpx.Client(base_url=self.url, timeout=60.0)
        began = time.monotonic()
        self._process = subprocess.Popen([*command, "--port", str(port)], stderr=self._log, start_new_session=True)
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() - began > READY_S:
                raise ServerFailedError(f"the server {command[0]} did not become ready; its log ends: {self.log_end()}")
            time.sleep(LOOK_EVERY_S)
        self.ready_s = time.monotonic() - began

    def slots(self) -> Any:
        """What GET /slots says."""
        return self._http.get("/slots").json()

    def pids(self) -> dict[str, int]:
        return {"http": self._process.pid, "engine": self.slots()["engine"]["pid"]}

    def usage(self) -> dict[str, Usage]:
        """Of both processes."""
        return {name: usage_of(pid) for name, pid in self.pids().items()}

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            raise ServerFailedError(f"the server did not leave within {LEAVE_S:.0f} s of SIGTERM.") from None

    def close(self) -> None:
        self._http.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LEAVE_S)
        self._log.close()

    def log_end(self) -> str:
        self._log.seek(0)
        return self._log.read()[-400:].strip() or "nothing"

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self._http.get("/readyz").status_code == 200
        return False


@contextlib.contextmanager
def running(command: Sequence[str]) -> Generator[Running]:
    """A ready server for as long as it is needed."""
    server = Running(command, free_port())
    try:
        yield server
    finally:
        server.close()


def serve_command(*arguments: str) -> list[str]:
    """`hrm-serve` of the environment this runs in."""
    beside = Path(sys.executable).with_name("hrm-serve")
    found = str(beside) if beside.exists() else shutil.which("hrm-serve")
    if found is None:
        raise ServerFailedError("hrm-serve is not installed beside this Python: run pip install 'hrm-edge[serve]'.")
    return [found, *arguments]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def usage_of(pid: int) -> Usage:
    """From /proc."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    times = (process / "stat").read_text().rpartition(")")[2].split()
    return Usage(
        resident_mb=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        descriptors=len(os.listdir(process / "fd")),
        cpu_s=(int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
    )
