"""Files and directories that appear whole or not at all, whatever moment the machine stops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_directory(path: Path, *, replace: bool = False) -> Generator[Path]:
    """A temporary directory beside `path` that takes its name when the block ends well and vanishes when it does not.

    Everything in it is on disk before the rename. A path that is taken is refused (FileExistsError), or with `replace`
    removed once the new content is on disk.
    """
    if not replace:
        require_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
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
    directory.rename(path)
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace the file `path` in one step."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def require_free(path: Path) -> None:
    """Refuse a path that is taken (FileExistsError)."""
    if path.exists():
        raise FileExistsError(f"{path} exists already; remove it or choose another path.")


def _sync_tree(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        _sync(path)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no directories
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
