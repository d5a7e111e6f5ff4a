"""In the engine process: from bundles to lanes that are warm and within the memory budget.

The number of slots follows from the time of a segment over 1, 2, 4 ... slots. Throughput grows with
the slots up to a knee. Without a knee, a few slots still keep easy puzzles from waiting behind hard
ones.
"""

import functools
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine, Float32, load_blanks, step_seconds
from hrm_edge_runtime.engines.factory import Choice, engine_for
from hrm_edge_runtime.engines.times import StepTimes, StepTimesFile
from hrm_host.machine import num_cores, threads_left
from hrm_host.memory import (
    MIB,
    available_bytes,
    give_back_freed_memory,
    physical_bytes,
    read_memory,
    resident_bytes,
)

HEADROOM_SHARE = 0.05  # share of the memory that stays free without a budget
HEADROOM_BYTES = 256 * MIB  # the smallest headroom
SPARE_THREADS = 64  # threads for the HTTP process, a trial, and opening a lane
MIN_THREADS = 48  # the server's processes start this many even if each engine has one
MEASURING_S = 1.0
MAX_ROUNDS = 8  # measurements of each size
NEARLY = 0.9  # a size with this share of the best throughput is good enough
NOISE = 0.05  # a lane's throughput is never below that of one slot by more than this
FAIR_SLOTS = 4  # the most slots without a gain in throughput

_log = logging.getLogger("hrm_edge_runtime.engine")


class LaneKey(NamedTuple):
    """A lane of the engine: its model's name, and a number for each time that one is opened."""

    model: str
    number: int = 1

    def __str__(self) -> str:
        return f"{self.model} (lane {self.number})"


class OverBudgetError(ValueError):
    """A lane does not fit into memory."""


class MemoryBudget(NamedTuple):
    """At most `limit_bytes` for the engine process; by default all free memory but a headroom."""

    limit_bytes: int | None = None

    def room_bytes(self, held_bytes: int) -> int:
        """How much more a process that holds `held_bytes` may take."""
        if self.limit_bytes is None:
            return available_bytes() - _headroom_bytes()
        return self.limit_bytes - held_bytes

    def check(self, name: str, more_bytes: int = 0) -> None:
        """Raise OverBudgetError if the process would hold too much with `more_bytes`."""
        lacking_bytes = more_bytes - self.room_bytes(held_bytes())
        if lacking_bytes <= 0:
            return
        if self.limit_bytes is None:
            headroom = in_mib(_headroom_bytes())
            bound = f"what the machine can spare beside a headroom of {headroom}"
        else:
            bound = f"the budget of {in_mib(self.limit_bytes)}"
        raise OverBudgetError(
            f"the bundle {name!r} takes the engine {in_mib(lacking_bytes)} past {bound}: "
            "remove a model, use fewer --slots, or start the server with a larger "
            "--memory-budget."
        )


class LaneDefaults(NamedTuple):
    """How to run every bundle; `engine` is ENGINE[:PRECISION].

    If `num_slots` is None, the number is chosen from measured times.
    """

    engine: str
    num_slots: int | None
    num_threads: int | None
    queue_limit: int
    max_attempts: int
    budget: MemoryBudget = MemoryBudget()


class LaneOptions(NamedTuple):
    """A bundle and how to run it; picklable, since the engine process opens the bundle."""

    key: LaneKey
    bundle_path: Path
    choice: Choice
    max_slots: int
    defaults: LaneDefaults


class LaneReport(NamedTuple):
    """A lane that is ready; `step_s` is the measured time of a segment by number of slots."""

    num_slots: int
    queue_limit: int
    slots_rule: str = "given"
    memory_bytes: int = 0
    step_s: Mapping[int, float] = {}


class OpenedLane(NamedTuple):
    """A warm lane and its report; it stays in the engine process."""

    lane: TaskLane
    report: LaneReport


MakeLane = Callable[[], OpenedLane]
Lanes = dict[LaneKey, OpenedLane]
MakeLanes = Callable[[], Lanes]


def check_threads(left: int | None) -> None:
    """Raise OSError if the control groups let the server start too few threads."""
    if left is not None and left < MIN_THREADS:
        raise OSError(
            f"the container lets this server start {left} threads (pids.max) and it needs "
            f"{MIN_THREADS}: raise --pids-limit of docker, or TasksMax of systemd."
        )


def with_fewer_threads(defaults: LaneDefaults, num_lanes: int = 1) -> LaneDefaults:
    """Give a lane at most its share of the threads that the control groups still allow.

    ONNX Runtime starts the threads of a session when it opens, and hangs if one does not start.
    """
    left = threads_left()
    if left is None:
        return defaults
    wanted = defaults.num_threads or num_cores()
    share = max(1, (left - SPARE_THREADS) // num_lanes)
    if share < wanted:
        _log.info("%d of %d threads, because the container limits them (pids.max)", share, wanted)
    return defaults._replace(num_threads=min(wanted, share))


def open_lanes(lanes: Sequence[LaneOptions]) -> Lanes:
    """Open the lanes of the start, which share the threads that they may have."""
    opened: Lanes = {}
    for index, options in enumerate(lanes):
        opened[options.key] = open_lane(options, num_lanes=len(lanes) - index)
    return opened


def open_lane(
    options: LaneOptions, *, num_lanes: int = 1, keeps_figures: bool = True
) -> OpenedLane:
    """Open a bundle on its engine; raises BundleError, EngineUnavailableError or OverBudgetError.

    A lane that fails to open holds nothing. Memory must have room for the bundle's graph, and for
    what a lane of this bundle took before. It shares the threads that the process may start with
    `num_lanes - 1` others. Pass `keeps_figures=False` if other lanes run meanwhile, since they
    distort the figures.
    """
    defaults = with_fewer_threads(options.defaults, num_lanes)
    options = options._replace(defaults=defaults)
    bundle = Bundle.open(options.bundle_path)
    name = bundle.manifest.name
    figures = StepTimesFile(
        bundle, options.choice.engine, options.choice.precision, defaults.num_threads
    )
    defaults.budget.check(name, figures.graph.stat().st_size)
    step_s = figures.step_times(options.max_slots)
    if not step_s and not defaults.num_slots:
        step_s = _measured(bundle, options)
        if keeps_figures:
            figures.keep_step_times(step_s)
    if defaults.num_slots:
        num_slots = defaults.num_slots
        rule = "given"
    else:
        num_slots, rule = sizing_from(step_s)
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
    return OpenedLane(lane, report)


def _measured(bundle: Bundle, options: LaneOptions) -> StepTimes:
    """Step times of an engine with `max_slots`; closes it, because the lane may need fewer."""
    engine = _engine(bundle, options, options.max_slots)
    try:
        return step_times_of(engine, bundle.puzzle_table[0])
    finally:
        engine.close()
        del engine
        gc.collect()
        give_back_freed_memory()


def step_times_of(engine: Engine, puzzle_vector_E: Float32) -> StepTimes:
    """The minimum time of a segment over 1, 2, 4 ... slots, measured for at most a second."""
    load_blanks(engine, puzzle_vector_E)
    end_s = time.monotonic() + MEASURING_S
    step_s: StepTimes = {}
    size = 1
    expected_s = 0.0
    while size <= engine.num_slots and time.monotonic() + 2 * expected_s < end_s:
        engine.step(size)  # the first step allocates memory
        step_s[size] = step_seconds(engine, size)
        expected_s = 2 * step_s[size]
        size *= 2
    for _ in range(MAX_ROUNDS):
        for size, seconds in step_s.items():
            if time.monotonic() + seconds < end_s:
                step_s[size] = min(seconds, step_seconds(engine, size))
    return step_s


def sizing_from(step_s: Mapping[int, float]) -> tuple[int, str]:
    """Choose one of the measured numbers of slots, which include 1; returns it and the rule.

    - compute-bound, if one slot has 90 % of the best throughput: the largest number up to 4 that
      loses at most 5 % against one slot.
    - knee, otherwise: the smallest number with 90 % of the best throughput.
    """
    rates = {size: size / seconds for size, seconds in step_s.items()}
    enough = NEARLY * max(rates.values())
    if rates[1] >= enough:
        fair = (1 - NOISE) * rates[1]
        sizes = [size for size in rates if size <= FAIR_SLOTS and rates[size] >= fair]
        return max(sizes), "compute-bound"
    sizes = [size for size in rates if rates[size] >= enough]
    return min(sizes), "knee"


def _opened_lane(bundle: Bundle, options: LaneOptions, num_slots: int) -> TaskLane:
    """The lane, warm and within the budget; if that fails, it is closed."""
    lane = TaskLane(
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
        gc.collect()
        give_back_freed_memory()
        raise
    return lane


def warm_up(lane: TaskLane) -> None:
    """Run the smallest and the largest step, since a first step allocates memory."""
    load_blanks(lane.engine, lane.puzzle_table_PE[0])
    lane.engine.step(1)
    lane.engine.step(lane.engine.num_slots)


def _engine(bundle: Bundle, options: LaneOptions, num_slots: int) -> Engine:
    return engine_for(
        bundle,
        engine=str(options.choice),
        num_slots=num_slots,
        num_threads=options.defaults.num_threads,
    )


def _headroom_bytes() -> int:
    if read_memory() is None:  # not Linux
        return 0
    share_bytes = int(HEADROOM_SHARE * physical_bytes())
    return max(HEADROOM_BYTES, share_bytes)


def held_bytes() -> int:
    """The memory that this process holds; 0 if the kernel does not report it (not Linux).

    On a Jetson no process's memory includes what the GPU uses. So the growth of the kernel's
    counter (NvMapMemUsed) since this process began is added (not run on one). The memory of a card
    is not counted.
    """
    gpu_growth_bytes = _gpu_bytes() - _gpu_before_bytes()
    return resident_bytes() + max(0, gpu_growth_bytes)


def in_mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.0f} MiB"


@functools.cache
def _gpu_before_bytes() -> int:
    return _gpu_bytes()  # first called before this process loads anything


def _gpu_bytes() -> int:
    memory = read_memory()
    if memory is None:
        return 0
    return memory.gpu_mb * MIB
