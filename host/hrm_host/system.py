"""Differences between Windows and POSIX systems; no other module checks the platform.

Tests remove what Windows lacks (tests/test_windows.py). Not run on Windows.
"""

import contextlib
import errno
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

REMEDIES_AT_LIMITS = {
    "Too many open files": "raise its limit of open files (ulimit -n)",
    "File too large": "raise its limit of a file's size (ulimit -f)",
    "Resource temporarily unavailable|start new thread": "raise its limit of processes and "
    "threads (ulimit -u, TasksMax, --pids-limit)",
    "MemoryError|allocate memory|bad_alloc": "raise its limit (ulimit -v, or the container's)",
}
"""By patterns of errors that the system's limits cause."""

if sys.platform == "win32":
    import msvcrt

    MAX_WORKERS = 61  # limit of ProcessPoolExecutor on Windows
    BINARY = os.O_BINARY  # without it os.write turns each \n into \r\n
    SYNCABLE = os.O_RDWR
    HANG_UP: int | None = None
    _PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    _FAR = 1 << 30  # byte offset beyond the content, because locked bytes cannot be read

    def try_lock(handle: int) -> bool:
        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
        return True

    def set_blocking(_handle: int, _is_blocking: bool) -> None:
        pass

    def most_open_files(_wanted: int) -> int | None:
        return None

    def load_average() -> float | None:
        return None

    @contextlib.contextmanager
    def signals_blocked() -> Generator[None]:
        yield

    def anybody_may_write(_path: Path) -> bool:
        return False

    def give_rights(_handle: int, _like: os.stat_result) -> None:
        pass

else:
    import fcntl
    import resource
    from multiprocessing import resource_tracker

    MAX_WORKERS = sys.maxsize
    BINARY = 0
    SYNCABLE = os.O_RDONLY
    HANG_UP: int | None = signal.SIGHUP
    _PAUSES_S = ()
    set_blocking = os.set_blocking

    def try_lock(handle: int) -> bool:
        """Lock a file for this handle; returns False if another handle holds the lock.

        Raises OSError on a file system without locks, such as some network mounts.
        """
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            problem = f"this file system has no locks ({error.strerror})"
            raise OSError(f"{problem}: use a folder of another one.") from error
        return True

    def most_open_files(wanted: int) -> int | None:
        """Raise the limit of open files and return it; None if there is no limit.

        The new limit is the hard one, or `wanted` if there is no hard limit.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return None
        raised = hard
        if hard == resource.RLIM_INFINITY:
            raised = max(soft, wanted)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        except (OSError, ValueError):  # a service manager may forbid the call
            return soft
        if raised == resource.RLIM_INFINITY:
            return None
        return raised

    def load_average() -> float | None:
        """Mean number of processes that wanted to run in the last minute; None on Windows."""
        return os.getloadavg()[0]

    @contextlib.contextmanager
    def signals_blocked() -> Generator[None]:
        """Processes that start inside ignore Ctrl-C, SIGTERM and SIGHUP.

        They start in the current folder, or in / if it was removed.
        """
        try:
            os.getcwd()
        except FileNotFoundError:
            os.chdir("/")
        # The start of the resource tracker unblocks the signals, so start it first.
        resource_tracker.ensure_running()
        signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def anybody_may_write(path: Path) -> bool:
        """Whether every user may write to a file; False on Windows, which has access lists.

        A folder of Windows that a container mounts shows such a mode. It may be mounted read-only.
        """
        is_fixed = os.statvfs(path).f_flag & os.ST_RDONLY
        return bool(path.stat().st_mode & stat.S_IWOTH) and not is_fixed

    def give_rights(handle: int, like: os.stat_result) -> None:
        """Give a file the owner, group and mode of another; on Windows the folder determines the
        rights."""
        is_own = like.st_uid == os.geteuid() and like.st_gid == os.getegid()
        if not is_own:
            os.fchown(handle, like.st_uid, like.st_gid)
        os.fchmod(handle, stat.S_IMODE(like.st_mode))


def remedy_at_limit(error: Exception) -> str | None:
    """The remedy if a limit of the system caused an error; None for other errors."""
    named = f"{type(error).__name__}: {error}"
    for pattern, remedy in REMEDIES_AT_LIMITS.items():
        if re.search(pattern, named):
            return remedy
    return None


def sync(path: Path) -> None:
    """Wait until a file or a directory is on disk; Windows opens no directories."""
    if HANG_UP is None and path.is_dir():
        return
    handle = os.open(path, SYNCABLE)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # SMB and others do not sync directories
            raise
    finally:
        os.close(handle)


def rename(move: Callable[[], object]) -> None:
    """Move a file; retry on Windows while another program, such as a virus scanner, has it open."""
    for pause_s in _PAUSES_S:
        try:
            move()
            return
        except PermissionError:
            time.sleep(pause_s)
    move()


def ignore_hang_ups() -> None:
    """Ignore SIGHUP. It asks a server to reload files; without a handler it kills the process."""
    if HANG_UP is not None:
        signal.signal(HANG_UP, signal.SIG_IGN)


def ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent; a terminal sends it to every process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
