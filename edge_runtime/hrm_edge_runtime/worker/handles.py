"""Two ways to run an engine behind one pipe: a spawned process, and a thread for tests and very small devices.

Spawn, never fork: a forked child of a process that has loaded ONNX Runtime can hang.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import socket
import threading
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, Protocol

from hrm_edge_runtime.logs import LogForm
from hrm_edge_runtime.worker import loop


class EngineHandle(Protocol):
    """A running engine, seen from the HTTP process. `connection` reads to its end when the engine has gone."""

    connection: Connection[Any, Any]
    pid: int | None

    def kill(self) -> None:
        """End it now, whatever it does; safe to call again."""
        ...

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; false where it is still there."""
        ...


class SpawnedEngine:
    """The engine in a process of its own; a crash, a kill for memory or a stuck driver takes nothing else along.

    Ctrl-C in a terminal, its closing and a service manager's SIGTERM reach every process of the group. Only the HTTP
    process may act on them (it drains), so the engine is born with all of them blocked and ends by message, by a closed
    pipe or by SIGKILL.
    """

    def __init__(self, make_lanes: loop.MakeLanes, log: LogForm = "text") -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=loop.process_main, args=(make_lanes, theirs, log), name="hrm-engine")
        resource_tracker.ensure_running()  # it unblocks the signals when it starts, so it must have started before
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()  # else the pipe would not read to its end when the engine dies
        self.pid = self._process.pid
        atexit.register(self.kill)  # multiprocessing waits for its children at exit, and this one ignores SIGTERM

    def kill(self) -> None:
        self._process.kill()

    def join(self, timeout_s: float) -> bool:
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            return False
        atexit.unregister(self.kill)
        return True


class ThreadEngine:
    """The engine in a thread of this process. Nothing can end a thread in the middle of its segment, only after it."""

    pid: int | None = None

    def __init__(self, make_lanes: loop.MakeLanes) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self._thread = threading.Thread(
            target=loop.run, args=(make_lanes, self._theirs), name="hrm-engine", daemon=True
        )
        self._thread.start()

    def kill(self) -> None:
        """Cut its pipe, which wakes the readers at both ends; the thread leaves when it next looks."""
        closed_already = contextlib.suppress(OSError)
        with closed_already, socket.socket(fileno=os.dup(self._theirs.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
