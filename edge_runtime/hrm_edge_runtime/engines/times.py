"""Times of a segment on this machine, kept in the user's cache and never in a bundle.

CPU times by precision: `auto` runs the fastest. INT8 halves the time of one model and doubles that
of another, depending on the CPU. `hrm-export` and `hrm models --measure` record them, and their
tables show the same figures.

Times by the number of slots, with the memory of a lane: a lane measures them when it first opens.
They hold for one graph, engine, number of threads and machine in its power mode.
"""

import contextlib
import hashlib
import platform
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import Engine, load_blanks
from hrm_host import atomic, machine, system

ARM = ("aarch64", "arm64")  # as Linux and macOS write it
GAIN = 1.1  # a lower precision costs solves, so it must be this much faster than float32
MEASURING_S = 0.2  # CPU seconds of measuring per precision
LONGER_S = 0.8  # the same, if a precision gains almost `GAIN` or little more
CLOSE = 0.1  # share of `GAIN` that counts as almost
MIN_ROUNDS = 3
PRECISIONS = "precisions"  # a folder of the user's cache, with a file for each bundle
STEPS = "steps"  # the same, with a file for each graph
MAX_FILE_BYTES = 64 * 1024

Entry = TypeVar("Entry")
TimesMs = dict[str, float]
StepTimes = dict[int, float]
"""Seconds of a segment by the number of slots."""

_PRECISION_ENTRIES = TypeAdapter(dict[str, dict[str, PositiveFloat]])


def measure(bundle: Bundle) -> TimesMs:
    """Time a segment of one puzzle in every precision and keep the times."""
    times_ms = segment_times(bundle, 1)
    keep_entry(_file_of(bundle), _PRECISION_ENTRIES, machine.machine_name(), times_ms)
    return times_ms


def segment_times(bundle: Bundle, batch: int) -> TimesMs:
    """CPU time of a segment of `batch` puzzles in every precision, on one thread."""
    from hrm_edge_runtime.engines.onnx import engine_from_bundle

    engines: dict[str, Engine] = {}
    with ExitStack() as opened:
        for precision in bundle.manifest.precisions:
            engine = engine_from_bundle(bundle, precision=precision, num_slots=batch, num_threads=1)
            opened.enter_context(closing(engine))
            load_blanks(engine, bundle.puzzle_table[0])
            engines[precision] = engine
        return in_turns(engines, batch)


def in_turns(engines: Mapping[str, Engine], batch: int) -> TimesMs:
    """CPU time of a segment by engine, on this thread.

    The engines take turns, so other work slows them alike. They are timed longer if a precision
    gains about `GAIN`.
    """
    times_ms = _mean_times(engines, batch, MEASURING_S)
    if any(_is_close(times_ms, name) for name in engines):
        times_ms = _mean_times(engines, batch, LONGER_S)
    return times_ms


def kept(bundle: Bundle) -> TimesMs:
    """The times that were measured on this machine; empty if there are none."""
    return entries_of(_file_of(bundle), _PRECISION_ENTRIES).get(machine.machine_name(), {})


def fastest(bundle: Bundle) -> str | None:
    """The decided precision that runs fastest here, by at least `GAIN`; None without times.

    Never float16 on Arm: its kernels also add in float16, and the bundle's parity was measured with
    sums in float32.
    """
    times_ms = kept(bundle)
    if "fp32" not in times_ms:
        return None
    if platform.machine() in ARM:
        times_ms = {name: time_ms for name, time_ms in times_ms.items() if name != "fp16"}
    return fastest_of(times_ms, bundle.manifest.decided)


def fastest_of(times_ms: TimesMs, decided: Collection[str]) -> str:
    """The fastest of these precisions; fp32 unless another one is `GAIN` times as fast."""
    cost_ms = {"fp32": times_ms["fp32"]}
    for precision in decided:
        if precision in times_ms and precision != "fp32":
            cost_ms[precision] = GAIN * times_ms[precision]
    return min(cost_ms, key=cost_ms.__getitem__)


def _is_close(times_ms: TimesMs, precision: str) -> bool:
    """Whether noise could decide between this precision and float32."""
    if precision == "fp32" or "fp32" not in times_ms:
        return False
    share = GAIN * times_ms[precision] / times_ms["fp32"]
    return abs(share - 1) <= CLOSE


def _mean_times(engines: Mapping[str, Engine], batch: int, seconds: float) -> TimesMs:
    """The mean, because the CPU clock of some systems has ticks longer than a step."""
    total_s = dict.fromkeys(engines, 0.0)
    for engine in engines.values():
        engine.step(batch)  # the first step allocates memory
    num_rounds = 0
    while num_rounds < MIN_ROUNDS or sum(total_s.values()) < seconds * len(engines):
        for name, engine in engines.items():
            began_s = time.thread_time()
            engine.step(batch)
            total_s[name] += time.thread_time() - began_s
        num_rounds += 1
    return {name: 1000 * total / num_rounds for name, total in total_s.items()}


def _file_of(bundle: Bundle) -> Path:
    digest = hashlib.sha256()
    for precision in bundle.manifest.precisions:
        graph = bundle.graph_path(precision, device="cpu")
        digest.update(bundle.manifest.files[graph.name].sha256.encode())
    return machine.cache_folder() / PRECISIONS / f"{digest.hexdigest()}.json"


def entries_of(file: Path, entries: TypeAdapter[dict[str, Entry]]) -> dict[str, Entry]:
    """The entries of a file of measured figures; none if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        if file.stat().st_size <= MAX_FILE_BYTES:
            return entries.validate_json(file.read_bytes())
    return {}


def keep_entry(file: Path, adapter: TypeAdapter[dict[str, Entry]], key: str, entry: Entry) -> None:
    """Write an entry of a file of measured figures; if the cache cannot be written, it is lost."""
    entries = entries_of(file, adapter)
    entries[key] = entry
    content = adapter.dump_json(entries, indent=1, exclude_defaults=True)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes(file, content + b"\n")


class _Figures(BaseModel):
    step_s: dict[PositiveInt, PositiveFloat] = {}
    memory_bytes: dict[PositiveInt, NonNegativeInt] = {}


_STEP_ENTRIES = TypeAdapter(dict[str, _Figures])


class StepTimesFile:
    """Kept figures of one graph; a file that cannot be read or written counts as empty."""

    def __init__(
        self, bundle: Bundle, engine: str, precision: str, num_threads: int | None
    ) -> None:
        device = "cpu" if engine == "cpu" else "any"
        self.graph = bundle.graph_path(precision, device=device)
        sha256 = bundle.manifest.files[self.graph.name].sha256
        self._file = machine.cache_folder() / STEPS / f"{sha256}.json"
        threads = num_threads or machine.num_cores()
        self._key = f"{engine}:{precision}, {threads} threads, {machine.machine_name()}"

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
        return entries_of(self._file, _STEP_ENTRIES).get(self._key, _Figures())

    def _keep(self, **figures: object) -> None:
        kept = self._kept().model_copy(update=figures)
        keep_entry(self._file, _STEP_ENTRIES, self._key, kept)


def _is_busy() -> bool:
    """Whether more processes want to run than there are cores."""
    load = system.load_average() or 0.0
    return load > machine.num_cores()
