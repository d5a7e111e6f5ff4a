"""How the C library's allocator treats the large, short-lived tensors of a training step on a CPU (glibc only).

By default glibc maps large blocks afresh and gives freed memory back, so that the kernel zeroes the same megabytes
again in every step.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # mallopt(3)
_STEP = 64 << 20


def keep_freed_memory() -> None:
    """From now on this process keeps freed memory for its next tensors; does nothing where there is no glibc."""
    library = _glibc()
    if library is None:
        return
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    library.mallopt(_TOP_PAD, _STEP)


def give_back_freed_memory() -> None:
    """Once, so that what a process holds is what it uses."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
