"""Memory: the machine's, and what this process holds of it.

`cudaMemGetInfo` leaves out pages that the kernel would give back, so on a GPU that shares the CPU's memory the kernel's
own account is asked (CUDA for Tegra application note, section 3.3). Not run on a Jetson.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from hrm_host.machine_files import Files

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The machine's memory in MB, as the kernel tells it; `gpu_mb` is what the GPU holds of it (NvMapMemUsed)."""

    total_mb: int
    available_mb: int
    swap_mb: int
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


def read_memory(files: Files | None = None) -> Memory | None:
    """The kernel's account; None where there is none (not Linux)."""
    text = (files or Files()).text("proc/meminfo")
    if text is None:
        return None
    mb = {name: int(kib) // 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    return Memory(
        total_mb=mb["MemTotal"],
        available_mb=mb["MemAvailable"],
        swap_mb=mb.get("SwapTotal", 0),
        swap_free_mb=mb.get("SwapFree", 0),
        gpu_mb=mb.get("NvMapMemUsed", 0),
    )


def resident_bytes() -> int:
    """What this process holds; 0 where the kernel tells nothing (not Linux)."""
    pages = Files().text("proc/self/statm")
    return 0 if pages is None else int(pages.split()[1]) * os.sysconf("SC_PAGE_SIZE")
