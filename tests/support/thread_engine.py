"""The engine in a thread of this process instead of a process of its own."""

import contextlib
import multiprocessing
import os
import socket
import threading

from hrm_edge_runtime.worker import loop
from hrm_edge_runtime.worker.lanes import MakeLanes


class ThreadEngine:
    """Runs the engine loop in a thread; `kill` waits for its segment."""

    pid: int | None = None

    def __init__(self, make_lanes: MakeLanes) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self._thread = threading.Thread(
            target=loop.run, args=(make_lanes, self._theirs), name="hrm-engine", daemon=True
        )
        self._thread.start()

    def kill(self) -> None:
        """Shut down its pipe, which wakes both readers; the thread ends at its next read."""
        with contextlib.suppress(OSError):  # it is closed already
            descriptor = os.dup(self._theirs.fileno())
            with socket.socket(fileno=descriptor) as pipe:
                pipe.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> int | None:
        self._thread.join(timeout_s)
        return None if self._thread.is_alive() else 0
