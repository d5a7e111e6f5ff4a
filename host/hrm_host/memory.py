"""Memory of the machine and of this process, and when freed memory goes back to the system.

`cudaMemGetInfo` omits pages that the kernel would reclaim. On a GPU that shares the CPU's memory
the kernel's own account counts (CUDA for Tegra application note, section 3.3). Not run on a Jetson.
"""

import ctypes
import os
import re
import sys
from typing import Any, ClassVar, NamedTuple

from hrm_host import groups
from hrm_host.machine import Host

MIB = 1 << 20
GIB = 1 << 30
# Calculated, not measured on a Jetson: TensorRT's kernel library took 1.75 GB of host memory on x86
# with 10.10 (NVIDIA/TensorRT issue 4493). The graph, its parsed copy, the plan and the workspace
# take more.
BUILDER_MB = 2000
COPIES_OF_GRAPH = 4
WORKSPACE_MB = 512
# parameters of mallopt(3)
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4


class Memory(NamedTuple):
    """The kernel's memory figures in MB; `gpu_mb` is the GPU's share of the memory
    (NvMapMemUsed)."""

    total_mb: int
    available_mb: int
    swap_mb: int
    swap_free_mb: int  # without zram, which compresses into the same memory
    gpu_mb: int

    @property
    def allocatable_mb(self) -> int:
        """Memory that a GPU can still get. The host's pages can move to swap, the GPU's cannot."""
        host_mb = max(0, self.total_mb - self.available_mb - self.gpu_mb)
        stays_mb = max(0, host_mb - self.swap_free_mb)
        return max(0, self.total_mb - self.gpu_mb - stays_mb)


def building_mb(*, graph_mb: int = 0, workspace_mb: int = WORKSPACE_MB) -> int:
    """The memory that the build of a TensorRT engine takes."""
    return BUILDER_MB + COPIES_OF_GRAPH * graph_mb + workspace_mb


def read_memory(machine: Host | None = None) -> Memory | None:
    """The kernel's memory figures; None if the system does not report them."""
    machine = machine or Host()
    text = machine.text("proc/meminfo")
    if not text:  # a container may hide what the file holds
        return None
    zram_free_kib = 0
    for line in (machine.text("proc/swaps") or "").splitlines():
        if "zram" in line:
            _, _, size, used, *_ = line.split()
            zram_free_kib += int(size) - int(used)
    pairs = re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    mb = {name: int(kib) // 1024 for name, kib in pairs}
    return Memory(
        total_mb=mb["MemTotal"],
        available_mb=mb.get("MemAvailable", mb.get("MemFree", 0)),  # WSL 1 lacks the first
        swap_mb=mb.get("SwapTotal", 0),
        swap_free_mb=max(0, mb.get("SwapFree", 0) - zram_free_kib // 1024),
        gpu_mb=mb.get("NvMapMemUsed", 0),
    )


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process, by default this one; 0 if it has ended or is not on Linux."""
    process = "self" if pid is None else str(pid)
    statm = Host().text(f"proc/{process}/statm")
    if statm is None:
        return 0
    _, num_pages, *_ = statm.split()
    return int(num_pages) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most resident memory that this process has held; 0 if the system does not report it."""
    status = Host().text("proc/self/status") or ""
    peak = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if peak is None:
        return 0
    return int(peak[1]) * 1024


def available_bytes(machine: Host | None = None) -> int:
    """Bytes this process can still get without swapping, from the machine and its groups."""
    machine = machine or Host()
    group_bytes = groups.memory_left_bytes(machine.text)
    if group_bytes is None:
        group_bytes = groups.NO_LIMIT
    memory = read_memory(machine)
    if memory is None:
        return group_bytes
    return min(memory.available_mb * MIB, group_bytes)


def physical_bytes() -> int:
    """The machine's memory, or the limit of this process's control groups if that is less."""
    if not hasattr(os, "sysconf"):
        remedy = "train on a GPU or without --tune"
        raise ValueError(f"this system does not report its memory: {remedy}.")
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    allowed = groups.memory_limit_bytes(Host().text)
    if allowed is None:
        return physical
    return min(physical, allowed)


def keep_freed_memory() -> None:
    """Keep freed blocks for the next large ones (glibc).

    By default the kernel takes them back and zeroes new ones in every step.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        library.mallopt(_TOP_PAD, 64 * MIB)


def give_back_freed_memory() -> None:
    """Return freed memory to the system; glibc keeps it otherwise."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later; its ninth value counts the freed bytes."""

    _fields_: ClassVar = [("values", ctypes.c_size_t * 10)]


def freed_bytes() -> int:
    """Freed memory that glibc keeps for this process; 0 with another C library."""
    library = _glibc()
    if library is None or not hasattr(library, "mallinfo2"):
        return 0
    library.mallinfo2.restype = _Mallinfo
    return int(library.mallinfo2().values[8])


def _glibc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        return library
    return None
