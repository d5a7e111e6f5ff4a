"""Takes what Windows lacks from our packages, in each Python with this folder first on its path.

Python imports this module when it starts. Modules that only POSIX has, and parts of `os`, `sys`,
`signal` and `time`, are missing if an `hrm_*` module imports them. Text files and pipes have code
page 1252. A file that is open can be neither moved nor removed below the folder HRM_WINDOWS_DRIVE.
Libraries keep the system that they were built for, so nothing here says how they behave on Windows,
nor what its paths, processes and Ctrl-C really do.
"""

import builtins
import fcntl
import io
import os
import pathlib
import signal
import stat
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

DRIVE = os.environ.get("HRM_WINDOWS_DRIVE", "")
HIDDEN = ("/proc/", "/sys/")
MISSING = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"}
OF_PROCESSES = ("fork", "forkpty", "setsid", "killpg", "nice", "sysconf", "sched_getaffinity")
OF_USERS = ("getuid", "geteuid", "getgid", "getegid", "getpgid", "getpgrp", "getloadavg", "uname")
OF_FILES = ("chown", "fchown", "fchmod", "mkfifo", "statvfs")
OF_SIGNALS = ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD", "SIGPIPE", "alarm")
SIGNALS = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"}
TICK_S = 1 / 64  # of time.monotonic before Python 3.13
MOST_WORKERS = 61
O_BINARY = 1 << 30
IMPORT_OPTIONS = ("globals", "locals", "fromlist", "level")
real_import = builtins.__import__
real_open = io.open
real_stat = pathlib.Path.stat
text_handles = set()


class Without(ModuleType):
    """A module without some of its names, and with others of its own."""

    def __init__(self, module: ModuleType, missing: tuple[str, ...], **own: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(_module=module, _missing=missing, **own)

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._module, name, value)


def open_handle(path: Any, flags: int, mode: int = 0o777) -> int:
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    handle = os.open(path, flags & ~O_BINARY, mode)
    text_handles.discard(handle)
    if not flags & O_BINARY:
        text_handles.add(handle)
    return handle


def write_handle(handle: int, content: bytes) -> int:
    written = content
    if handle in text_handles:
        written = content.replace(b"\n", b"\r\n")
    os.write(handle, written)
    return len(content)


def sync_handle(handle: int) -> None:
    access = fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE
    if access == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor")
    os.fsync(handle)


def handle_signal(number: int, handler: Any) -> Any:
    if signal.Signals(number).name not in SIGNALS:
        raise ValueError("invalid signal value")
    return signal.signal(number, handler)


def lock_bytes(handle: int, _mode: int, _count: int) -> None:
    """msvcrt.locking with LK_NBLCK; the lock belongs to the open file, as there."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error


def open_text(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *rest: Any,
    **more: Any,
) -> Any:
    require_visible(file)
    if "b" not in mode:
        if encoding in (None, "locale"):
            encoding = "cp1252"
        if newline is None and "r" not in mode:
            newline = "\r\n"
    return real_open(file, mode, buffering, encoding, errors, newline, *rest, **more)


def stat_path(path: pathlib.Path, **more: Any) -> os.stat_result:
    """Windows knows only whether a file can be written, and says it of everybody."""
    require_visible(path)
    found = real_stat(path, **more)
    rights = 0o666 if found.st_mode & stat.S_IWUSR else 0o444
    mode = found.st_mode & ~0o666 | rights
    _, arguments = found.__reduce__()[:2]
    return os.stat_result((mode, *found[1:]), arguments[1])


def require_visible(path: object) -> None:
    if str(path).startswith(HIDDEN):
        raise FileNotFoundError(2, "No such file or directory", str(path))


def open_files() -> set[str]:
    """Return what this process has open or mapped."""
    held = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    with real_open("/proc/self/maps") as maps:
        held |= {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps}
    return held


def require_closed(*paths: Any) -> None:
    """Refuse to move or remove what this process holds, or a folder of it."""
    held = open_files()
    for path in map(os.path.abspath, paths):
        is_held = any(file == path or file.startswith(f"{path}/") for file in held)
        if is_held and path.startswith(DRIVE):
            problem = "The process cannot access the file because it is being used"
            raise PermissionError(13, problem, path)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*paths: Any, **more: Any) -> Any:
        require_closed(*paths)
        return function(*paths, **more)

    return call


def not_there(*_arguments: object, **_more: object) -> None:
    raise NotImplementedError


def import_for(name: str, *given: Any, **named: Any) -> Any:
    """Import as Windows does, for a module of our packages."""
    if name.partition(".")[0] == "uvloop":
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    options = dict(zip(IMPORT_OPTIONS, given, strict=False), **named)
    importer = (options.get("globals") or {}).get("__name__", "")
    if options.get("level") or not importer.startswith("hrm_"):
        return real_import(name, **options)
    if name in MISSING:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if name in WINDOWS:
        return WINDOWS[name]
    module = real_import(name, **options)
    names = options.get("fromlist") or ()
    if name == "asyncio":
        loop = sys.modules["asyncio.unix_events"]._UnixSelectorEventLoop
        loop.add_signal_handler = not_there
        loop.add_reader = not_there
        loop.add_writer = not_there
    if name == "concurrent.futures" and "ProcessPoolExecutor" in names:
        return Without(module, (), ProcessPoolExecutor=small_pool)
    if name == "multiprocessing" and "resource_tracker" in names:
        return Without(module, (), resource_tracker=SimpleNamespace(ensure_running=not_there))
    return module


def small_pool(max_workers: int, **options: Any) -> Any:
    from concurrent import futures

    if max_workers > MOST_WORKERS:
        raise ValueError(f"max_workers must be <= {MOST_WORKERS}")
    return futures.ProcessPoolExecutor(max_workers, **options)


def monotonic() -> float:
    return time.monotonic() // TICK_S * TICK_S


def wall_time() -> float:
    return time.time() // TICK_S * TICK_S


OWN_OS = {
    "name": "nt",
    "O_BINARY": O_BINARY,
    "open": open_handle,
    "write": write_handle,
    "fsync": sync_handle,
}
WINDOWS = {
    "msvcrt": SimpleNamespace(LK_NBLCK=2, locking=lock_bytes),
    "os": Without(os, (*OF_PROCESSES, *OF_USERS, *OF_FILES), **OWN_OS),
    "sys": Without(sys, (), platform="win32"),
    "signal": Without(signal, (*OF_SIGNALS, "pthread_sigmask"), signal=handle_signal),
    "time": Without(time, (), monotonic=monotonic, time=wall_time),
}
if DRIVE:
    builtins.__import__ = import_for
    builtins.open = open_text
    io.open = open_text
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None:  # of Python 3.10, where it holds the real function
        accessor.open = staticmethod(open_text)
    pathlib.Path.stat = stat_path  # type: ignore[method-assign]
    for name in ("rename", "replace", "unlink", "remove"):
        setattr(os, name, guarded(getattr(os, name)))
