"""A checkpoint on disk: a directory with weights, configuration and provenance; never pickle.

    model.safetensors   the weights to use (the moving average, if the trainer keeps one)
    config.json         HRMConfig; unknown keys are rejected
    meta.json           puzzle, step, samples, best validation, data fingerprint, commit,
                        time, and the hash of every other file
    puzzle_ids.json.gz  the names of the puzzle ids if there are several; once in meta.json

A trainer adds its own files (`trainer.safetensors`, `trainer.json`) in the same atomic write.
"""

import contextlib
import gzip
import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors.torch
from torch import Tensor

from hrm_host import atomic
from hrm_host.reading import json_from, object_of, plain_file, printable, text_in, text_of
from hrm_model.config import HRMConfig, record_of
from hrm_model.families import model_of
from hrm_model.hrm import HRM

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
META = "meta.json"
PUZZLE_IDS = "puzzle_ids"  # in the meta data: the name of each row of the puzzle table
NAMES = "puzzle_ids.json.gz"  # a variant of an ARC task takes 7 bytes of it, not 28
STEP = re.compile(r"step_([0-9]{1,18})")  # the name of a run's checkpoint
POINTERS = ("latest", "best")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the problem and a remedy."""


def save(
    path: Path,
    model: HRM,
    meta: Mapping[str, Any],
    write_more: Callable[[Path], None] | None = None,
) -> None:
    """Writes the directory `path` whole or not at all; replaces an older checkpoint there.

    Raises FileExistsError if `path` is anything else.
    """
    if not (path / META).is_file():
        atomic.require_free(path)
    with atomic.new_directory(path, replace=True) as directory:
        write_tensors(directory / WEIGHTS, model.state_dict())
        (directory / CONFIG).write_text(model.config.to_json())
        values = dict(meta)
        if PUZZLE_IDS in values:
            names = json.dumps(values.pop(PUZZLE_IDS))
            (directory / NAMES).write_bytes(gzip.compress(names.encode(), mtime=0))
        if write_more is not None:
            write_more(directory)
        hashes = {file.name: atomic.sha256_of(file) for file in directory.iterdir()}
        values["sha256"] = hashes
        (directory / META).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors of any device; raises OSError if the disk is full."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        safetensors.torch.save_file(plain, file)
    except safetensors.SafetensorError as error:
        raise OSError(f"{file} cannot be written ({error}); make room there") from error


def load(path: Path) -> tuple[HRM, dict[str, Any]]:
    """Returns the model (evaluation mode, float32, on the CPU) and its meta data.

    Raises CheckpointError if a file is damaged or does not fit the others.
    """
    try:
        config = load_config(path)
        meta = _meta_of_whole(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {_advice(path)}") from error
    model = model_of(config)
    try:
        state = safetensors.torch.load_file(plain_file(path / WEIGHTS))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"{path / WEIGHTS} cannot be read ({error}); copy or train it again"
        ) from error
    load_state(model, state, path / WEIGHTS)
    if (path / NAMES).exists():
        meta[PUZZLE_IDS] = _names_in(path / NAMES)
    return model.eval(), meta


def _names_in(file: Path) -> list[str]:
    try:
        with gzip.open(plain_file(file)) as stream:
            return list(json_from(text_in(stream.read)))
    except (OSError, EOFError, zlib.error, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); the checkpoint is incomplete, use another"
        ) from error


def load_config(path: Path) -> HRMConfig:
    """The configuration of a checkpoint, or of the one that a pointer names."""
    found = resolve(path)
    if not (found / CONFIG).exists():
        raise CheckpointError(
            f"{found} is not a checkpoint directory; give one that hrm-train or hrm-import wrote"
        )
    values = read_json(found / CONFIG)
    try:
        return record_of(HRMConfig, values)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{found / CONFIG}: {error}") from error


def _meta_of_whole(path: Path) -> dict[str, Any]:
    """The meta data of a checkpoint; raises CheckpointError if a file differs from its hash."""
    meta = read_json(path / META)
    hashes = meta.get("sha256", {})  # older checkpoints lack hashes
    if not isinstance(hashes, dict):
        hashes = {META: ""}  # which no file has
    for name, digest in cast("dict[str, str]", hashes).items():
        file = path / name
        if not file.is_file() or atomic.sha256_of(file) != digest:
            raise CheckpointError(f"{file} is missing or has changed since it was written")
    return meta


def load_state(model: HRM, state: Mapping[str, Any], source: Path) -> None:
    """Copies tensors into the model; raises CheckpointError with the names that do not fit."""
    expected = _shapes_of(model.state_dict())
    found = _shapes_of(state)
    if found != expected:
        problems: list[str] = []
        for name in sorted({*expected, *found}):
            if expected.get(name) != found.get(name):
                problems.append(f"{name}: expected {expected.get(name)}, found {found.get(name)}")
        listed = "; ".join(problems[:3])
        raise CheckpointError(
            f"{source} does not fit its configuration ({listed}); "
            "the files come from different runs"
        )
    model.load_state_dict(dict(state))


def _shapes_of(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def read_json(file: Path) -> dict[str, Any]:
    try:
        return object_of(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); the checkpoint is incomplete, use another"
        ) from error


def point(pointer: Path, target: Path) -> None:
    """Makes `pointer` a file that names the checkpoint `target`.

    It is a plain file, so it works on every system.
    """
    atomic.write_text(pointer, target.name + "\n")


def resolve(path: Path) -> Path:
    """Returns the checkpoint that a pointer (`latest`, `best`) of a run names, or a run's best.

    Any other path is returned as it is. Raises CheckpointError if the pointer leaves its run.
    """
    if path.name not in POINTERS:
        pointer = pointer_of(path)
        return path if pointer is None else resolve(pointer)
    run = path.parent
    try:
        name = text_of(path, most_bytes=100).strip()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_advice(path)}") from error
    found = run / name
    is_step = STEP.fullmatch(name) is not None and found.is_dir()
    if is_step and found.resolve() == run.resolve() / name:
        return found
    raise CheckpointError(
        f"{path} does not name a checkpoint of the run ({printable(name)!r}); {_advice(path)}"
    )


def pointer_of(run: Path) -> Path | None:
    """The pointer to a run's best checkpoint, or to its latest; None without either."""
    for name in reversed(POINTERS):
        if (run / name).exists():
            return run / name
    return None


def steps_of(run: Path) -> list[Path]:
    """The checkpoints of a run in the order of their steps; skips other files and links."""
    found: dict[int, Path] = {}
    for path in run.glob("step_*"):
        named = STEP.fullmatch(path.name)
        if named and path.is_dir() and not path.is_symlink():
            found[int(named[1])] = path
    return [found[step] for step in sorted(found)]


def last_whole(run: Path) -> Path | None:
    """The last undamaged checkpoint of a run."""
    for path in reversed(steps_of(run)):
        with contextlib.suppress(CheckpointError):
            load_config(path)
            _meta_of_whole(path)
            return path
    return None


def _advice(path: Path) -> str:
    """The remedy for a damaged checkpoint or pointer at `path`."""
    whole = last_whole(path.parent)
    if whole is None:
        return "copy or train the checkpoint again"
    pointer = path
    if path.name not in POINTERS:
        pointer = path.parent / POINTERS[0]
    return f"{whole.name} is whole: write {whole.name} into {pointer} to continue from it"
