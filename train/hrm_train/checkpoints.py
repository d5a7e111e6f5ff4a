"""The checkpoints of a run: `step_N` directories, and `latest` and `best` that name one each.

A write that fails (a full disk) leaves the one before whole; leftovers of a killed process vanish when the run goes on.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from hrm_model import checkpoint


class SaveError(OSError):
    """A checkpoint could not be written; the message says which is the last whole one and what to do."""


class Checkpoints:
    """Writes, names and removes the checkpoints under `run`; keeps the last `keep` and the best."""

    def __init__(self, run: Path, keep: int) -> None:
        self.run, self._keep = run, keep

    def sweep(self) -> None:
        """Removes what a killed process left half-written."""
        for leftover in self.run.glob(".*.tmp-*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def save(self, step: int, write: Callable[[Path], None]) -> None:
        """`write(step_N)`, then `latest` on it."""
        path = self.run / f"step_{step}"
        try:
            write(path)
            checkpoint.point(self.run / "latest", path)
        except (OSError, SafetensorError) as error:
            self.sweep()
            raise SaveError(self._sentence(path, error)) from error
        self._prune()

    def is_latest(self, step: int) -> bool:
        """It is there already, and what a resume would read is never rewritten."""
        return self.named("latest") == self.run / f"step_{step}"

    def choose(self, step: int) -> None:
        """Makes `step_N` the best."""
        checkpoint.point(self.run / "best", self.run / f"step_{step}")
        self._prune()

    def named(self, pointer: str) -> Path | None:
        """The checkpoint that `latest` or `best` names."""
        file = self.run / pointer
        return checkpoint.resolve(file) if file.exists() else None

    def _sentence(self, path: Path, error: Exception) -> str:
        latest = self.named("latest")
        keeps = f"{latest.name} before it is whole" if latest else "there is none before it"
        return f"{path} could not be written ({_reason(error)}), {keeps}; make room there and " + (
            f"continue with hrm-train --run {self.run} --resume" if latest else "start again"
        )

    def _prune(self) -> None:
        kept = {self.named("latest"), self.named("best")}
        for path in sorted(self.run.glob("step_*"), key=lambda path: int(path.name[5:]))[: -self._keep]:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _reason(error: Exception) -> str:
    """The system's own words; safetensors hides the error's number in its message."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"os error (\d+)", str(error))
    return os.strerror(int(number[1])) if number else str(error)
