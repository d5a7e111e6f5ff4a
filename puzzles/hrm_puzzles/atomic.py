"""Files and directories that appear whole or not at all, whatever moment the machine stops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_directory(path: Path) -> Generator[Path]:
    """A temporary directory beside `path` that takes its name when the block ends well and vanishes when it does not.

    Everything in it is on disk before the rename. Refuses (FileExistsError) a path that is taken.
    """
    require_free(path)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    temporary.mkdir()
    try:
        yield temporary
        _sync_tree(temporary)
        temporary.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def require_free(path: Path) -> None:
    """Refuse a path that is taken (FileExistsError), and make its parents."""
    if path.exists():
        raise FileExistsError(f"{path} exists already; remove it or choose another path.")
    path.parent.mkdir(parents=True, exist_ok=True)


def _sync_tree(directory: Path) -> None:
    for path in (*directory.rglob("*"), directory):
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
