"""Takes what Windows lacks away from our packages, in each Python process with this folder first on PYTHONPATH.

Python imports this module when it starts. Modules that only POSIX has, and parts of `os`, `sys`, `signal` and `time`,
are missing where an `hrm_*` module imports them; text files and pipes have code page 1252; a file that is open can be
neither moved nor removed below the folder HRM_WINDOWS_DRIVE. Libraries keep the system that they were built for, so
nothing here says how they behave on Windows, nor what its paths, processes and Ctrl-C really do.
"""

import builtins
import fcntl
import io
import os
import pathlib
import signal
import stat
import struct
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

DRIVE = os.environ.get("HRM_WINDOWS_DRIVE", "")
HIDDEN = ("/proc/", "/sys/")
MISSING = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog"}
OF_OS = (
    *(
        "fork",
        "forkpty",
        "getuid",
        "geteuid",
        "getgid",
        "getegid",
        "getpgid",
        "getpgrp",
        "setsid",
        "killpg",
        "nice",
    ),
    *(
        "sysconf",
        "getloadavg",
        "sched_getaffinity",
        "uname",
        "chown",
        "fchown",
        "fchmod",
        "mkfifo",
        "statvfs",
    ),
)
OF_SIGNAL = (
    "SIGHUP",
    "SIGKILL",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGCHLD",
    "SIGPIPE",
    "alarm",
    "pthread_sigmask",
)
TICK_S = 1 / 64  # of time.monotonic before Python 3.13

real_import, real_open, real_stat = builtins.__import__, io.open, pathlib.Path.stat
text_handles: set[int] = set()


class Without(ModuleType):
    """A module without some of its names, and with others of its own."""

    def __init__(self, module: ModuleType, lacking: tuple[str, ...], **own: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(_module=module, _lacking=lacking, **own)

    def __getattr__(self, name: str) -> Any:
        if name in self._lacking:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._module, name, value)


def open_handle(path: Any, flags: int, mode: int = 0o777) -> int:
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    handle = os.open(path, flags & ~O_BINARY, mode)
    (text_handles.discard if flags & O_BINARY else text_handles.add)(handle)
    return handle


def write_handle(handle: int, content: bytes) -> int:
    os.write(handle, content.replace(b"\n", b"\r\n") if handle in text_handles else content)
    return len(content)


def sync_handle(handle: int) -> None:
    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(9, "Bad file descriptor")
    os.fsync(handle)


def handle_signal(number: int, handler: Any) -> Any:
    if number not in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGABRT,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
    ):
        raise ValueError("invalid signal value")
    return signal.signal(number, handler)


def lock_bytes(handle: int, mode: int, count: int) -> None:
    """msvcrt.locking; the lock belongs to the open file, as there."""
    kind = fcntl.F_UNLCK if mode == msvcrt.LK_UNLCK else fcntl.F_WRLCK
    wanted = struct.pack("hhqqi", kind, os.SEEK_SET, os.lseek(handle, 0, os.SEEK_CUR), count, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, wanted)
    except BlockingIOError as error:
        raise PermissionError(13, "Permission denied") from error


def open_text(
    file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *rest: Any, **more: Any
) -> Any:
    if str(file).startswith(HIDDEN):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    if "b" not in mode:
        encoding = "cp1252" if encoding in (None, "locale") else encoding
        if len(rest) < 2 and more.get("newline") is None and "r" not in mode:
            more["newline"] = "\r\n"
        elif len(rest) == 2 and rest[1] is None and "r" not in mode:
            rest = (rest[0], "\r\n")
    return real_open(file, mode, buffering, encoding, *rest, **more)


def stat_path(path: pathlib.Path, **more: Any) -> os.stat_result:
    """Windows knows only whether a file can be written, and says it of everybody."""
    if str(path).startswith(HIDDEN):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    found = real_stat(path, **more)
    rights = 0o666 if found.st_mode & stat.S_IWUSR else 0o444
    return os.stat_result((found.st_mode & ~0o666 | rights, *found[1:]), found.__reduce__()[1][1])


def require_closed(*paths: Any) -> None:
    """Refuse to move or remove what this process has open or mapped, or a folder of it."""
    held = {
        os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if _is_link(name)
    }
    with real_open("/proc/self/maps") as maps:
        held |= {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps}
    for path in filter(lambda path: path.startswith(DRIVE), map(os.path.abspath, paths)):
        if any(file == path or file.startswith(f"{path}/") for file in held):
            raise PermissionError(
                13, "The process cannot access the file because it is being used", path
            )


def _is_link(name: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{name}")


def guarded(function: Any) -> Any:
    def call(*paths: Any, **more: Any) -> Any:
        require_closed(*paths)
        return function(*paths, **more)

    return call


def lacking(*_arguments: object, **_more: object) -> None:
    raise NotImplementedError


def import_for(name: str, *given: Any, **named: Any) -> Any:
    if name.partition(".")[0] == "uvloop":
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    said = {**dict(zip(("globals", "locals", "fromlist", "level"), given, strict=False)), **named}
    if said.get("level") or not (said.get("globals") or {}).get("__name__", "").startswith("hrm_"):
        return real_import(name, *given, **named)
    if name in MISSING:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    if name in WINDOWS:
        return WINDOWS[name]
    module, names = real_import(name, *given, **named), said.get("fromlist") or ()
    if name == "asyncio":
        loop = sys.modules["asyncio.unix_events"]._UnixSelectorEventLoop
        loop.add_signal_handler = loop.add_reader = loop.add_writer = lacking
    if name == "concurrent.futures" and "ProcessPoolExecutor" in names:
        return Without(module, (), ProcessPoolExecutor=small_pool)
    if name == "multiprocessing" and "resource_tracker" in names:
        return Without(module, (), resource_tracker=SimpleNamespace(ensure_running=lacking))
    return module


def small_pool(max_workers: int, **options: Any) -> Any:
    from concurrent.futures import ProcessPoolExecutor

    if max_workers > 61:
        raise ValueError("max_workers must be <= 61")
    return ProcessPoolExecutor(max_workers, **options)


O_BINARY = 1 << 30
msvcrt = SimpleNamespace(LK_UNLCK=0, LK_NBLCK=2, locking=lock_bytes)
WINDOWS: dict[str, Any] = {
    "msvcrt": msvcrt,
    "os": Without(
        os,
        OF_OS,
        name="nt",
        O_BINARY=O_BINARY,
        open=open_handle,
        write=write_handle,
        fsync=sync_handle,
    ),
    "sys": Without(sys, (), platform="win32"),
    "signal": Without(signal, OF_SIGNAL, signal=handle_signal),
    "time": Without(
        time,
        (),
        monotonic=lambda: time.monotonic() // TICK_S * TICK_S,
        time=lambda: time.time() // TICK_S * TICK_S,
    ),
}
if DRIVE:
    builtins.__import__ = import_for
    builtins.open = io.open = open_text
    pathlib.Path.stat = stat_path  # type: ignore[method-assign]
    os.rename, os.replace, os.unlink, os.remove = map(
        guarded, (os.rename, os.replace, os.unlink, os.remove)
    )
