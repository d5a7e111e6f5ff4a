"""A real server in processes of its own, started as a user starts it and observed from outside.

CPU time and memory come from /proc, so this module needs Linux.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import httpx

READY_S = 120.0  # seconds; a start takes 2 s, but building a TensorRT engine takes longer
LEAVE_S = 60.0  # seconds; a server drains its requests before it ends
REQUEST_TIMEOUT_S = 60.0
POLL_EVERY_S = 0.005
LOG_TAIL = 400  # characters

OF_LANE = ("step_seconds_total", "slot_segments_used", "slot_segments_offered")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Positions in /proc/PID/stat after the name of the process.
PARENT = 1
USER_TICKS = 11
SYSTEM_TICKS = 12
RESIDENT_PAGES = 21
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def serve_command(*arguments: str) -> list[str]:
    """Return the command line of `hrm-serve` in this Python environment."""
    program = "from hrm_edge_server.cli import serve; serve()"
    return [sys.executable, "-c", program, *arguments]


@contextlib.contextmanager
def running(command: Sequence[str], *, within_s: float = READY_S) -> Generator[RunningServer]:
    """Start a server, yield it when it is ready, and end it with SIGTERM.

    Raises ValueError if the server does not become ready or does not end.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [*command, "--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as log,
        httpx.Client(base_url=url, timeout=REQUEST_TIMEOUT_S) as http,
    ):
        began_s = time.monotonic()
        process = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_until_ready(process, http, log, began_s + within_s)
            ready_s = time.monotonic() - began_s
            yield RunningServer(process.pid, http, ready_s=ready_s)
            process.terminate()
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            message = f"the server did not end within {LEAVE_S:.0f} s of SIGTERM."
            raise ValueError(message) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its workers too, if it left some
            process.wait(LEAVE_S)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_until_ready(
    process: subprocess.Popen[bytes], http: httpx.Client, log: TextIO, give_up_s: float
) -> None:
    while not _is_ready(http):
        has_ended = process.poll() is not None
        if has_ended or time.monotonic() > give_up_s:
            log.seek(0)
            log_tail = log.read()[-LOG_TAIL:].strip() or "nothing"
            raise ValueError(f"the server did not become ready; its log ends: {log_tail}")
        time.sleep(POLL_EVERY_S)


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


class RunningServer:
    """A ready server; `ready_s` is the time from its start to the first 200 of /readyz."""

    def __init__(self, pid: int, http: httpx.Client, *, ready_s: float) -> None:
        self.url = str(http.base_url)
        self.ready_s = ready_s
        self._pid = pid
        self._http = http

    def counters(self) -> dict[str, float]:
        """Return totals since the start: seconds (`at_s`), CPU seconds, and those of HTTP alone.

        An `hrm-serve` adds the counters of its first lane.
        """
        totals = {"cpu_s": self.usage().cpu_s, "http_cpu_s": _usage_of(_stat_of(self._pid)).cpu_s}
        answer = self._http.get("/slots")
        if answer.status_code != 200:
            return {**totals, "at_s": time.monotonic()}
        slots = answer.json()
        age_s = slots["snapshot_age_ms"] / 1e3
        for name in OF_LANE:
            totals[name] = slots["lanes"][0]["lane"][name]
        return {**totals, "at_s": time.monotonic() - age_s}

    def usage(self) -> Usage:
        """Return what the process and all its descendants use now, together."""
        stats: dict[int, list[str]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                stats[int(folder.name)] = _stat_of(int(folder.name))
        tree = [self._pid]
        for pid in tree:  # the loop appends to `tree`
            tree += [child for child, stat in stats.items() if int(stat[PARENT]) == pid]
        cpu_s = 0.0
        resident_mb = 0.0
        for pid in tree:
            usage = _usage_of(stats[pid])
            cpu_s += usage.cpu_s
            resident_mb += usage.resident_mb
        return Usage(cpu_s=cpu_s, resident_mb=resident_mb)


class Usage(NamedTuple):
    """CPU seconds since a process began, and its resident memory."""

    cpu_s: float
    resident_mb: float


def _usage_of(stat: Sequence[str]) -> Usage:
    ticks = int(stat[USER_TICKS]) + int(stat[SYSTEM_TICKS])
    resident_bytes = int(stat[RESIDENT_PAGES]) * PAGE_BYTES
    return Usage(cpu_s=ticks / TICKS_PER_S, resident_mb=resident_bytes / 2**20)


def _stat_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
