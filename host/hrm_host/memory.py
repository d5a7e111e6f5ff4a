"""Memory: the machine's, what this process holds of it, and when it goes back to the system.

`cudaMemGetInfo` leaves out pages that the kernel would reclaim, so on a GPU that shares the CPU's memory the kernel's
own account counts (CUDA for Tegra application note, section 3.3). Not run on a Jetson.
"""

import ctypes
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hrm_host.board import Host

MIB, GIB = 1 << 20, 1 << 30
UNBOUNDED = 1 << 62
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # mallopt(3)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The kernel's account of the machine's memory in MB; `gpu_mb` is the GPU's share of it (NvMapMemUsed)."""

    total_mb: int
    available_mb: int
    swap_mb: int
    zram_mb: int
    swap_free_mb: int  # without that on zram, which is compressed into the same memory
    gpu_mb: int

    @property
    def allocatable_mb(self) -> int:
        """What a GPU could still get of it: pages of the host go to swap while there is room, its own do not."""
        host_mb = max(0, self.total_mb - self.available_mb - self.gpu_mb)
        stays_mb = max(0, host_mb - self.swap_free_mb)
        return max(0, self.total_mb - self.gpu_mb - stays_mb)


def read_memory(machine: Host | None = None) -> Memory | None:
    """The kernel's account; None where there is none (not Linux)."""
    machine = machine or Host()
    text = machine.text("proc/meminfo")
    if text is None:
        return None
    rows = [line.split() for line in (machine.text("proc/swaps") or "").splitlines()[1:] if "zram" in line]
    zram_kib, used_kib = (sum(int(row[column]) for row in rows) for column in (2, 3))
    mb = {name: int(kib) // 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    return Memory(
        total_mb=mb["MemTotal"],
        available_mb=mb["MemAvailable"],
        swap_mb=mb.get("SwapTotal", 0),
        zram_mb=zram_kib // 1024,
        swap_free_mb=max(0, mb.get("SwapFree", 0) - (zram_kib - used_kib) // 1024),
        gpu_mb=mb.get("NvMapMemUsed", 0),
    )


def resident_bytes(pid: int | None = None) -> int:
    """What a process, or this one, holds; 0 where the kernel does not say (not Linux) or where it has ended."""
    pages = Host().text(f"proc/{pid or 'self'}/statm")
    return 0 if pages is None else int(pages.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """What this process could still get without swapping: of the machine, and of its control group."""
    memory, groups = read_memory(), Path("/sys/fs/cgroup")
    machine = memory.available_mb * MIB if memory else UNBOUNDED
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").partition("0::/")[2].partition("\n")[0]
        limit, used, stat = ((groups / own / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
    except OSError:  # no control group of the second version, or one without a bound
        return machine
    if limit.strip() == "max":
        return machine
    dropped = dict(line.split() for line in stat.splitlines()).get("inactive_file", 0)  # caches count as free
    return min(machine, int(limit) - int(used) + int(dropped))


def physical_bytes() -> int:
    """The machine's memory, or what the root control group may use where that is less."""
    if not hasattr(os, "sysconf"):
        raise ValueError("this system does not say how much memory it has; train on a GPU or without --tune")
    allowed = Host().number("sys/fs/cgroup/memory.max")  # None where it holds "max"
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return physical if allowed is None else min(physical, allowed)


def keep_freed_memory() -> None:
    """With glibc, keep freed blocks for the next large ones: by default the kernel zeroes them anew for every step."""
    if (library := _glibc()) is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        library.mallopt(_TOP_PAD, 64 * MIB)


def give_back_freed_memory() -> None:
    """Returns freed memory to the system, which glibc keeps otherwise."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later; `fordblks` are the freed bytes that it keeps."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def freed_bytes() -> int:
    """Freed memory that glibc keeps for this process; 0 with another C library."""
    library = _glibc()
    if library is None or not hasattr(library, "mallinfo2"):
        return 0
    library.mallinfo2.restype = _Mallinfo
    return int(library.mallinfo2().fordblks)


def _glibc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
