"""Measures training: where a step's time goes, samples per second, a profile, the GPU's sensors.

On CUDA a phase is the time between two events on the device's timeline. They are read after they
have passed, and nothing waits for them. So "data" is the time in which the device waits for
rows. On a CPU a phase is wall time.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import profiler

from hrm_host.memory import GIB


class HostMark:
    """One moment on the host, with the methods of a torch.cuda.Event."""

    at_s: float

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: "HostMark", /) -> float:
        return 1000 * (end_event.at_s - self.at_s)


Span = tuple[str, Any, Any]
"""A phase with its begin and its end, each a HostMark or a torch.cuda.Event."""


class PhaseTimer:
    """Call `phase` around the parts of a step, `count` at its end, and `drain` to read."""

    MOST_PENDING = 1000  # maximum steps kept while nothing reads them

    def __init__(self, device: torch.device) -> None:
        self._new_mark: Callable[[], Any] = HostMark
        if device.type == "cuda":
            self._new_mark = partial(torch.cuda.Event, enable_timing=True)
        self._open: list[Span] = []
        self._pending: deque[list[Span]] = deque(maxlen=self.MOST_PENDING)
        self._steps_ms: deque[float] = deque(maxlen=self.MOST_PENDING)
        self._last_end: Any = None
        self._restart()

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Times what runs inside. A phase entered several times in a step adds up.

        Phases do not nest.
        """
        begin = self._new_mark()
        end = self._new_mark()
        with profiler.record_function(f"phase/{name}"):
            begin.record()
            yield
            end.record()
        self._open.append((name, begin, end))

    def count(self, samples: int) -> None:
        self._steps += 1
        self._samples += samples
        self._pending.append(self._open)
        self._open = []

    @contextmanager
    def aside(self) -> Generator[None]:
        """Excludes what runs inside (a validation, a checkpoint) from the training time."""
        begin_s = time.perf_counter()
        cpu_begin_s = time.process_time()
        yield
        self._since += time.perf_counter() - begin_s
        self._cpu_since += time.process_time() - cpu_begin_s
        self._pending.append([])  # the next step does not begin where the last one ended

    def drain(self) -> dict[str, Any]:
        """Reads the steps whose marks have all passed, without waiting, and begins anew.

        At least one step must have been counted. Returns means since the last reading:
        `step_ms` (wall time, so phases need not add up to it), `cpu_cores` (kept busy by this
        process), `samples_per_s` and `phase_ms`. `step_p50_ms` and `step_p99_ms` are over the
        last MOST_PENDING steps, each from the end of the step before; 0 without one.
        """
        wall_s = time.perf_counter() - self._since
        cpu_s = time.process_time() - self._cpu_since
        phase_ms = self._drain_phases()
        p50_ms, p99_ms = np.percentile(self._steps_ms or [0.0], (50, 99)).tolist()
        reading = {
            "step_ms": 1000 * wall_s / self._steps,
            "step_p50_ms": p50_ms,
            "step_p99_ms": p99_ms,
            "cpu_cores": cpu_s / wall_s,
            "samples_per_s": self._samples / wall_s,
            "phase_ms": phase_ms,
        }
        self._restart()
        return reading

    def _drain_phases(self) -> dict[str, float]:
        """The mean time of each phase, over the steps that have passed."""
        total_ms: defaultdict[str, float] = defaultdict(float)
        num_passed = 0
        while self._pending and all(end.query() for _, _, end in self._pending[0]):
            spans = self._pending.popleft()
            for phase, begin, end in spans:
                total_ms[phase] += begin.elapsed_time(end)
            if not spans:  # an aside
                self._last_end = None
                continue
            num_passed += 1
            _, _, end = spans[-1]
            if self._last_end:
                self._steps_ms.append(self._last_end.elapsed_time(end))
            self._last_end = end
        return {phase: ms / num_passed for phase, ms in total_ms.items()}

    def _restart(self) -> None:
        self._since = time.perf_counter()
        self._cpu_since = time.process_time()
        self._steps = 0
        self._samples = 0


WARM = 5  # steps before the first that is profiled
TABLE = "profile.txt"
TRACE = "trace.json.gz"
# The readers of a card's sensors, and the factor to the unit in the name.
SENSORS: dict[str, tuple[Callable[[torch.device], int], float]] = {
    "gpu_utilisation_percent": (torch.cuda.utilization, 1),
    "gpu_temperature_c": (torch.cuda.temperature, 1),
    "gpu_power_w": (torch.cuda.power_draw, 1e-3),
    "gpu_sm_clock_mhz": (torch.cuda.clock_rate, 1),
}


def profile_steps(
    step: Callable[[], object], device: torch.device, run: Path, num_steps: int
) -> str:
    """Profiles `num_steps` steps: their phases (phase/NAME) and slowest operators.

    Writes the table and the trace (for chrome://tracing or perfetto) into `run`.
    """
    activities = [profiler.ProfilerActivity.CPU]
    clock = "cpu_time_total"
    if device.type == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
        clock = "device_time_total"
    steps = profiler.schedule(wait=0, warmup=WARM, active=num_steps, repeat=1)
    with profiler.profile(activities=activities, schedule=steps, acc_events=True) as profiled:
        for _ in range(WARM + num_steps):
            step()
            profiled.step()
    averages = profiled.key_averages()
    table = averages.table(sort_by=clock, row_limit=40, max_name_column_width=40)
    run.mkdir(parents=True, exist_ok=True)
    profiled.export_chrome_trace(str(run / TRACE))
    (run / TABLE).write_text(table, encoding="utf-8")
    return table


def gpu_figures(device: torch.device) -> dict[str, float]:
    """Memory of a GPU as PyTorch sees it, in GiB, and its sensors; nothing on a CPU.

    Sensors that the card does not report are absent: laptops and virtual cards lack some. All are
    absent without the module pynvml.
    """
    if device.type != "cuda":
        return {}
    found = {
        "memory_allocated_gib": torch.cuda.memory_allocated(device) / GIB,
        "memory_reserved_gib": torch.cuda.memory_reserved(device) / GIB,
        "memory_peak_gib": torch.cuda.max_memory_allocated(device) / GIB,
    }
    for name, (read, unit) in SENSORS.items():
        with suppress(Exception):  # pynvml's errors are known only if it is installed
            found[name] = float(read(device)) * unit
    return found
