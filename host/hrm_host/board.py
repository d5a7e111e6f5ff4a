"""Which board this is and how it is set: release, power mode, GPU clock.

Formats after NVIDIA's developer guide for Jetson Linux 36 (nvpmodel) and the kernel's documents (devfreq). Written from
these; not run on a Jetson.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

from hrm_host.machine_files import Files

GPU_CLOCK = "sys/class/devfreq/*gpu*/cur_freq"
MODE = re.compile(r"^<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class GpuClock:
    """Of the GPU's devfreq device, in Hz; `max_hz` may be held below what is `offered_hz`."""

    now_hz: int
    min_hz: int
    max_hz: int
    offered_hz: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Board:
    """What the machine's files tell; None where a machine has no such file."""

    files: Files = field(default_factory=Files)

    @property
    def model(self) -> str | None:
        return self.files.text("proc/device-tree/model")

    @property
    def release(self) -> str | None:
        """The line of Jetson Linux, as `# R36 (release), REVISION: 4.3, ...`."""
        text = self.files.text("etc/nv_tegra_release")
        return None if text is None else text.partition("\n")[0]

    def power_modes(self) -> dict[int, str]:
        """The names of the power modes this board offers, as in its nvpmodel.conf."""
        return {int(number): name for number, name in MODE.findall(self.files.text("etc/nvpmodel.conf") or "")}

    def power_mode(self) -> str | None:
        """The name of the mode in force, as "MAXN_SUPER", from what nvpmodel left when it set it."""
        set_to = re.search(r"pmode:(\d+)", self.files.text("var/lib/nvpmodel/status") or "")
        return None if set_to is None else self.power_modes().get(int(set_to[1]), f"mode {int(set_to[1])}")

    def gpu_clocks(self) -> Iterator[GpuClock]:
        for path in self.files.paths(GPU_CLOCK):
            now, low, high = (self.files.number(path.parent / f"{name}_freq") for name in ("cur", "min", "max"))
            offered = (self.files.text(path.parent / "available_frequencies") or "").split()
            if now is not None and low is not None and high is not None:
                yield GpuClock(now_hz=now, min_hz=low, max_hz=high, offered_hz=tuple(map(int, offered)))

    def facts(self) -> dict[str, str]:
        """Everything that decides how fast it is, for a report."""
        found = {"model": self.model, "release": self.release}
        facts = {"power_mode": power_mode(self), "cpu_cores": str(os.cpu_count() or 1)}
        for clock in self.gpu_clocks():
            facts["gpu_cur_mhz"], facts["gpu_max_mhz"] = (str(hz // 10**6) for hz in (clock.now_hz, clock.max_hz))
        return {**facts, **{name: text for name, text in found.items() if text is not None}}


def power_mode(board: Board | None = None) -> str:
    """The mode in force; the tool itself is asked where it left no file, and "none" is said where there is no tool."""
    if (mode := (board or Board()).power_mode()) is not None:
        return mode
    if shutil.which("nvpmodel") is None:
        return "none"
    told = subprocess.run(["nvpmodel", "-q"], capture_output=True, text=True, check=False).stdout
    named = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("NV Power Mode")]
    return named[0] if named else "unknown"
