"""What a long command has finished, so that an interruption, `kill -9` too, costs the stage at work only."""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import new_file

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Arrays by their stage, a file each in `directory`; without one nothing is kept.

    Files are named after `key`, a digest of all that decides what they hold, and appear whole: none is ever stale.
    """

    directory: Path | None = None
    key: str = ""

    def under(self, *words: str) -> "Kept":
        """The same directory for what these words decide too."""
        key = hashlib.sha256("\n".join((self.key, *words)).encode()).hexdigest()
        return Kept(directory=self.directory, key=key)

    def arrays(self, stage: str, make: Callable[[], Arrays]) -> Arrays:
        """What is kept of a stage, or what `make` makes of it, kept from now on."""
        if self.directory is None:
            return make()
        file = self.directory / f"{self.key[:32]} {stage}.npz"
        damaged = (ValueError, EOFError, BadZipFile)
        with suppress(FileNotFoundError, *damaged), np.load(file, allow_pickle=False) as kept:
            return dict(kept)
        made = make()
        self.directory.mkdir(parents=True, exist_ok=True)
        with new_file(file) as unfinished, unfinished.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **made)
        return made
