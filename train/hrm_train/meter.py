"""What is measured of training: where a step's time goes, samples per second, a profile, what the GPU reports.

On CUDA a phase is the time between two events on the device's timeline, read once they have passed and never waited
for; so "data" is the time in which the device waits for rows. On a CPU it is the wall clock.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import profiler

from hrm_host.memory import GIB
from hrm_train.hardware import Say

PHASE = "phase/"  # prefix of the phases' names in a torch.profiler trace


class Mark(Protocol):
    """One moment; torch.cuda.Event is one. `query`: has it passed? `elapsed_time`: milliseconds up to `end_event`."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any, /) -> float: ...


class HostMark:
    at_s: float

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: "HostMark", /) -> float:
        return 1000 * (end_event.at_s - self.at_s)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Means over the steps since the last reading."""

    step_ms: float  # wall time, so phases need not add up to it
    step_p50_ms: float = 0.0  # of the last MOST_PENDING steps, from the end of one to the end of the next
    step_p99_ms: float = 0.0
    cpu_cores: float = 0.0  # that this process kept busy
    samples_per_s: float
    phase_ms: Mapping[str, float]

    def share(self, phase: str) -> float:
        """The part of a step that a phase takes, 0 where nothing was measured."""
        return self.phase_ms.get(phase, 0.0) / self.step_ms if self.step_ms else 0.0


_Span = tuple[str, Mark, Mark]  # a phase, its begin and its end


class PhaseTimer:
    """Call `phase` around the parts of a step, `count` at its end, and `drain` to read."""

    MOST_PENDING = 1000  # steps kept where nothing is read

    def __init__(self, device: torch.device, new_mark: Callable[[], Mark] | None = None) -> None:
        on_cuda = device.type == "cuda"
        self._new_mark = new_mark or ((lambda: torch.cuda.Event(enable_timing=True)) if on_cuda else HostMark)
        self._open: list[_Span] = []
        self._pending: deque[list[_Span]] = deque(maxlen=self.MOST_PENDING)
        self._steps_ms: deque[float] = deque(maxlen=self.MOST_PENDING)
        self._last_end: Mark | None = None
        self._restart()

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Times what runs inside; a phase entered several times in one step adds up. Phases do not nest."""
        begin, end = self._new_mark(), self._new_mark()
        with profiler.record_function(PHASE + name):
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
        """What runs inside (a validation, a checkpoint) is no training time."""
        begin, cpu_s = time.perf_counter(), time.process_time()
        yield
        self._since += time.perf_counter() - begin
        self._cpu_since += time.process_time() - cpu_s
        self._pending.append([])  # the step after it does not begin where the last one ended

    def drain(self) -> Reading:
        """Reads the steps whose marks have all passed, without waiting for the others, and begins anew."""
        wall_s, cpu_s = time.perf_counter() - self._since, time.process_time() - self._cpu_since
        total_ms: defaultdict[str, float] = defaultdict(float)
        passed = 0
        while self._pending and all(end.query() for _, _, end in self._pending[0]):
            spans = self._pending.popleft()
            passed += bool(spans)
            for phase, begin, end in spans:
                total_ms[phase] += begin.elapsed_time(end)
            end = spans[-1][2] if spans else None
            if self._last_end and end:
                self._steps_ms.append(self._last_end.elapsed_time(end))
            self._last_end = end
        p50_ms, p99_ms = np.percentile(self._steps_ms, (50, 99)).tolist() if self._steps_ms else (0.0, 0.0)
        reading = Reading(
            step_ms=1000 * wall_s / max(1, self._steps),
            step_p50_ms=p50_ms,
            step_p99_ms=p99_ms,
            cpu_cores=cpu_s / wall_s if wall_s > 0 else 0.0,
            samples_per_s=self._samples / wall_s if wall_s > 0 else 0.0,
            phase_ms={phase: ms / passed for phase, ms in total_ms.items()},
        )
        self._restart()
        return reading

    def _restart(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.process_time()
        self._steps = self._samples = 0


WARM, ROWS, NAME_WIDTH = 2, 40, 40  # steps that warm the profiler up; rows of its table, and the width of their names
TABLE, TRACE = "profile.txt", "trace.json.gz"


def profile_steps(step: Callable[[], object], device: torch.device, run: Path, window: tuple[int, int]) -> str:
    """Profiles `window[1]` steps after leaving out `window[0]`: the phases (phase/NAME) and the dearest operators.

    Writes the table and the trace (for chrome://tracing or perfetto) into `run`.
    """
    (skip, active), kinds = window, profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if device.type == "cuda" else [kinds.CPU]
    steps = profiler.schedule(wait=skip, warmup=WARM, active=active, repeat=1)
    with profiler.profile(activities=activities, schedule=steps, acc_events=True) as profiled:
        for _ in range(skip + WARM + active):
            step()
            profiled.step()
    clock = "device_time_total" if device.type == "cuda" else "cpu_time_total"
    table = profiled.key_averages().table(sort_by=clock, row_limit=ROWS, max_name_column_width=NAME_WIDTH)
    run.mkdir(parents=True, exist_ok=True)
    profiled.export_chrome_trace(str(run / TRACE))
    (run / TABLE).write_text(table, encoding="utf-8")
    return table


THROTTLE_BITS = {"power": 0x04, "hardware": 0x08, "thermal": 0x20 | 0x40, "brake": 0x80}
"""Bits of nvmlClocksThrottleReasons: SwPowerCap, HwSlowdown, Sw and Hw ThermalSlowdown, HwPowerBrakeSlowdown."""


class NvmlGpu:
    """One card, as NVIDIA's management library reports it; `library` is the module pynvml, opened."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    def sample(self) -> dict[str, float]:  # a laptop's or a virtual card lacks some
        nvml, handle = self._library, self._handle
        found = {
            "gpu_utilisation_percent": self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "gpu_temperature_c": self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "gpu_power_w": self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "gpu_sm_clock_mhz": self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "gpu_memory_clock_mhz": self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        }
        return {name: float(value) for name, value in found.items() if value is not None}

    def throttled(self) -> tuple[str, ...]:
        """Why the clock is held down, as keys of telemetry.THROTTLED."""
        bits = self._ask(lambda: self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        return throttle_reasons(int(bits or 0))

    def _ask(self, question: Callable[[], float]) -> float | None:
        try:
            return question()
        except self._library.NVMLError:
            return None


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Names of the reasons that hold the clock down; idling and the user's own settings do not count."""
    found = tuple(name for name, mask in THROTTLE_BITS.items() if bits & mask)
    specific = {"thermal", "brake"} & set(found)
    return tuple(name for name in found if name != "hardware" or not specific)


def open_gpu(device: torch.device, say: Say) -> NvmlGpu | None:
    """The card that trains; None on a CPU, and with one sentence where the library or its driver is missing."""
    if device.type != "cuda":
        return None
    try:
        import pynvml
    except ImportError:
        say("GPU temperature, power and clocks are not shown; pip install nvidia-ml-py to see them")
        return None
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return NvmlGpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except (pynvml.NVMLError, AttributeError) as error:
        say(f"GPU temperature, power and clocks are not shown ({error}); check that 'nvidia-smi' works")
        return None


def gpu_memory(device: torch.device) -> dict[str, float]:
    """GPU memory as PyTorch sees it, in GiB; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "memory_allocated_gib": torch.cuda.memory_allocated(device) / GIB,
        "memory_reserved_gib": torch.cuda.memory_reserved(device) / GIB,
        "memory_peak_gib": torch.cuda.max_memory_allocated(device) / GIB,
    }
