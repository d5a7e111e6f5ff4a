"""The machine and its board, read from files and tools that need no root privileges.

Formats: NVIDIA's developer guide for Jetson Linux 36 (nvpmodel, `oc*_event_cnt`) and the kernel's
documents (devfreq, thermal zones). Not run on a Jetson.
"""

import contextlib
import ctypes
import math
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hrm_host import groups

SHARED_CACHE = Path("/var/cache/hrm")
CACHE = "hrm-edge"
CUDA_INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED


def answer_of(words: Sequence[str]) -> str | None:
    """The output of a command; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=15, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def cache_folder() -> Path:
    """The folder for what programs build or measure on this machine.

    It is in `$XDG_CACHE_HOME`, else in the service's cache if this user may write there, else in
    `~/.cache`. A user without a home gets the service's cache, and cannot keep anything there.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / CACHE
    if os.access(SHARED_CACHE, os.W_OK):
        return SHARED_CACHE / CACHE
    try:
        return Path.home() / ".cache" / CACHE
    except RuntimeError:  # no HOME, and no entry in the list of users
        return SHARED_CACHE / CACHE


def num_cores(host: "Host | None" = None) -> int:
    """CPU cores that this process may use: those of its affinity, within the quota of its groups.

    At least 1; a quota is rounded.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(OSError):  # a sandbox may forbid the call
            cores = len(os.sched_getaffinity(0))
    quota = groups.cpu_quota((host or Host()).text)
    if quota is None:
        return cores
    return min(cores, max(1, math.floor(quota + 0.5)))


def threads_left() -> int | None:
    """The threads that this process may still start; None without a limit."""
    return groups.threads_left(Host().text)


def machine_name() -> str:
    """The processor, the cores and the power mode: measured times depend on them."""
    host = Host()
    cpu = f"{platform.machine()} {host.cpu_model or ''}"
    return f"{cpu}, {num_cores()} cores, power mode {host.power_mode()}"


def cuda_devices() -> tuple[int, str]:
    """The number of CUDA devices that the driver starts, and the reason if there are none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return 0, str(error)
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return 0, f"cuInit gives driver error {status}"
    if count.value == 0:
        return 0, "the driver shows no device"
    return count.value, ""


def has_card() -> bool:
    """Whether the first CUDA device has memory of its own, unlike a Jetson's."""
    num_devices, _ = cuda_devices()
    if num_devices == 0:
        return False
    driver = ctypes.CDLL("libcuda.so.1")
    is_integrated = ctypes.c_int(1)
    driver.cuDeviceGetAttribute(ctypes.byref(is_integrated), CUDA_INTEGRATED, 0)
    return is_integrated.value == 0


def cpu_seconds(pid: int | None) -> float:
    """CPU time of a process so far; 0 if it has ended or is not on Linux."""
    stat = Host().text(f"proc/{pid}/stat")
    if stat is None:
        return 0.0
    _, _, fields = stat.rpartition(")")  # the name before it may contain anything
    _, *numbers = fields.split()
    user_ticks, system_ticks = numbers[10:12]
    return (int(user_ticks) + int(system_ticks)) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Host:
    """Reads files below a root and runs commands; tests pass their own.

    None means that a file is missing, forbidden or switched off.
    """

    root: Path = Path("/")
    ask: Callable[[Sequence[str]], str | None] = answer_of

    def text(self, path: str | Path) -> str | None:
        """A file's content without surrounding blanks and zeros."""
        try:
            content = (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return content.strip("\0\n ")

    def number(self, path: str | Path) -> int | None:
        try:
            return int(self.text(path) or "")
        except ValueError:
            return None

    def paths(self, pattern: str) -> Iterator[Path]:
        """The files that match a pattern, sorted and relative to the root."""
        for path in sorted(self.root.glob(pattern)):
            yield path.relative_to(self.root)

    @property
    def model(self) -> str | None:
        """The board's name. In a container it comes from a mounted copy of the device tree."""
        return self.text("proc/device-tree/model") or self.text("etc/hrm-board-model")

    @property
    def cpu_model(self) -> str | None:
        """The CPU's name; None on processors that do not report it, such as most Arm ones."""
        text = self.text("proc/cpuinfo") or ""
        found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
        if found is None:
            return None
        return found[1].strip()

    @property
    def jetson_release(self) -> str | None:
        """The line of Jetson Linux, as `# R36 (release), REVISION: 4.3, ...`."""
        text = self.text("etc/nv_tegra_release")
        if text is None:
            return None
        first, _, _ = text.partition("\n")
        return first

    def power_modes(self) -> dict[int, str]:
        """The power modes of this board by number, from its nvpmodel.conf."""
        text = self.text("etc/nvpmodel.conf") or ""
        pattern = r"^<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>"
        return {int(number): name for number, name in re.findall(pattern, text, re.MULTILINE)}

    def recorded_power_mode(self) -> str | None:
        """The current mode, for example "MAXN_SUPER", from the status file of nvpmodel."""
        status = self.text("var/lib/nvpmodel/status") or ""
        found = re.search(r"pmode:(\d+)", status)
        if found is None:
            return None
        number = int(found[1])
        return self.power_modes().get(number, f"mode {number}")

    def power_mode(self) -> str:
        """The current mode: from the status file, else from nvpmodel, else "none"."""
        recorded = self.recorded_power_mode()
        if recorded is not None:
            return recorded
        if shutil.which("nvpmodel") is None:
            return "none"
        answer = self.ask(("nvpmodel", "-q")) or ""
        found = re.search(r"^NV Power Mode:(.*)$", answer, re.MULTILINE)
        if found is None:
            return "unknown"
        return found[1].strip()

    def gpu_mhz(self) -> Iterator[tuple[int, int]]:
        """Frequencies of each of the GPU's devfreq devices: now, and at most."""
        for path in self.paths("sys/class/devfreq/*gpu*/cur_freq"):
            now_hz = self.number(path)
            max_hz = self.number(path.parent / "max_freq")
            if now_hz is not None and max_hz is not None:
                yield now_hz // 10**6, max_hz // 10**6

    def facts(self) -> dict[str, str]:
        """The facts that determine the speed of this machine, for a report."""
        facts = {"power_mode": self.power_mode(), "cpu_cores": str(os.cpu_count() or 1)}
        for now_mhz, max_mhz in self.gpu_mhz():
            facts["gpu_cur_mhz"] = str(now_mhz)
            facts["gpu_max_mhz"] = str(max_mhz)
        if self.model is not None:
            facts["model"] = self.model
        if self.jetson_release is not None:
            facts["release"] = self.jetson_release
        return facts

    # Readings by name; sensors that the machine lacks are absent.

    def temperature_c(self) -> dict[str, float]:
        """By thermal zone; a zone that is switched off reports none."""
        celsius: dict[str, float] = {}
        for path in self.paths("sys/class/thermal/thermal_zone*/temp"):
            millidegrees = self.number(path)
            if millidegrees is not None:
                name = self.text(path.parent / "type") or path.parent.name
                celsius[name] = millidegrees / 1000
        return celsius

    def throttle_events(self) -> dict[str, int]:
        """How often the board throttled because of over-current since it started."""
        counts: dict[str, int] = {}
        for path in self.paths("sys/class/hwmon/hwmon*/oc*_event_cnt"):
            count = self.number(path)
            if count is not None:
                name = path.name.removesuffix("_event_cnt")
                counts[name] = count
        return counts
