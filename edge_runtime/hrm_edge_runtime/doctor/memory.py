"""Memory, swap and zram, and the disk that holds built engines."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hrm_host.finding import Finding
from hrm_host.machine_files import Files
from hrm_host.memory import MIB, read_memory

GIB = 1 << 30
BUILDING = 2 * GIB  # about what building an engine takes (calculated; engines/tensorrt/build.py)
SERVING = 256 << 20  # both processes with the shipped Sudoku model
DESKTOP = "leave the desktop (sudo systemctl set-default multi-user.target && sudo reboot) or close programs"


def memory(files: Files, *, shared_with_gpu: bool) -> Finding | None:
    """What is left, with the swap behind it; a GPU that shares this memory builds its engines in it."""
    told = read_memory(files)
    if told is None:
        return None
    total, available, swap = (mb * MIB for mb in (told.total_mb, told.available_mb, told.swap_mb))
    said = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free, {_swap(files, swap)}"
    if available < SERVING:
        return Finding(name="memory", level="fail", text=said, remedy=DESKTOP)
    if shared_with_gpu and available < BUILDING:
        text = f"{said}; building an engine takes about {BUILDING / GIB:.0f} GiB (calculated)"
        return Finding(name="memory", level="warn", text=text, remedy=DESKTOP)
    return Finding(name="memory", level="ok", text=said)


def engine_cache(folder: Path, free: int | None = None) -> Finding:
    """Room for built engines and their logs; about 100 MB for each precision of a published model."""
    free = shutil.disk_usage(folder).free if free is None else free
    writable = os.access(folder, os.W_OK)
    where = f"{folder}" if writable else "the user's cache, since the bundle is read-only"
    said = f"{free / GIB:.1f} GiB free for engines in {where}"
    if free < GIB // 4:
        return Finding(name="engine cache", level="fail", text=said, remedy="free a gigabyte on that disk")
    return Finding(name="engine cache", level="ok", text=said)


def _swap(files: Files, total: int) -> str:
    """Swap on zram lies in the same memory, compressed; only other swap adds to it."""
    rows = [line.split() for line in (files.text("proc/swaps") or "").splitlines()[1:]]
    zram = sum(int(row[2]) * 1024 for row in rows if len(row) > 2 and "zram" in row[0])
    if not total:
        return "no swap"
    return f"swap {total / GIB:.1f} GiB" + (f", {zram / GIB:.1f} of it zram" if zram else "")
