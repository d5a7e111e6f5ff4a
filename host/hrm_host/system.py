"""What Windows does otherwise than POSIX systems: the one place that asks which of them this is.

Checked where our packages lack what Windows lacks (tests/test_windows.py); not run on Windows.
"""

import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    MAX_WORKERS = 61  # what ProcessPoolExecutor can wait for
    BINARY = os.O_BINARY  # without it os.write turns each \n into \r\n
    SYNCABLE = os.O_RDWR
    HANG_UP: int | None = None
    _PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    _FAR = 1 << 30  # beyond the content: locked bytes cannot be read

    def try_lock(handle: int) -> bool:
        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
        return True

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

    def try_lock(handle: int) -> bool:
        """Lock a file for this handle; false where another one has it."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def most_open_files(wanted: int) -> int | None:
        """How many files this process may open, raised to the hard limit; None where nothing bounds them."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            more = max(soft, wanted) if hard == resource.RLIM_INFINITY else hard
            with contextlib.suppress(OSError, ValueError):  # a service manager may forbid the call
                resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
                soft = more
        return None if soft == resource.RLIM_INFINITY else soft

    def load_average() -> float | None:
        """How many processes wanted to run in the last minute; None where the system does not say."""
        return os.getloadavg()[0]

    @contextlib.contextmanager
    def signals_blocked() -> Generator[None]:
        """A process started within is born deaf to Ctrl-C, SIGTERM and SIGHUP, as far as the system can do that."""
        resource_tracker.ensure_running()  # it unblocks the signals when it starts, so it must have started before
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def anybody_may_write(path: Path) -> bool:
        """Whether every user may write to a file; access lists, which say it on Windows, are not looked at."""
        return bool(path.stat().st_mode & stat.S_IWOTH)

    def give_rights(handle: int, like: os.stat_result) -> None:
        """Give a file the owner, the group and the mode of another; on Windows its folder says who may read it."""
        if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(handle, like.st_uid, like.st_gid)
        os.fchmod(handle, stat.S_IMODE(like.st_mode))


def sync(path: Path) -> None:
    """Wait until a file or a directory is on disk; Windows opens no directories."""
    if HANG_UP is None and path.is_dir():
        return
    handle = os.open(path, SYNCABLE)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def rename(move: Callable[[], object]) -> None:
    """Move a file; Windows refuses while anybody, as a virus scanner, has it open, so there it is tried for a while."""
    for pause_s in _PAUSES_S:
        try:
            move()
            return
        except PermissionError:
            time.sleep(pause_s)
    move()


def ignore_hang_ups() -> None:
    """SIGHUP asks a server to read its files again; one that is about to read them need not die of it."""
    if HANG_UP is not None:
        signal.signal(HANG_UP, signal.SIG_IGN)


def ignore_interrupts() -> None:
    """Ctrl-C in a terminal reaches every process of it; this one leaves it to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
