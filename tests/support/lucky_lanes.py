"""Lanes that open, or lack memory if the test says so.

A module of its own, because what crosses the pipe is pickled.
"""

from asgi_tools import QUICK
from scripted_server import NAME

from hrm_edge_runtime.worker.lanes import LaneReport, OpenedLane, OverBudgetError

REPORT = LaneReport(num_slots=2, queue_limit=8, memory_bytes=100)
lacking_bytes: list[int] = []


def open_with_luck(*_: object, **__: object) -> OpenedLane:
    """Open a scripted lane of 100 bytes, unless the next entry of `lacking_bytes` is above zero."""
    missing = lacking_bytes.pop(0) if lacking_bytes else 0
    if missing:
        raise OverBudgetError(f"it takes {missing} bytes too many: use less.", missing)
    lane = QUICK()[NAME].lane
    return OpenedLane(lane=lane, report=REPORT)
