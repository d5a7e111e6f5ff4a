"""Opens further lanes in the engine process while those that are there go on stepping."""

from __future__ import annotations

import logging
import queue
import threading

from hrm_edge_runtime.worker.lanes import OpenedLane
from hrm_edge_runtime.worker.memory_budget import OverBudgetError
from hrm_edge_runtime.worker.messages import Load, LoadFailed

_log = logging.getLogger("hrm_edge_runtime.engine")

Outcome = tuple[str, "OpenedLane | LoadFailed"]


class Loader:
    """One thread for each lane that is being opened; what comes of it is handed out to whoever asks."""

    def __init__(self) -> None:
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self.num_under_way = 0

    def begin(self, message: Load) -> None:
        """Open a lane: in a thread of its own, or before this returns where its engine must be opened here."""
        self.num_under_way += 1
        if message.beside:
            threading.Thread(target=self._open, args=(message,), name="lane-loader", daemon=True).start()
        else:
            self._open(message)

    def outcomes(self) -> list[Outcome]:
        """The lanes opened, and not opened, since the last call."""
        done = [self._outcomes.get() for _ in range(self._outcomes.qsize())]
        self.num_under_way -= len(done)
        return done

    def _open(self, message: Load) -> None:
        try:
            outcome = message.make_lane()
        except Exception as error:  # whatever a bundle does wrong, the lanes that run must not notice
            _log.warning("the lane %s is not opened: %s", message.lane, error)
            lacking_bytes = error.lacking_bytes if isinstance(error, OverBudgetError) else None
            outcome = LoadFailed(lane=message.lane, message=str(error), lacking_bytes=lacking_bytes)
        self._outcomes.put((message.lane, outcome))
