"""One process writes a run: a lock on a file in it that the system itself releases when the process ends, however."""

from __future__ import annotations

import os
import sys
from pathlib import Path

LOCK = "lock"


class RunLock:
    """Held from `hold` until `release` or the process's end; the file names the holder's process id."""

    def __init__(self, run: Path) -> None:
        self._file = run / LOCK
        self._handle: int | None = None

    def hold(self) -> None:
        """Refuses a run that another process is writing."""
        handle = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        if not _try_lock(handle):
            os.close(handle)
            raise ValueError(
                f"{self._file.parent} is being written by another process{_named(self._file)}; "
                "wait for it, stop it, or choose another --run"
            )
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def writer_of(run: Path) -> str | None:
    """The process id of whoever writes the run now ('?' where unreadable); None where nobody does."""
    try:
        handle = os.open(run / LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if _try_lock(handle) else _read(run / LOCK) or "?"
    finally:
        os.close(handle)


def _named(file: Path) -> str:
    process = _read(file)
    return f" (process {process})" if process else ""


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # a byte nobody reads: Windows forbids reading locked ones

    def _try_lock(handle: int) -> bool:
        os.lseek(handle, FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
        return True
else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
