"""What the engine process works with: one lane of attempts for each bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_edge_runtime.batching.attempts import Attempts
from hrm_edge_runtime.worker.memory_budget import MemoryBudget, Meter
from hrm_edge_runtime.worker.reports import LaneReport

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.factory import Choice


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedLane:
    """A lane that has run its warm-up, and what is to be told of it."""

    lane: Attempts
    report: LaneReport


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneSet:
    """The lanes by their keys, which are the names of their models; and of those that were measured, the reports."""

    lanes: Mapping[str, Attempts]
    reports: Mapping[str, LaneReport] = field(default_factory=dict[str, LaneReport])

    def warm_up(self) -> dict[str, LaneReport]:
        """Have every lane run a step that has not yet, so that no client pays for it; what is told of each."""
        return {key: self.reports.get(key) or _warmed_up(lane) for key, lane in self.lanes.items()}

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.engine.close()


MakeLanes = Callable[[], LaneSet]
MakeLane = Callable[[], OpenedLane]


@dataclass(frozen=True, kw_only=True)
class LaneOptions:
    """A bundle and how to run it; small and picklable, for the engine process opens the bundle itself.

    Without `num_slots` their number is chosen by measuring, up to `max_slots`.
    """

    key: str
    bundle_path: Path
    choice: Choice
    num_slots: int | None
    max_slots: int
    num_threads: int | None
    queue_limit: int
    max_attempts: int
    budget: MemoryBudget


def open_lanes(lanes: Sequence[LaneOptions]) -> LaneSet:
    """Open bundles on their engines; refuses what `open_lane` refuses."""
    from hrm_edge_runtime.worker.opening import open_lane

    opened: dict[str, OpenedLane] = {}
    meters = {options.budget: Meter(options.budget) for options in lanes}
    for options in lanes:
        opened[options.key] = open_lane(options, meters[options.budget])
    return LaneSet(
        lanes={key: one.lane for key, one in opened.items()}, reports={key: one.report for key, one in opened.items()}
    )


def _warmed_up(lane: Attempts) -> LaneReport:
    from hrm_edge_runtime.worker.step_times import warm_up

    warm_up(lane)
    return LaneReport(num_slots=lane.engine.num_slots, queue_limit=lane.queue_limit)
