"""The number of slots of a lane, chosen from the time of a segment over 1, 2, 4 ... slots.

Throughput grows with the slots up to a knee. Without a knee, a few slots still keep easy puzzles
from waiting behind hard ones. Times are measured when a lane opens and then kept. They hold for one
graph, engine, number of threads and machine in its power mode.
"""

import time
from collections.abc import Mapping

from pydantic import BaseModel, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.cpu_times import entries_of, keep_entry
from hrm_edge_runtime.engines.engine import Engine, Float32, load_blanks, step_seconds
from hrm_edge_runtime.engines.factory import Choice
from hrm_host import machine, system

MEASURING_S = 1.0
MAX_ROUNDS = 8  # measurements of each size
FOLDER = "steps"  # in the user's cache, with a file for each graph
NEARLY = 0.9  # a size with this share of the best throughput is good enough
NOISE = 0.05  # a lane's throughput is never below that of one slot by more than this
FAIR_SLOTS = 4  # the most slots without a gain in throughput

StepTimes = dict[int, float]


def warm_up(lane: TaskLane) -> None:
    """Run the smallest and the largest step, since a first step allocates memory."""
    load_blanks(lane.engine, lane.puzzle_table_PE[0])
    lane.engine.step(1)
    lane.engine.step(lane.engine.num_slots)


def measure(engine: Engine, puzzle_vector_E: Float32, *, limit_s: float = MEASURING_S) -> StepTimes:
    """The minimum time of a segment over 1, 2, 4 ... slots, as many sizes as `limit_s` allows."""
    load_blanks(engine, puzzle_vector_E)
    end_s = time.monotonic() + limit_s
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


class _Figures(BaseModel):
    step_s: dict[PositiveInt, PositiveFloat] = {}
    memory_bytes: dict[PositiveInt, NonNegativeInt] = {}


_ENTRIES = TypeAdapter(dict[str, _Figures])


class StepTimesFile:
    """Kept figures of one graph; a file that cannot be read or written counts as empty."""

    def __init__(self, bundle: Bundle, choice: Choice, num_threads: int | None) -> None:
        device = "cpu" if choice.engine == "cpu" else "any"
        self.graph = bundle.graph_path(choice.precision, device=device)
        sha256 = bundle.manifest.files[self.graph.name].sha256
        self._file = machine.cache_folder() / FOLDER / f"{sha256}.json"
        threads = num_threads or machine.num_cores()
        self._key = f"{choice}, {threads} threads, {machine.machine_name()}"

    def step_times(self, max_slots: int) -> StepTimes:
        """The kept times up to `max_slots`; empty unless they include one slot."""
        kept = self._kept().step_s
        if 1 not in kept:
            return {}
        return {size: seconds for size, seconds in kept.items() if size <= max_slots}

    def memory_bytes(self, num_slots: int) -> int:
        """The memory that a lane of `num_slots` took last time; 0 if unknown."""
        return self._kept().memory_bytes.get(num_slots, 0)

    def keep_step_times(self, step_s: StepTimes) -> None:
        """Keep the times, unless other work lengthened them: then the next start measures."""
        if not _is_busy():
            self._keep(step_s=dict(step_s))

    def keep_memory(self, num_slots: int, memory_bytes: int) -> None:
        kept = self._kept().memory_bytes
        self._keep(memory_bytes={**kept, num_slots: memory_bytes})

    def _kept(self) -> _Figures:
        return entries_of(self._file, _ENTRIES).get(self._key, _Figures())

    def _keep(self, **figures: object) -> None:
        kept = self._kept().model_copy(update=figures)
        keep_entry(self._file, _ENTRIES, self._key, kept)


def _is_busy() -> bool:
    """Whether more processes want to run than there are cores."""
    load = system.load_average() or 0.0
    return load > machine.num_cores()
