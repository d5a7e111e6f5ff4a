"""A checkpoint on disk: a directory with weights, configuration and provenance; never pickle.

    model.safetensors   the weights to use (the moving average where the trainer keeps one)
    config.json         HRMConfig, unknown keys refused
    meta.json           puzzle, step, samples seen, best validation, config digest, data fingerprint, commit, time, and
                        the hash of every other file

A trainer adds its own files beside these (`trainer.safetensors`, `trainer.json`) in the same atomic write.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from hrm_host import atomic
from hrm_host.atomic import sha256_of
from hrm_host.reading import json_from, text_of
from hrm_host.text import printable
from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM

WEIGHTS, CONFIG, META = "model.safetensors", "config.json", "meta.json"
STEP = re.compile(r"step_([0-9]{1,18})")  # the name of a run's checkpoint
POINTERS = ("latest", "best")
MAX_POINTER_BYTES = 100


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says what is wrong and what to do."""


def save(path: Path, model: HRM, meta: Mapping[str, Any], write_more: Callable[[Path], None] | None = None) -> None:
    """Writes the directory `path` whole or not at all; an older one of that name is replaced."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with atomic.new_directory(path, replace=True) as directory:
        safetensors.torch.save_file(state, directory / WEIGHTS)
        (directory / CONFIG).write_text(model.config.to_json())
        if write_more is not None:
            write_more(directory)
        hashes = {file.name: sha256_of(file) for file in directory.iterdir()}
        values = {**meta, "config_digest": model.config.digest, "sha256": hashes}
        (directory / META).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def load(path: Path) -> tuple[HRM, dict[str, Any]]:
    """The model (in evaluation mode, float32, on the CPU) and its meta data; refuses what does not fit together."""
    try:
        config = load_config(path)
        damaged = _damaged(path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {_advice(path)}") from error
    if damaged:
        raise CheckpointError(f"{path / damaged} is not as it was written (its hash says so); {_advice(path)}")
    model = HRM(config)
    try:
        state = safetensors.torch.load_file(path / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path / WEIGHTS} cannot be read ({error}); copy or train it again") from error
    load_state(model, state, path / WEIGHTS)
    return model.eval(), read_json(path / META)


def load_config(path: Path) -> HRMConfig:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a checkpoint directory; give one that hrm-train or hrm-import wrote")
    try:
        return HRMConfig.from_mapping(read_json(path / CONFIG))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path / CONFIG}: {error}") from error


def _damaged(path: Path) -> str:
    """The first file that is missing or not as `meta.json` says it was written, or nothing."""
    hashes = read_json(path / META).get("sha256", {})  # older checkpoints have none
    if not isinstance(hashes, dict):
        return META
    return next((n for n, digest in hashes.items() if not (path / n).is_file() or sha256_of(path / n) != digest), "")


def load_state(model: HRM, state: Mapping[str, Any], source: Path) -> None:
    """Copies tensors in; a missing, surplus or misshapen one is refused by name."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if found != expected:
        odd = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))[:3]
        detail = "; ".join(f"{name}: expected {expected.get(name)}, found {found.get(name)}" for name in odd)
        raise CheckpointError(f"{source} does not fit its configuration ({detail}); the files come from different runs")
    model.load_state_dict(dict(state))


def read_json(file: Path) -> dict[str, Any]:
    try:
        values = json_from(text_of(file))
        if not isinstance(values, dict):
            raise ValueError("it holds no JSON object")
        return values
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); the checkpoint is incomplete, use another") from error


def point(pointer: Path, target: Path) -> None:
    """Makes `pointer` a file that names the checkpoint `target` (a plain file, so that it works on every system)."""
    atomic.write_text(pointer, target.name + "\n")


def resolve(path: Path) -> Path:
    """A checkpoint from its directory, or from the pointer (`latest`, `best`) of a run, which names one of the run."""
    if path.name not in POINTERS:
        return path
    run = path.parent
    try:
        name = path.resolve().name if path.is_dir() else text_of(path, MAX_POINTER_BYTES).strip()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_advice(path)}") from error
    is_of_run = STEP.fullmatch(name) and (run / name).resolve() == run.resolve() / name and (run / name).is_dir()
    if not is_of_run or (path.is_dir() and path.resolve().parent != run.resolve()):
        raise CheckpointError(f"{path} names no checkpoint of the run ({printable(name)!r}); {_advice(path)}")
    return run / name


def steps_of(run: Path) -> list[Path]:
    """The checkpoints of a run in the order of their steps; other files and links are passed over."""
    found: dict[int, Path] = {}
    for path in run.glob("step_*"):
        named = STEP.fullmatch(path.name)
        if named and path.is_dir() and not path.is_symlink():
            found[int(named[1])] = path
    return [found[step] for step in sorted(found)]


def last_whole(run: Path) -> Path | None:
    """The last checkpoint of a run whose files are as they were written."""
    return next(filter(_is_whole, reversed(steps_of(run))), None)


def _is_whole(path: Path) -> bool:
    try:
        load_config(path)
        return not _damaged(path)
    except CheckpointError:
        return False


def _advice(path: Path) -> str:
    """What to do without the checkpoint or the pointer at `path`."""
    whole = last_whole(path.parent)
    if whole is None:
        return "copy or train the checkpoint again"
    pointer = path if path.name in POINTERS else path.parent / POINTERS[0]
    return f"{whole.name} is whole: write {whole.name} into {pointer} to continue from it"
