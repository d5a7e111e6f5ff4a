"""The checkpoints of a run: `step_N` directories, the pointers `latest` and `best`, and the lock.

Beside the model, a checkpoint holds what an exact continuation needs. It needs no random states,
since draws depend only on seed and step.

    trainer.safetensors   raw weights (weights.*), optimizer moments (exp_avg.*, exp_avg_sq.*),
    slots (slots.*) trainer.json          recipe, step, samples
"""

import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from hrm_host import atomic
from hrm_host.command import runnable
from hrm_host.reading import plain_file
from hrm_host.system import try_lock
from hrm_model import checkpoint
from hrm_model.config import record_of
from hrm_train.batches import Progress

TENSORS = "trainer.safetensors"
VALUES = "trainer.json"
LOCK = "lock"
SLOTS = "slots."  # prefix of the slots' tensors


def sweep(run: Path) -> None:
    """Removes what a killed process left half-written."""
    for leftover in run.glob(".*.tmp-*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def save(run: Path, step: int, write: Callable[[Path], None], *, keep: int) -> None:
    """Calls write(step_N), points `latest` to it, and keeps the last `keep` and the best.

    Raises OSError if the write fails (a full disk); the previous checkpoint stays whole. The
    message names it and a remedy.
    """
    path = run / f"step_{step}"
    try:
        write(path)
        checkpoint.point(run / "latest", path)
    except OSError as error:
        sweep(run)
        raise OSError(f"{path} could not be written ({error}), {_remedy(run)}") from error
    _prune(run, keep)


def _remedy(run: Path) -> str:
    latest = named(run / "latest")
    if latest is None:
        return "there is none before it; make room there and start again"
    resume = runnable("hrm-train", "--run", run, "--resume")
    return f"{latest.name} before it is whole; make room there and continue with {resume}"


def choose(run: Path, step: int, *, keep: int) -> None:
    """Points `best` to a checkpoint."""
    checkpoint.point(run / "best", run / f"step_{step}")
    _prune(run, keep)


def named(pointer: Path) -> Path | None:
    """The checkpoint that a pointer names; None without the pointer."""
    if os.path.lexists(pointer):
        return checkpoint.resolve(pointer)
    return None


def _prune(run: Path, keep: int) -> None:
    kept = {named(run / "latest"), named(run / "best")}
    for path in checkpoint.steps_of(run)[:-keep]:
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def start_of(run: Path) -> Path | None:
    """The checkpoint to continue from; None if the run lacks one.

    A process that was killed between its first checkpoint and `latest` left a whole checkpoint
    without a pointer.
    """
    latest = named(run / "latest")
    if latest is not None:
        return latest
    whole = checkpoint.last_whole(run)
    if whole is None and checkpoint.steps_of(run):
        raise checkpoint.CheckpointError(
            f"{run} has no latest and no whole checkpoint; start another --run"
        )
    return whole


def write_trainer(
    tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any], directory: Path
) -> None:
    """Writes the trainer's state into a checkpoint."""
    checkpoint.write_tensors(directory / TENSORS, tensors)
    (directory / VALUES).write_text(json.dumps(values, indent=2) + "\n")


@torch.no_grad()
def read_trainer(
    directory: Path, targets: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], Progress]:
    """Restores `targets` in place; returns the slots and the progress.

    Raises CheckpointError if the state is damaged or of another model. `run.json` owns the recipe;
    the copy beside the progress is only for readers.
    """
    file = directory / TENSORS
    values = checkpoint.read_json(directory / VALUES)
    try:
        tensors = safetensors.torch.load_file(plain_file(file))
        progress = record_of(Progress, values["progress"])
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise checkpoint.CheckpointError(
            f"the trainer's state in {directory} cannot be read ({error})"
        ) from error
    for name, target in targets.items():
        if name not in tensors or tensors[name].shape != target.shape:
            raise checkpoint.CheckpointError(
                f"{file} does not fit the model at {name}; the files are of two runs"
            )
        target.copy_(tensors[name])
    slots: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(SLOTS):
            slots[name.removeprefix(SLOTS)] = tensor
    return slots, progress


@contextmanager
def sole_writer(run: Path) -> Generator[None]:
    """Holds the lock of a run; meanwhile its file holds the process id, else nothing.

    Raises ValueError if another process holds it. Take it before reading a checkpoint, because a
    writer removes old ones.
    """
    run.mkdir(parents=True, exist_ok=True)
    handle = atomic.try_lock(run / LOCK)
    if handle is None:
        raise ValueError(
            f"{run} is being written by another process (process {_read(run / LOCK)}); "
            "wait for it, stop it, or choose another --run"
        )
    try:
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        os.ftruncate(handle, 0)
        os.close(handle)


def writer_of(run: Path) -> str | None:
    """The id of the process that writes the run now, or '?' if unreadable; None without one."""
    try:
        handle = os.open(run / LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        if try_lock(handle):
            return None
        return _read(run / LOCK)
    finally:
        os.close(handle)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip() or "?"
    except OSError:
        return "?"
