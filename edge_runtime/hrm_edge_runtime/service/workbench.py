"""What the engine process works with: one lane of attempts for each bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hrm_edge_runtime.batching.attempts import Attempts

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.factory import Choice


@dataclass(frozen=True, kw_only=True, eq=False)
class Workbench:
    """The lanes by the names of their models."""

    lanes: Mapping[str, Attempts]

    def warm_up(self) -> dict[str, float]:
        """Run the smallest and the largest step of each lane, so that no client pays for it; seconds of the larger."""
        return {name: _warm_up(lane) for name, lane in self.lanes.items()}

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.engine.close()


MakeWorkbench = Callable[[], Workbench]


@dataclass(frozen=True, kw_only=True)
class LaneOptions:
    """A bundle and how to run it; small and picklable, for the engine process opens the bundle itself."""

    bundle_path: Path
    choice: Choice
    num_slots: int
    num_threads: int | None
    queue_limit: int
    max_attempts: int


def bundle_workbench(lanes: Sequence[LaneOptions]) -> Workbench:
    """Open bundles on their engines; refuses what `Bundle.open` and `engine_for` refuse."""
    return Workbench(lanes=dict(_opened(options) for options in lanes))


def _opened(options: LaneOptions) -> tuple[str, Attempts]:
    from hrm_edge_runtime.bundle import Bundle
    from hrm_edge_runtime.engines.factory import engine_for

    bundle = Bundle.open(options.bundle_path)
    engine = engine_for(
        bundle,
        engine=options.choice.engine,
        precision=options.choice.precision,
        num_slots=options.num_slots,
        num_threads=options.num_threads,
    )
    return bundle.manifest.name, Attempts(
        engine,
        bundle.puzzle,
        bundle.puzzle_table,
        queue_limit=options.queue_limit,
        max_attempts=options.max_attempts,
        identifiers=bundle.identifiers,
    )


def _warm_up(lane: Attempts) -> float:
    engine = lane.engine
    blank_T = np.zeros(engine.seq_len, np.int32)
    for slot in range(engine.num_slots):
        engine.load(slot, blank_T, lane.puzzle_vector(0))
    engine.step(1)
    began = time.monotonic()
    engine.step(engine.num_slots)
    return time.monotonic() - began
