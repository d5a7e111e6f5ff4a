"""A real server in processes of its own, started as a user starts it and observed from outside.

Memory, threads and descriptors come from /proc, so this module needs Linux.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import httpx

from hrm_benchmarks import client, scripted
from hrm_edge_runtime.contract.arrays import Int32
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

READY_S = 120.0  # seconds; a start takes 2 s, but building a TensorRT engine takes longer
LEAVE_S = 60.0  # seconds; a server drains its requests before it ends
REQUEST_TIMEOUT_S = 60.0
POLL_EVERY_S = 0.005
SETTLED_S = 0.3  # the engine process publishes its counters ten times a second
LOG_TAIL = 400  # characters

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Positions in /proc/PID/stat after the name of the process.
USER_TICKS = 11
SYSTEM_TICKS = 12

Usage = dict[str, float]
"""Resources of one process: resident_mb, threads, descriptors and cpu_s."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server to start and the puzzles to send to it."""

    title: str
    command: Sequence[str]
    puzzle: Puzzle
    questions: Questions
    window: int = client.WINDOW  # unanswered lines of a batch

    def bodies(self) -> list[bytes]:
        """Return the questions as bodies of POST /solve."""
        texts = self._written(self.questions.tokens_NT)
        return [json.dumps({"puzzle": text}).encode() for text in texts]

    def solutions(self) -> list[object]:
        """Return the known solutions in the notation of the server's answers."""
        return self._written(self.questions.labels_NT)

    def _written(self, tokens_NT: Int32) -> list[object]:
        sample = self.puzzle.sample([])
        notation = self.puzzle.parse(sample).notation
        texts: list[object] = []
        for tokens_T in tokens_NT:
            grid = self.puzzle.decode(tokens_T)
            texts.append(self.puzzle.write(grid, notation))
        return texts


def bundle_target(
    bundle: Bundle,
    questions: Questions,
    *,
    engine: str,
    threads: int,
    slots: int,
    queue_limit: int,
) -> Target:
    """Return a target that serves a bundle with `hrm-serve`."""
    options = [
        f"--engine={engine}",
        f"--threads={threads}",
        f"--slots={slots}",
        f"--queue-limit={queue_limit}",
    ]
    name = bundle.manifest.name
    sizes = f"{slots} slots, {threads} threads"
    return Target(
        title=f"{name} on {engine}, {sizes}, {questions.title}",
        command=serve_command(str(bundle.path), *options),
        puzzle=bundle.puzzle,
        questions=questions,
        window=max(1, queue_limit // 4),  # a slow engine would take minutes to drain a larger queue
    )


def scripted_target(script: scripted.Scripted) -> Target:
    """Return a target that serves a scripted engine."""
    questions = script.questions()
    title = f"{script.title}, {script.puzzle}, {questions.title}"
    fields = json.dumps(vars(script))
    command = [sys.executable, "-m", "hrm_benchmarks.scripted", fields]
    puzzle = registry.get(script.puzzle)
    return Target(title=title, command=command, puzzle=puzzle, questions=questions)


def serve_command(*arguments: str) -> list[str]:
    """Return the command line of `hrm-serve` in this Python environment."""
    program = "from hrm_edge_runtime.cli import serve; serve()"
    return [sys.executable, "-c", program, *arguments]


@contextlib.contextmanager
def running(
    command: Sequence[str],
    headers: Mapping[str, str] | None = None,
    *,
    within_s: float = READY_S,
) -> Generator[RunningServer]:
    """Start a server, yield it when it is ready, and end it with SIGTERM.

    Raises ValueError if the server does not become ready or does not end.
    """
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [*command, "--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as log,
        httpx.Client(base_url=url, headers=headers, timeout=REQUEST_TIMEOUT_S) as http,
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


class Totals(NamedTuple):
    """Counters of the server's first lane since its start, at the moment `at_s`."""

    at_s: float  # time.monotonic() of the reading
    num_ended: float  # attempts that ended for any reason
    step_s: float  # seconds of the engine's steps
    slot_segments_used: float  # rows offered while attempts waited
    slot_segments_offered: float

    def since(self, before: Totals) -> Totals:
        """Return the differences from an earlier reading."""
        differences = map(operator.sub, self, before)
        return Totals(*differences)

    @property
    def share_of_bound(self) -> float:
        """Occupancy times the engine's share of the time; 1 if no row and no moment is wasted."""
        occupancy = self.slot_segments_used / max(1, self.slot_segments_offered)
        engine_share = self.step_s / self.at_s
        return occupancy * engine_share


class RunningServer:
    """A ready server; `ready_s` is the time from its start to the first 200 of /readyz."""

    def __init__(self, pid: int, http: httpx.Client, *, ready_s: float) -> None:
        self.url = str(http.base_url)
        self.ready_s = ready_s
        self.pid = pid
        self._http = http

    def slots(self) -> Any:
        return self._http.get("/slots").json()

    def totals(self) -> Totals:
        slots = self.slots()
        age_s = slots["snapshot_age_ms"] / 1e3
        lane = slots["lanes"][0]["lane"]
        num_ended = sum(lane["completed"].values())
        return Totals(
            at_s=time.monotonic() - age_s,
            num_ended=num_ended,
            step_s=lane["step_seconds_total"],
            slot_segments_used=lane["slot_segments_used"],
            slot_segments_offered=lane["slot_segments_offered"],
        )

    def resident_mb(self) -> float:
        """Return the resident memory of the HTTP process."""
        return usage_of(self.pid)["resident_mb"]

    def usage(self) -> dict[str, Usage]:
        """Return what the processes `http` and `engine` use now."""
        engine_pid = self.slots()["engine"]["pid"]
        return {"http": usage_of(self.pid), "engine": usage_of(engine_pid)}


def usage_of(pid: int) -> Usage:
    """Return what a process uses now; `cpu_s` counts since it began."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    stat = (process / "stat").read_text().rpartition(")")[2].split()
    ticks = int(stat[USER_TICKS]) + int(stat[SYSTEM_TICKS])
    resident_kib = int(status["VmRSS"].split()[0])
    usage: Usage = {"resident_mb": resident_kib / 1024, "cpu_s": ticks / TICKS_PER_S}
    usage["threads"] = int(status["Threads"])
    usage["descriptors"] = len(os.listdir(process / "fd"))
    return usage
