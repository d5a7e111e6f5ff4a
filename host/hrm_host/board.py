"""The machine and its board, from files and tools that need no rights: settings, power, energy, heat, throttling.

Formats: NVIDIA's developer guide for Jetson Linux 36 (nvpmodel, `oc*_event_cnt`) and the kernel's documents (devfreq,
thermal zones, powercap intel-rapl, hwmon/ina3221 in mV and mA). Not run on a Jetson.
"""

import ctypes
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

POWER_MODEL = re.compile(r"^<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", re.MULTILINE)


def answer_of(words: Sequence[str]) -> str | None:
    """What a command prints; None where it is missing, fails or hangs."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=15, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def num_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cuda_devices() -> tuple[int, str]:
    """How many CUDA devices the driver starts, and why there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return 0, str(error)
    count = ctypes.c_int(0)
    if status := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0, f"cuInit gives driver error {status}"
    return count.value, "" if count.value else "the driver shows no device"


@dataclass(frozen=True, kw_only=True)
class GpuClock:
    """Of the GPU's devfreq device, in Hz; `max_hz` may be held below what is `offered_hz`."""

    now_hz: int
    min_hz: int
    max_hz: int
    offered_hz: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Zone:
    """A thermal zone now; its limits are files in `folder`."""

    name: str
    folder: Path
    celsius: float


@dataclass(frozen=True, kw_only=True)
class Host:
    """Reads files below a root and asks commands; a test gives its own. None is missing, forbidden or switched off."""

    root: Path = Path("/")
    ask: Callable[[Sequence[str]], str | None] = answer_of

    def text(self, path: str | Path) -> str | None:
        """A file's content without the blanks and zeros around it."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
        except OSError:
            return None

    def number(self, path: str | Path) -> int | None:
        try:
            return int(self.text(path) or "")
        except ValueError:
            return None

    def paths(self, pattern: str) -> Iterator[Path]:
        """The files that match a pattern, sorted and relative to the root."""
        for path in sorted(self.root.glob(pattern)):
            yield path.relative_to(self.root)

    def space(self, path: str | Path) -> tuple[int, int] | None:
        """Bytes in all and bytes free of the file system that holds `path`."""
        try:
            usage = shutil.disk_usage(self.root / path)
        except OSError:
            return None
        return usage.total, usage.free

    @property
    def model(self) -> str | None:
        return self.text("proc/device-tree/model")

    @property
    def cpu_model(self) -> str | None:
        """The CPU's name; None on processors that do not say, as most of Arm."""
        found = re.search(r"^model name\s*:\s*(.*)$", self.text("proc/cpuinfo") or "", re.MULTILINE)
        return None if found is None else found[1].strip()

    @property
    def jetson_release(self) -> str | None:
        """The line of Jetson Linux, as `# R36 (release), REVISION: 4.3, ...`."""
        text = self.text("etc/nv_tegra_release")
        return None if text is None else text.partition("\n")[0]

    def power_modes(self) -> dict[int, str]:
        """The names of the power modes this board offers, from its nvpmodel.conf."""
        return {int(number): name for number, name in POWER_MODEL.findall(self.text("etc/nvpmodel.conf") or "")}

    def recorded_power_mode(self) -> str | None:
        """The name of the mode in force, as "MAXN_SUPER", from the status file that nvpmodel leaves."""
        set_to = re.search(r"pmode:(\d+)", self.text("var/lib/nvpmodel/status") or "")
        return None if set_to is None else self.power_modes().get(int(set_to[1]), f"mode {int(set_to[1])}")

    def power_mode(self) -> str:
        """The mode in force; without a status file nvpmodel itself is asked, and without nvpmodel it is "none"."""
        if (mode := self.recorded_power_mode()) is not None:
            return mode
        if shutil.which("nvpmodel") is None:
            return "none"
        named = re.search(r"^NV Power Mode:(.*)$", self.ask(("nvpmodel", "-q")) or "", re.MULTILINE)
        return named[1].strip() if named else "unknown"

    def gpu_clocks(self) -> Iterator[GpuClock]:
        for path in self.paths("sys/class/devfreq/*gpu*/cur_freq"):
            now, low, high = (self.number(path.parent / f"{name}_freq") for name in ("cur", "min", "max"))
            offered = (self.text(path.parent / "available_frequencies") or "").split()
            if now is not None and low is not None and high is not None:
                yield GpuClock(now_hz=now, min_hz=low, max_hz=high, offered_hz=tuple(map(int, offered)))

    def facts(self) -> dict[str, str]:
        """What decides how fast the machine is, for a report."""
        found = {"model": self.model, "release": self.jetson_release}
        facts = {"power_mode": self.power_mode(), "cpu_cores": str(os.cpu_count() or 1)}
        for clock in self.gpu_clocks():
            facts["gpu_cur_mhz"], facts["gpu_max_mhz"] = (str(hz // 10**6) for hz in (clock.now_hz, clock.max_hz))
        return {**facts, **{name: text for name, text in found.items() if text is not None}}

    # Readings by name; what the machine does not have is left out.

    def power_w(self) -> dict[str, float]:
        """Of each supply rail. On an Orin module VDD_IN feeds the others: do not add them up."""
        watts: dict[str, float] = {}
        for named in self.paths("sys/class/hwmon/hwmon*/name"):
            if self.text(named) != "ina3221":
                continue
            for channel in (1, 2, 3):
                label = self.text(named.parent / f"in{channel}_label") or ""
                millivolts = self.number(named.parent / f"in{channel}_input")
                milliamperes = self.number(named.parent / f"curr{channel}_input")
                if label not in ("NC", "") and millivolts is not None and milliamperes is not None:
                    watts[label] = millivolts * milliamperes / 1e6
        return watts

    def zones(self) -> Iterator[Zone]:
        """The thermal zones; one that is switched off does not read."""
        for path in self.paths("sys/class/thermal/thermal_zone*/temp"):
            if (millidegrees := self.number(path)) is not None:
                name = self.text(path.parent / "type") or path.parent.name
                yield Zone(name=name, folder=path.parent, celsius=millidegrees / 1000)

    def temperature_c(self) -> dict[str, float]:
        return {zone.name: zone.celsius for zone in self.zones()}

    def hottest_c(self) -> float | None:
        return max((zone.celsius for zone in self.zones()), default=None)

    def counted_energy_j(self) -> dict[str, float]:
        """The machine's own counters, which wrap around after hours."""
        found: dict[str, float] = {}
        for path in self.paths("sys/class/powercap/intel-rapl:[0-9]*/energy_uj"):
            if (microjoules := self.number(path)) is not None:
                found[self.text(path.parent / "name") or path.parent.name] = microjoules / 1e6
        return found

    def throttle_events(self) -> dict[str, int]:
        """How often the board throttled for want of current since it started."""
        paths = self.paths("sys/class/hwmon/hwmon*/oc*_event_cnt")
        counts = {path.name: self.number(path) for path in paths}
        return {name.removesuffix("_event_cnt"): count for name, count in counts.items() if count is not None}


@dataclass(kw_only=True)
class Energy:
    """Joules that only rise: counters with their wraps taken out, or power averaged over each two readings."""

    machine: Host
    clock: Callable[[], float] = time.monotonic
    _joules: dict[str, float] = field(default_factory=dict[str, float])
    _counted: dict[str, float] = field(default_factory=dict[str, float])
    _watts: dict[str, float] = field(default_factory=dict[str, float])
    _read_s: float = 0.0

    def read_j(self) -> dict[str, float]:
        """Since the first reading, by rail or by counter."""
        now_s, watts, counted = self.clock(), self.machine.power_w(), self.machine.counted_energy_j()
        for name, value in watts.items():
            added = (value + self._watts[name]) / 2 * (now_s - self._read_s) if name in self._watts else 0.0
            self._joules[name] = self._joules.get(name, 0.0) + added
        for name, value in counted.items():
            self._joules[name] = self._joules.get(name, 0.0) + max(0.0, value - self._counted.get(name, value))
        self._read_s, self._watts, self._counted = now_s, watts, counted
        return dict(self._joules)
