"""In the engine process: from bundles to lanes that are ready, warm, and measured against the memory budget."""

import functools
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for
from hrm_edge_runtime.worker.step_times import (
    StepTimes,
    StepTimesFile,
    measure,
    sizing_from,
    warm_up,
)
from hrm_host.memory import (
    MIB,
    available_bytes,
    give_back_freed_memory,
    read_memory,
    resident_bytes,
)

HEADROOM_SHARE = 0.05  # of the machine's memory, left free where no budget is given
HEADROOM_BYTES = 256 * MIB  # and never less than this

_log = logging.getLogger("hrm_edge_runtime.engine")


class OverBudgetError(ValueError):
    def __init__(self, message: str, lacking_bytes: int) -> None:
        super().__init__(message)
        self.lacking_bytes = lacking_bytes


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """At most `limit_bytes` for the engine process, or without it all that the machine can spare less a headroom."""

    limit_bytes: int | None = None

    def room_bytes(self, held_bytes: int = 0) -> int:
        return available_bytes() - _headroom_bytes() if self.limit_bytes is None else self.limit_bytes - held_bytes

    def check(self, name: str, more_bytes: int = 0) -> None:
        """Raise OverBudgetError where the process holds, or with so much more would hold, too much."""
        limit, room_bytes = self.limit_bytes, self.room_bytes(held_bytes()) - more_bytes
        if room_bytes < 0:
            spare = f"what the machine can spare beside a headroom of {in_mib(_headroom_bytes())}"
            bound = spare if limit is None else f"the budget of {in_mib(limit)}"
            raise OverBudgetError(
                f"the bundle {name!r} takes the engine {in_mib(-room_bytes)} past {bound}: remove a model, use fewer "
                "--slots, or start the server with a larger --memory-budget.",
                -room_bytes,
            )


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


@dataclass(frozen=True, kw_only=True)
class LaneReport:
    """A lane that is ready; `step_s` is the time of a segment over so many slots, as far as it was measured."""

    num_slots: int
    queue_limit: int
    slots_rule: str = "given"
    memory_bytes: int = 0
    step_s: dict[int, float] = field(default_factory=dict[int, float])

    def __str__(self) -> str:
        times = ", ".join(f"{size}: {1000 * seconds:.1f} ms" for size, seconds in self.step_s.items())
        return f"{self.num_slots} slots ({self.slots_rule}; steps {times}), {in_mib(self.memory_bytes)}"


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenedLane:
    """A lane that has run its warm-up, and its report; it stays in the engine process."""

    lane: TaskLane
    report: LaneReport


MakeLane = Callable[[], OpenedLane]
Lanes = dict[str, OpenedLane]
MakeLanes = Callable[[], Lanes]


def open_lanes(lanes: Sequence[LaneOptions]) -> Lanes:
    return {options.key: open_lane(options) for options in lanes}


def ready_lane(lane: TaskLane) -> OpenedLane:
    """A lane that was not measured, once it has run its steps, so that no client pays for the first."""
    warm_up(lane)
    return OpenedLane(lane=lane, report=LaneReport(num_slots=lane.engine.num_slots, queue_limit=lane.queue_limit))


def open_lane(options: LaneOptions, *, keeps_figures: bool = True) -> OpenedLane:
    """Open a bundle on its engine; raises BundleError, EngineUnavailableError or OverBudgetError, and holds nothing.

    Before it is loaded there must be room for its graph and for what a lane of it was seen to take before. What is
    measured beside other lanes that step is not to be kept.
    """
    defaults = options.defaults
    bundle = Bundle.open(options.bundle_path)
    name, figures = bundle.manifest.name, StepTimesFile(bundle, options.choice, defaults.num_threads)
    defaults.budget.check(name, figures.graph.stat().st_size)
    step_s = figures.step_times(options.max_slots)
    if not step_s and not defaults.num_slots:
        step_s = _measured(bundle, options)
        if keeps_figures:
            figures.keep_step_times(step_s)
    num_slots, rule = (defaults.num_slots, "given") if defaults.num_slots else sizing_from(step_s)
    defaults.budget.check(name, figures.memory_bytes(num_slots))
    before_bytes = held_bytes()
    lane = _opened_lane(bundle, options, num_slots)
    memory_bytes = max(0, held_bytes() - before_bytes)
    if keeps_figures:
        figures.keep_memory(num_slots, memory_bytes)
    report = LaneReport(
        num_slots=num_slots,
        queue_limit=defaults.queue_limit,
        slots_rule=rule,
        memory_bytes=memory_bytes,
        step_s=step_s,
    )
    return OpenedLane(lane=lane, report=report)


def _measured(bundle: Bundle, options: LaneOptions) -> StepTimes:
    """Of an engine that is closed again, so that a lane holds no more than its own slots need."""
    num_slots, num_threads = options.max_slots, options.defaults.num_threads
    engine = engine_for(bundle, engine=str(options.choice), num_slots=num_slots, num_threads=num_threads)
    try:
        return measure(engine, bundle.puzzle_table[0])
    finally:
        engine.close()
        del engine
        gc.collect()
        give_back_freed_memory()


def _opened_lane(bundle: Bundle, options: LaneOptions, num_slots: int) -> TaskLane:
    """The lane, warm and within the budget; where that fails nothing of it stays."""
    num_threads = options.defaults.num_threads
    lane = TaskLane(
        engine_for(bundle, engine=str(options.choice), num_slots=num_slots, num_threads=num_threads),
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
        gc.collect()
        give_back_freed_memory()
        raise
    return lane


def _headroom_bytes() -> int:
    machine = read_memory()
    return max(HEADROOM_BYTES, int(HEADROOM_SHARE * machine.total_mb * MIB)) if machine else 0


def held_bytes() -> int:
    """What this process holds; 0 where the kernel does not say (not Linux).

    On a Jetson the GPU's share is in no process's memory: the kernel's count of it (NvMapMemUsed) is added as far as
    it grew since this process began (not run on one). A separate card's memory is not counted.
    """
    return resident_bytes() + max(0, _gpu_bytes() - _gpu_before_bytes())


def in_mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.0f} MiB"


@functools.cache
def _gpu_before_bytes() -> int:
    return _gpu_bytes()  # first asked for before this process loads anything


def _gpu_bytes() -> int:
    memory = read_memory()
    return memory.gpu_mb * MIB if memory else 0
