"""Files and directories that appear complete or not at all, even if the machine stops."""

import glob
import hashlib
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_host import system
from hrm_host.reading import plain_file

LOOK_AGAIN_S = 0.02  # seconds between tries while another process holds a lock
PIECE_BYTES = 1 << 20


@contextmanager
def new_directory(path: Path, *, replace: bool = False) -> Generator[Path]:
    """A temporary directory that becomes `path` if the block succeeds and vanishes otherwise.

    Everything in it is on disk before the rename. Raises FileExistsError if `path` exists; with
    `replace` the old one is removed once the new content is on disk.
    """
    if not replace:
        require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    # A killed process may have had the same id: in a container the id is always 1.
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if replace:
            _sync_tree(temporary)
            shutil.rmtree(path, ignore_errors=True)
        publish(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish(directory: Path, path: Path) -> None:
    """Sync a finished directory and rename it to `path`, which must not exist."""
    require_free(path)
    _sync_tree(directory)
    system.rename(lambda: directory.rename(path))
    system.sync(path.parent)


@contextmanager
def new_file(path: Path) -> Generator[Path]:
    """A temporary file that replaces `path` if the block succeeds and vanishes otherwise."""
    temporary = _temporary(path)
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        system.sync(temporary)
        system.rename(lambda: os.replace(temporary, path))
        system.sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file `path` in one step."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` in one step, in UTF-8."""
    write_bytes(path, text.encode())


def write_array(file: Path, array: NDArray[Any]) -> None:
    """Write an array; raises OSError if the disk is full, which `np.save` of a file overlooks."""
    with file.open("wb") as stream:
        writing: Any = SimpleNamespace(write=stream.write)  # no file, whose errors NumPy overlooks
        np.save(writing, array, allow_pickle=False)


@contextmanager
def lock(path: Path) -> Generator[None]:
    """Hold `.NAME.lock` beside `path`, which may be replaced meanwhile; wait for other holders."""
    file = path.with_name(f".{path.name}.lock")
    handle = try_lock(file)
    while handle is None:
        time.sleep(LOOK_AGAIN_S)
        handle = try_lock(file)
    try:
        yield
    finally:
        os.close(handle)


def try_lock(file: Path) -> int | None:
    """Lock a file, which is created if it is missing; None if another handle holds the lock.

    The lock lasts until the returned handle is closed or the process ends.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    if system.try_lock(handle):
        return handle
    os.close(handle)
    return None


def require_free(path: Path) -> None:
    """Raise FileExistsError if a path exists."""
    if path.exists():
        raise FileExistsError(f"{path} already exists; remove it or choose another path.")


def sha256_of(file: Path) -> str:
    """The file's SHA-256 in hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with plain_file(file).open("rb") as stream:
        for piece in iter(lambda: stream.read(PIECE_BYTES), b""):
            digest.update(piece)
    return digest.hexdigest()


def unfinished(path: Path, kind: str = "tmp") -> list[Path]:
    """The temporary files and directories for `path` that killed or running processes made."""
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.{kind}-*"))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def _sync_tree(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        system.sync(path)
