"""The checkpoints of a run: `step_N` directories, `latest` and `best` that name one each, and the lock of its writer.

Beside the model it holds what an exact continuation needs; no random states, since draws follow from seed and step.

    trainer.safetensors   raw weights (weights.*), optimiser moments (exp_avg.*, exp_avg_sq.*), slots (slots.*)
    trainer.json          recipe, step, samples, curriculum
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from hrm_host.system import try_lock
from hrm_model import checkpoint
from hrm_train.batches import Progress
from hrm_train.recipe import Recipe

TENSORS, VALUES = "trainer.safetensors", "trainer.json"
SLOTS, LOCK = "slots.", "lock"


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
        """`write(step_N)`, then `latest` on it; a write that fails (a full disk) leaves the one before whole."""
        path = self.run / f"step_{step}"
        try:
            write(path)
            checkpoint.point(self.run / "latest", path)
        except (OSError, safetensors.SafetensorError) as error:
            self.sweep()
            latest, resume = self.named("latest"), f"continue with hrm-train --run {self.run} --resume"
            keeps = f"{latest.name} before it is whole" if latest else "there is none before it"
            then = f"{keeps}; make room there and {resume if latest else 'start again'}"
            raise SaveError(f"{path} could not be written ({_reason(error)}), {then}") from error
        self._prune()

    def choose(self, step: int) -> None:
        checkpoint.point(self.run / "best", self.run / f"step_{step}")
        self._prune()

    def named(self, pointer: str) -> Path | None:
        file = self.run / pointer
        return checkpoint.resolve(file) if os.path.lexists(file) else None

    def _prune(self) -> None:
        kept = {self.named("latest"), self.named("best")}
        for path in checkpoint.steps_of(self.run)[: -self._keep]:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def start_of(run: Path) -> Path | None:
    """The checkpoint to continue from; None for a run that has none.

    A process that was killed between its first checkpoint and `latest` left a whole one that nothing names.
    """
    if os.path.lexists(run / "latest"):
        return checkpoint.resolve(run / "latest")
    whole = checkpoint.last_whole(run)
    if whole is None and checkpoint.steps_of(run):
        raise checkpoint.CheckpointError(f"{run} has no latest and no whole checkpoint; start another --run")
    return whole


def _reason(error: Exception) -> str:
    """In the system's words; safetensors hides the error's number in its message."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    number = re.search(r"os error (\d+)", str(error))
    return os.strerror(int(number[1])) if number else str(error)


def write_trainer(tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any], directory: Path) -> None:
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(flat, directory / TENSORS)
    (directory / VALUES).write_text(json.dumps(values, indent=2) + "\n")


@torch.no_grad()
def read_trainer(
    directory: Path, targets: Mapping[str, torch.Tensor], mine: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], Progress]:
    """Restores `targets` in place; returns the slots and the progress. Refuses another recipe than `mine`."""
    values, file = checkpoint.read_json(directory / VALUES), directory / TENSORS
    try:
        tensors, progress = safetensors.torch.load_file(file), Progress(**values["progress"])
        saved = asdict(Recipe.from_mapping(values["recipe"]))  # a setting that it does not name had no effect then
    except (OSError, safetensors.SafetensorError, KeyError, TypeError) as error:
        raise checkpoint.CheckpointError(f"the trainer's state in {directory} cannot be read ({error})") from error
    different = sorted(key for key in mine if saved[key] != mine[key])
    if different:
        key = different[0]
        raise checkpoint.CheckpointError(
            f"{directory} was trained with {key}={saved[key]!r}, not {mine[key]!r}; resume with the run's own "
            "settings, or start a new run from its weights with --init"
        )
    for name, target in targets.items():
        if name not in tensors or tensors[name].shape != target.shape:
            raise checkpoint.CheckpointError(f"{file} does not fit the model at {name}; the files are of two runs")
        target.copy_(tensors[name])
    slots = {name[len(SLOTS) :]: tensor for name, tensor in tensors.items() if name.startswith(SLOTS)}
    return slots, progress


@contextmanager
def sole_writer(run: Path) -> Generator[None]:
    """Refuses a run that another process is writing; the lock's file names the holder's process id.

    Take it before a checkpoint is read: a writer removes old ones.
    """
    handle = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not try_lock(handle):
            process = _read(run / LOCK)
            raise ValueError(
                f"{run} is being written by another process{f' (process {process})' if process else ''}; "
                "wait for it, stop it, or choose another --run"
            )
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.close(handle)


def writer_of(run: Path) -> str | None:
    """The id of the process that writes the run now ('?' where unreadable); None where there is none."""
    try:
        handle = os.open(run / LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        return None if try_lock(handle) else _read(run / LOCK) or "?"
    finally:
        os.close(handle)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
