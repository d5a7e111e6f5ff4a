"""Files and directories that appear whole or not at all, whenever the machine stops."""

import hashlib
import os
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hrm_host import system

LOOK_AGAIN_S = 0.02


@contextmanager
def new_directory(path: Path, *, replace: bool = False) -> Generator[Path]:
    """A temporary directory beside `path` that takes its name when the block ends well and vanishes when it does not.

    Everything in it is on disk before the rename. A path that is taken is refused (FileExistsError), or with `replace`
    removed once the new content is on disk.
    """
    if not replace:
        require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
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
    """Give a finished directory its name in one step, once all of it is on disk; refuses a path that is taken."""
    require_free(path)
    _sync_tree(directory)
    system.rename(lambda: directory.rename(path))
    system.sync(path.parent)


@contextmanager
def new_file(path: Path) -> Generator[Path]:
    """A name beside `path` to write to: the file replaces `path` when the block ends well, and vanishes otherwise."""
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


@contextmanager
def lock(path: Path) -> Generator[None]:
    """Hold `.NAME.lock` beside `path` (which may be replaced meanwhile), waiting while another process holds it."""
    handle = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        while not system.try_lock(handle):
            time.sleep(LOOK_AGAIN_S)
        yield
    finally:
        os.close(handle)


def require_free(path: Path) -> None:
    """Refuse a path that is taken (FileExistsError)."""
    if path.exists():
        raise FileExistsError(f"{path} exists already; remove it or choose another path.")


def sha256_of(file: Path) -> str:
    """The file's SHA-256 in hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def _sync_tree(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        system.sync(path)
