"""From bundles to lanes that are ready: slots chosen, engine warm, memory measured against the budget.

Runs in the engine process.
"""

import gc
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hrm_edge_runtime.batching.attempts import Attempts
from hrm_edge_runtime.batching.sizing import Sizing, sizing_from
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.engines.factory import Choice, engine_for
from hrm_edge_runtime.worker.memory_budget import MemoryBudget, OverBudgetError, held_bytes
from hrm_edge_runtime.worker.messages import LaneReport, Load, LoadFailed, OpenedLane
from hrm_edge_runtime.worker.step_times import StepTimes, StepTimesFile, measure, warm_up
from hrm_host import memory

_log = logging.getLogger("hrm_edge_runtime.engine")


@dataclass(frozen=True, kw_only=True)
class LaneDefaults:
    """How to run every bundle; `engine` is ENGINE[:PRECISION], without `num_slots` their number is measured."""

    engine: str
    num_slots: int | None
    num_threads: int | None
    queue_limit: int
    max_attempts: int
    budget: MemoryBudget = field(default_factory=MemoryBudget)


@dataclass(frozen=True, kw_only=True)
class LaneOptions:
    """A bundle and how to run it; small and picklable, since the engine process opens the bundle itself."""

    key: str
    bundle_path: Path
    choice: Choice
    max_slots: int
    defaults: LaneDefaults


@dataclass(frozen=True, kw_only=True, eq=False)
class LaneSet:
    """The lanes of an engine process by their keys, and the reports of those that were measured when they opened."""

    lanes: Mapping[str, Attempts]
    reports: Mapping[str, LaneReport] = field(default_factory=dict[str, LaneReport])

    def warm_up(self) -> dict[str, LaneReport]:
        """Have every lane run a step that has not yet, so that no client pays for it; returns a report of each."""
        reports = dict(self.reports)
        for key, lane in self.lanes.items():
            if key not in reports:
                warm_up(lane)
                reports[key] = LaneReport(num_slots=lane.engine.num_slots, queue_limit=lane.queue_limit)
        return reports


MakeLanes = Callable[[], LaneSet]


def open_lanes(lanes: Sequence[LaneOptions]) -> LaneSet:
    """Open bundles on their engines; refuses what `open_lane` refuses."""
    opened = {options.key: open_lane(options) for options in lanes}
    return LaneSet(
        lanes={key: one.lane for key, one in opened.items()}, reports={key: one.report for key, one in opened.items()}
    )


def open_lane(options: LaneOptions, *, keeps_figures: bool = True) -> OpenedLane:
    """Open a bundle on its engine; raises BundleError, EngineUnavailableError or OverBudgetError, and holds nothing.

    Its memory is measured once it has run its largest step. Before it is loaded there must be room for its graph, which
    is the least it can take, and for what a lane of it was seen to take before.
    """
    defaults = options.defaults
    bundle = Bundle.open(options.bundle_path)
    name, figures = bundle.manifest.name, StepTimesFile(bundle, options.choice, defaults.num_threads)
    device = "cpu" if options.choice.engine == "cpu" else "any"
    defaults.budget.check(name, bundle.graph_path(options.choice.precision, device=device).stat().st_size)
    step_s = figures.step_times()
    if not step_s and not defaults.num_slots:
        step_s = _measured(bundle, options)
        if keeps_figures:
            figures.keep_step_times(step_s)
    sizing = Sizing(num_slots=defaults.num_slots, rule="given") if defaults.num_slots else sizing_from(step_s)
    defaults.budget.check(name, figures.memory_bytes(sizing.num_slots))
    before_bytes = held_bytes()
    lane = _opened_lane(bundle, options, sizing.num_slots)
    memory_bytes = max(0, held_bytes() - before_bytes)
    if keeps_figures:
        figures.keep_memory(sizing.num_slots, memory_bytes)
    report = LaneReport(
        num_slots=sizing.num_slots,
        queue_limit=defaults.queue_limit,
        slots_rule=sizing.rule,
        memory_bytes=memory_bytes,
        step_s=step_s,
    )
    return OpenedLane(lane=lane, report=report)


def open_lane_later(options: LaneOptions) -> OpenedLane:
    """Open a lane beside others; what is measured while those step is not kept."""
    return open_lane(options, keeps_figures=False)


class LaneLoader:
    """Opens further lanes while those that are there go on stepping: one thread for each lane."""

    def __init__(self) -> None:
        self._outcomes: queue.SimpleQueue[tuple[str, OpenedLane | LoadFailed]] = queue.SimpleQueue()
        self.num_under_way = 0

    def begin(self, message: Load) -> None:
        """Open a lane in a thread of its own, or before this returns where its engine must be opened here."""
        self.num_under_way += 1
        if message.beside:
            threading.Thread(target=self._open, args=(message,), name="lane-loader", daemon=True).start()
        else:
            self._open(message)

    def outcomes(self) -> list[tuple[str, OpenedLane | LoadFailed]]:
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


def _measured(bundle: Bundle, options: LaneOptions) -> StepTimes:
    """The step times of an engine that is closed again, so that a lane holds no more than its own slots need."""
    engine = _engine(bundle, options, options.max_slots)
    try:
        return measure(engine, bundle.puzzle_table[0])
    finally:
        engine.close()
        del engine
        _release()


def _opened_lane(bundle: Bundle, options: LaneOptions, num_slots: int) -> Attempts:
    """The lane, warm and within the budget; where that fails nothing of it stays."""
    lane = Attempts(
        _engine(bundle, options, num_slots),
        bundle.puzzle,
        bundle.puzzle_table,
        queue_limit=options.defaults.queue_limit,
        max_attempts=options.defaults.max_attempts,
        identifiers=bundle.identifiers,
    )
    try:
        warm_up(lane)
        options.defaults.budget.check(bundle.manifest.name)
    except BaseException:
        lane.engine.close()
        del lane
        _release()
        raise
    return lane


def _engine(bundle: Bundle, options: LaneOptions, num_slots: int) -> Engine:
    return engine_for(
        bundle,
        engine=options.choice.engine,
        precision=options.choice.precision,
        num_slots=num_slots,
        num_threads=options.defaults.num_threads,
    )


def _release() -> None:
    gc.collect()
    memory.give_back_freed_memory()
