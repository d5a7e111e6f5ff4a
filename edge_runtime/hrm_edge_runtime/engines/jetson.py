"""What a Jetson says about itself: its memory, its power mode, its clock. Other machines answer as far as they can.

`cudaMemGetInfo` leaves out pages that the kernel would give back, so on a GPU that shares the CPU's memory the kernel's
own account is asked (CUDA for Tegra application note, section 3.3).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
MODEL = Path("/proc/device-tree/model")
RELEASE = Path("/etc/nv_tegra_release")
GPU_CLOCK = "/sys/class/devfreq/*gpu*/"

# Calculated, not measured on a Jetson: the builder's kernel library took 1.75 GB of host memory on x86 with 10.10
# (NVIDIA/TensorRT issue 4493); beside it the graph, its parsed copy and the plan, and the workspace.
BUILDER_MB = 2000
COPIES_OF_GRAPH = 4


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The machine's memory in MB, as the kernel tells it; `gpu_mb` is what the GPU holds of it (NvMapMemUsed)."""

    total_mb: int
    available_mb: int
    swap_free_mb: int
    gpu_mb: int

    @property
    def allocatable_mb(self) -> int:
        """What a GPU that shares this memory could still allocate.

        Pages of the host go to swap while there is room for them; the memory already on the device does not.
        """
        host_mb = max(0, self.total_mb - self.available_mb - self.gpu_mb)
        stays_mb = max(0, host_mb - self.swap_free_mb)
        return max(0, self.total_mb - self.gpu_mb - stays_mb)


def read_memory(file: Path = MEMINFO) -> Memory | None:
    """The kernel's account; None where there is none (not Linux)."""
    if not file.is_file():
        return None
    words = (line.replace(":", " ").split() for line in file.read_text(encoding="ascii").splitlines())
    kb = {name: int(value) for name, value, *_ in words}
    return Memory(
        total_mb=kb["MemTotal"] // 1024,
        available_mb=kb["MemAvailable"] // 1024,
        swap_free_mb=kb.get("SwapFree", 0) // 1024,
        gpu_mb=kb.get("NvMapMemUsed", 0) // 1024,
    )


def resident_mb(file: Path = Path("/proc/self/status")) -> int | None:
    """Memory that this process holds."""
    lines = file.read_text(encoding="ascii").splitlines() if file.is_file() else []
    held = [int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS")]
    return held[0] if held else None


def temperature_c() -> float | None:
    """Of the hottest zone; zones that are switched off do not read."""
    degrees: list[float] = []
    for file in Path("/sys/class/thermal").glob("thermal_zone*/temp"):
        try:
            degrees.append(int(file.read_text(encoding="ascii")) / 1000)
        except (OSError, ValueError):
            continue
    return max(degrees, default=None)


def build_needs_mb(graph_bytes: int, workspace_mb: int) -> int:
    """An estimate of what building an engine takes."""
    return BUILDER_MB + COPIES_OF_GRAPH * graph_bytes // 10**6 + workspace_mb


def power_mode() -> str:
    """The name `nvpmodel` gives the mode in force, as "MAXN_SUPER"; "none" where there is no such tool."""
    if shutil.which("nvpmodel") is None:
        return "none"
    told = subprocess.run(["nvpmodel", "-q"], capture_output=True, text=True, check=False).stdout
    named = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("NV Power Mode")]
    return named[0] if named else "unknown"


def board() -> dict[str, str]:
    """Model, L4T release, power mode and GPU clock (MHz, now and at most) as far as the machine tells them."""
    facts = {"power_mode": power_mode(), "cpu_cores": str(os.cpu_count() or 1)}
    for name, file in (("model", MODEL), ("release", RELEASE)):
        if file.is_file():
            facts[name] = file.read_text(encoding="utf-8", errors="replace").strip("\0\n ").partition("\n")[0]
    return {**facts, **_gpu_clock()}


def _gpu_clock() -> dict[str, str]:
    clocks: dict[str, str] = {}
    for name in ("cur_freq", "max_freq"):
        for file in Path("/").glob(f"{GPU_CLOCK}{name}".lstrip("/")):
            clocks[f"gpu_{name.removesuffix('_freq')}_mhz"] = str(int(file.read_text(encoding="ascii")) // 10**6)
    return clocks
