"""How many slots a lane gets, from the time of a segment over 1, 2, 4 ... slots: measured when it opens, then kept.

Throughput grows with the slots up to a knee; without one, a few slots still keep easy puzzles from waiting behind hard
ones. Kept figures hold for one graph, engine, number of threads and machine in its power mode, and for nothing else.
"""

import contextlib
import logging
import platform
import time
from collections.abc import Mapping

from pydantic import BaseModel, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.arrays import Float32
from hrm_edge_runtime.contract.bundle import Bundle, user_cache
from hrm_edge_runtime.engines.engine import Engine, load_blanks, step_seconds
from hrm_edge_runtime.engines.factory import Choice
from hrm_host import atomic, board, system

MEASURING_S = 1.0
MAX_ROUNDS = 8
FOLDER = "steps"  # of the user's cache, with a file for each graph
MAX_FILE_BYTES = 64 * 1024
NEARLY = 0.9
NOISE = 0.05  # a lane with slots is never slower than one puzzle at a time by more than this
FAIR_SLOTS = 4

_log = logging.getLogger("hrm_edge_runtime.engine")

StepTimes = dict[int, float]


def warm_up(lane: TaskLane) -> None:
    """Run the smallest and the largest step, so that no client pays for what a first step allocates."""
    load_blanks(lane.engine, lane.puzzle_table_PE[0])
    lane.engine.step(1)
    lane.engine.step(lane.engine.num_slots)


def measure(engine: Engine, puzzle_vector_E: Float32, *, limit_s: float = MEASURING_S) -> StepTimes:
    """Seconds of a segment over 1, 2, 4 ... slots, as many as the time allows: the least of a few that take turns."""
    load_blanks(engine, puzzle_vector_E)
    end_s = time.monotonic() + limit_s
    step_s: StepTimes = {}
    size, expected_s = 1, 0.0
    while size <= engine.num_slots and time.monotonic() + 2 * expected_s < end_s:
        engine.step(size)  # the first allocates
        step_s[size] = step_seconds(engine, size)
        size, expected_s = 2 * size, 2 * step_s[size]
    for _ in range(MAX_ROUNDS):
        for size, seconds in step_s.items():
            if time.monotonic() + seconds < end_s:
                step_s[size] = min(seconds, step_seconds(engine, size))
    return step_s


def sizing_from(step_s: Mapping[int, float]) -> tuple[int, str]:
    """Choose among the measured numbers of slots, of which 1 is one; returns the rule beside it.

    Compute-bound, where no number has more than 1/0.9 of the throughput of one slot: the largest up to 4 that loses no
    more than 5 % against one slot. Else the knee: the smallest with 90 % of the best throughput.
    """
    rate = {size: size / seconds for size, seconds in sorted(step_s.items())}
    best = max(rate.values())
    if NEARLY * best <= rate[1]:
        fair = [size for size in rate if size <= FAIR_SLOTS and rate[size] >= (1 - NOISE) * rate[1]]
        return max(fair), "compute-bound"
    return min(size for size in rate if rate[size] >= NEARLY * best), "knee"


class _Figures(BaseModel):
    step_s: dict[PositiveInt, PositiveFloat] = {}
    memory_bytes: dict[PositiveInt, NonNegativeInt] = {}


_ENTRIES = TypeAdapter(dict[str, _Figures])


class StepTimesFile:
    """Kept figures of one graph; what does not read is measured again, what cannot be written is not kept."""

    def __init__(self, bundle: Bundle, choice: Choice, num_threads: int | None) -> None:
        host = board.Host()
        cores = board.num_cores()
        self.graph = bundle.graph_path(choice.precision, device="cpu" if choice.engine == "cpu" else "any")
        machine = f"{platform.machine()} {host.cpu_model or ''}, {cores} cores, power mode {host.power_mode()}"
        sha256 = bundle.manifest.files[self.graph.name].sha256
        self._file = user_cache() / FOLDER / f"{sha256}.json"
        self._key = f"{choice}, {num_threads or cores} threads, {machine}"

    def step_times(self, max_slots: int) -> StepTimes:
        step_s = {size: seconds for size, seconds in self._kept().step_s.items() if size <= max_slots}
        return step_s if 1 in step_s else {}

    def memory_bytes(self, num_slots: int) -> int:
        """What a lane of so many slots was last seen to take; 0 where none was seen."""
        return self._kept().memory_bytes.get(num_slots, 0)

    def keep_step_times(self, step_s: StepTimes) -> None:
        """Keep step times, unless the machine had more to do than it can: such figures say little, and would stay."""
        if (system.load_average() or 0.0) <= board.num_cores():
            self._keep(step_s=dict(step_s))
        else:
            _log.info("the step times were measured on a busy machine, so they are not kept")

    def keep_memory(self, num_slots: int, memory_bytes: int) -> None:
        self._keep(memory_bytes={**self._kept().memory_bytes, num_slots: memory_bytes})

    def _kept(self) -> _Figures:
        return self._entries().get(self._key, _Figures())

    def _keep(self, **figures: object) -> None:
        entries = {**self._entries(), self._key: self._kept().model_copy(update=figures)}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes(self._file, _ENTRIES.dump_json(entries, indent=1, exclude_defaults=True) + b"\n")
        except OSError as error:
            _log.info("the step times are not kept (%s), so they are measured at every start", error)

    def _entries(self) -> dict[str, _Figures]:
        with contextlib.suppress(OSError, ValueError):
            if self._file.stat().st_size <= MAX_FILE_BYTES:
                return _ENTRIES.validate_json(self._file.read_bytes())
        return {}
