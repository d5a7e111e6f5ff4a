"""One process writes a run: a lock on a file in it that the system itself releases when the process ends, however."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"


@contextmanager
def sole_writer(run: Path) -> Generator[None]:
    """Refuses a run that another process is writing; the lock's file names the holder's process id.

    Take it before a checkpoint is read: a writer removes old ones.
    """
    handle = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _try_lock(handle):
            process = _read(run / LOCK)
            raise ValueError(
                f"{run} is being written by another process{f' (process {process})' if process else ''}; "
                "wait for it, stop it, or choose another --run"
            )
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


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
