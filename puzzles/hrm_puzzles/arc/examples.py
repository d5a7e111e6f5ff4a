"""More examples of ARC tasks, such as the generated ones of RE-ARC.

    <folder>/tasks/<task>.json     [{"input": rows, "output": rows}, ...]; RE-ARC's layout
    <file>.zip                     the same folder
    <file>.json, <file>.json.gz    {"<task>": [{"input": rows, "output": rows}, ...], ...}

Keys other than "input" and "output" are ignored. A text file holds the license of the examples.
"""

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, NamedTuple, cast

import numpy as np

from hrm_host.atomic import sha256_of
from hrm_host.reading import is_list, is_object, json_from, plain_file, text_in, text_of
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.tasks import HIDDEN, MALFORMED, ArcTask, pair_of, side_of
from hrm_puzzles.arc.variants import Pair
from hrm_puzzles.data.datasets import DatasetError, fingerprint, recipe_at
from hrm_puzzles.puzzle import PuzzleError

FORMS = "a folder or zip file with tasks/<task>.json, or a .json or .json.gz file"
LIST_FORM = 'a list of {"input": rows, "output": rows}'
MORE = "more"  # the keys of `recipe.json`
NUM_BY_TASK = "num_by_task"

UNREADABLE = (
    OSError,
    ValueError,
    EOFError,  # a gzip file that ends early
    zlib.error,
    zipfile.BadZipFile,
    RuntimeError,  # an encrypted zip file
)

ByTask = dict[str, object]
"""The examples of each task, as they are in their file."""


class Examples(NamedTuple):
    """Examples with their source and the text of their license. Nothing in `by_task` is checked."""

    path: Path
    sha256: str
    license: str
    by_task: ByTask


def read_examples(path: Path, license_path: Path) -> Examples:
    """Read the examples of all tasks, and their license.

    Raises DatasetError if one of the two cannot be read.
    """
    by_task = _by_task(path)
    digest = fingerprint(path) if path.is_dir() else sha256_of(path)
    try:
        terms = text_of(license_path, 1 << 16)
    except (OSError, ValueError) as error:
        problem = f"cannot read the license {license_path} ({error})"
        raise DatasetError(f"{problem}; give a text file.") from error
    if not terms.strip():
        problem = f"the license {license_path} is empty"
        raise DatasetError(f"{problem}; write the terms of the examples there.")
    return Examples(path=path, sha256=digest, license=terms, by_task=by_task)


def require_known(examples: Examples, names: Sequence[str]) -> None:
    """Raise DatasetError if an example belongs to a task that is not in `names`."""
    unknown = sorted(examples.by_task.keys() - set(names))
    if unknown:
        problem = f"{examples.path} has {len(unknown)} unknown tasks, the first {unknown[0][:40]!r}"
        raise DatasetError(f"{problem}; remove them, or choose the --dataset that has them.")


def extended(
    tasks: Sequence[ArcTask], examples: Examples, puzzle: Arc
) -> tuple[list[ArcTask], int]:
    """Add the examples that fit the board to the demonstrations of their tasks.

    Returns the tasks, and the number of examples that are left out: those beyond the board and
    symmetric copies of test inputs. Raises DatasetError for a malformed example, and for one with
    the input of a test pair.
    """
    longer: list[ArcTask] = []
    num_left_out = 0
    for task in tasks:
        num_pairs, pairs = _pairs(examples, task.name)
        _require_held_out(examples, task, pairs)
        fitting = [pair for pair in pairs.values() if side_of(pair) <= puzzle.side]
        added = _without_copies(fitting, task, puzzle)
        longer.append(replace(task, demonstrations=(*task.demonstrations, *added)))
        num_left_out += num_pairs - len(added)
    return longer, num_left_out


def num_by_task_in(data: Path) -> dict[str, int]:
    """For each task of a data set, the number of further examples that end its demonstrations."""
    more = recipe_at(data).get(MORE)
    counts = more.get(NUM_BY_TASK, {}) if is_object(more) else {}
    return cast("dict[str, int]", counts)


def _pairs(examples: Examples, name: str) -> tuple[int, dict[int, Pair]]:
    """The number of examples of a task, and those that ARC's largest grid holds by their index."""
    values = examples.by_task.get(name, [])
    if not is_list(values):
        raise DatasetError(f"{examples.path}, task {name}: not a list; write {LIST_FORM}.")
    pairs: dict[int, Pair] = {}
    for index, value in enumerate(values):
        try:
            pairs[index] = pair_of(value)
        except (*MALFORMED, PuzzleError) as error:
            if isinstance(error, PuzzleError) and error.rule == "too-large":
                continue
            problem = f"{examples.path}, task {name}, example {index}: not a pair of grids"
            raise DatasetError(f"{problem} ({error}); write {LIST_FORM}.") from error
    return len(values), pairs


def _require_held_out(examples: Examples, task: ArcTask, pairs: Mapping[int, Pair]) -> None:
    """Raise DatasetError if an example has the input of a test pair."""
    held_out = [question for question, _ in task.tests]
    for index, (question, _) in pairs.items():
        if any(np.array_equal(question, unseen) for unseen in held_out):
            problem = f"{examples.path}, task {task.name}, example {index}"
            reason = "the input is that of an official test pair, which training must not see"
            raise DatasetError(f"{problem}: {reason}; remove the example.")


def _without_copies(pairs: Sequence[Pair], task: ArcTask, puzzle: Arc) -> list[Pair]:
    """Return the pairs whose input is not a recolored or turned test input.

    A variant of such an input could be the test input itself.
    """
    if not pairs or not task.tests:
        return list(pairs)
    held_out = set(_class_hashes(task.tests, puzzle))
    hashes = _class_hashes(pairs, puzzle)
    return [pair for pair, one in zip(pairs, hashes, strict=True) if one not in held_out]


def _class_hashes(pairs: Sequence[Pair], puzzle: Arc) -> list[int]:
    """A hash of each input that all its symmetric copies share."""
    inputs_BT = np.stack([puzzle.encode(question) for question, _ in pairs])
    return puzzle.equivalence_hash_B(inputs_BT, inputs_BT).tolist()


def _by_task(path: Path) -> ByTask:
    by_task: ByTask = {}
    try:
        if path.is_dir() or path.suffix == ".zip":
            for file, stream in _files_in(path):
                is_hidden = file.name.startswith(HIDDEN)  # macOS adds such files to a zip file
                if file.suffix == ".json" and file.parent.name == "tasks" and not is_hidden:
                    by_task[file.stem] = json_from(text_in(stream.read))
        else:
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(plain_file(path), "rb") as stream:
                values = json_from(text_in(stream.read))
            if not is_object(values):
                raise ValueError("it does not hold a JSON object")
            by_task = values
    except UNREADABLE as error:
        raise DatasetError(f"cannot read {path} ({error}); give {FORMS}.") from error
    if not by_task:
        raise DatasetError(f"{path} holds no examples; give {FORMS}.")
    return by_task


def _files_in(path: Path) -> Iterator[tuple[PurePath, IO[bytes]]]:
    """The files of a folder or a zip file by name, each open while it is used."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            with plain_file(file).open("rb") as stream:
                yield file, stream
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            with archive.open(name) as stream:
                yield PurePosixPath(name), stream
