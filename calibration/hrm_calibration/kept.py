"""What a long command has finished, so that an interruption, `kill -9` too, costs the stage at work only."""

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import new_file
from hrm_host.progress import Stages

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Arrays by their stage, a file each in `directory`; without one nothing is kept.

    Files are named after `key`, a digest of all that decides what they hold, and appear whole: none is ever stale.
    """

    directory: Path | None = None
    key: str = ""
    num_finished: int = 0

    @classmethod
    def beside(cls, out: Path, stages: Stages) -> "Kept":
        """What was finished on the way to `out`, as is then said; `drop` it when `out` is whole."""
        directory = out.with_name(f".{out.name}.kept")
        num_finished = len(list(directory.glob("*.npz")))
        if num_finished:
            stages.say(f"{num_finished} finished stages in {directory} are taken up again")
        return cls(directory=directory, num_finished=num_finished)

    def under(self, *parts: str | bytes) -> "Kept":
        """The same directory for what these parts decide too."""
        digest = hashlib.sha256(self.key.encode())
        for part in parts:
            digest.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
        return replace(self, key=digest.hexdigest())

    def drop(self) -> None:
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)

    def arrays(self, stage: str, make: Callable[[], Arrays]) -> Arrays:
        """What is kept of a stage, or what `make` makes of it, kept from now on."""
        if self.directory is None:
            return make()
        file = self.directory / f"{self.key[:32]} {stage}.npz"
        with suppress(FileNotFoundError, ValueError, EOFError, BadZipFile), np.load(file, allow_pickle=False) as kept:
            return dict(kept)
        made = make()
        self.directory.mkdir(parents=True, exist_ok=True)
        with new_file(file) as unfinished, unfinished.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **made)
        return made
