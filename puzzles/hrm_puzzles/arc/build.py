"""Building ARC data sets as the published builder does: every variant of a task is a puzzle id of its own.

The training split holds all demonstrations and the test pairs of training tasks, the test split those of held-out
tasks, each in every variant. Sizes are known before any canvas is drawn, so workers put their tasks straight into the
finished files: memory stays flat however many examples there are, and a build that was stopped continues.
Shapes: V variants of a task (the task as it is comes first), E its examples of one split, T tokens.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np

from hrm_host.atomic import publish, require_free
from hrm_host.progress import OnProgress, unheard
from hrm_host.workers import results_of
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.drawing import drawn_VET
from hrm_puzzles.arc.sources import Task, chosen, read_tasks
from hrm_puzzles.arc.variants import Pair, Variant, variants_of
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import DatasetError, Layout

SPLITS = ("train", "test")
BLOCK = 256  # variants drawn at a time: a few megabytes


@dataclass(frozen=True, kw_only=True)
class ArcRecipe:
    """What to build: up to `augment` variants of each task besides the task itself.

    `dataset` and `tasks` are as `arc_sources` reads them; tasks with a grid beyond `max_side` are left out.
    `hold_out_all` keeps the test pairs of training tasks out of training as well.
    """

    puzzle: str
    dataset: str = "arcagi"
    tasks: str | None = None
    augment: int = 1000
    max_side: int | None = None
    hold_out_all: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ArcBuilt:
    """`num_left_out` tasks have grids too large for the canvas; `num_puzzles` counts tasks in all their variants."""

    num_tasks: int
    num_left_out: int
    num_puzzles: int
    num_train: int
    num_test: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True, eq=False)
class _Plan:
    """What there is to write: each task, and how many variants it has."""

    tasks: list[Task]
    counts: list[int]

    def layout(self, split: str) -> Layout:
        """Each variant a puzzle, each task a group; tasks without examples in the split do not appear."""
        of_task = np.array([len(_pairs(task, split)) for task in self.tasks])
        of_variant = np.repeat(of_task, self.counts)
        return Layout(
            puzzle_ids=(np.flatnonzero(of_variant) + 1).astype(np.int32),
            puzzle_offsets=np.append(0, np.cumsum(of_variant[of_variant > 0])),
            group_offsets=np.append(0, np.cumsum(np.array(self.counts)[of_task > 0])),
            num_puzzle_ids=len(of_variant) + 1,
        )

    def starts(self, split: str) -> list[int]:
        """The first row of each task."""
        sizes = [count * len(_pairs(task, split)) for task, count in zip(self.tasks, self.counts, strict=True)]
        return [0, *accumulate(sizes)][:-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Job:
    """One task to be written: where its rows of each split begin, and the file that says it is done."""

    task: Task
    side: int
    recipe: ArcRecipe
    data: Path
    starts: dict[str, int]
    done: Path


def build_arc(
    recipe: ArcRecipe,
    puzzle: Arc,
    out: Path,
    *,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> ArcBuilt:
    """Build a data set at `out`, which must not exist; the same for a seed whatever the number of workers."""
    require_free(out)
    tasks = chosen(read_tasks(recipe.dataset), recipe.tasks)
    side = min(puzzle.side, recipe.max_side or puzzle.side)
    fitting = [
        replace(task, is_held_out=task.is_held_out or recipe.hold_out_all) for task in tasks if task.side <= side
    ]
    _check(recipe, fitting, side)
    unfinished = out.with_name(f".{out.name}.unfinished-{_digest(recipe, fitting)}")
    plan = _begin(recipe, puzzle, fitting, unfinished)
    _write_tasks(plan, recipe, puzzle, unfinished, num_workers, progress)
    publish(unfinished / "data", out)
    shutil.rmtree(unfinished, ignore_errors=True)
    train, test = (plan.layout(split) for split in SPLITS)
    return ArcBuilt(
        num_tasks=len(fitting),
        num_left_out=len(tasks) - len(fitting),
        num_puzzles=train.num_puzzle_ids - 1,
        num_train=train.num_examples,
        num_test=test.num_examples,
        fingerprint=datasets.fingerprint(out),
    )


def _check(recipe: ArcRecipe, tasks: list[Task], side: int) -> None:
    if not any(task.is_held_out and task.tests for task in tasks):
        problem = f"{recipe.dataset} has no held-out task with an answer whose grids fit {side} x {side}"
        raise DatasetError(f"{problem}, so the test split would be empty; choose other tasks or a larger canvas.")


def _begin(recipe: ArcRecipe, puzzle: Arc, tasks: list[Task], unfinished: Path) -> _Plan:
    """Write all but the examples; a directory that has come so far before keeps the examples it has."""
    data, done = unfinished / "data", unfinished / "done"
    data.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    datasets.write_identifiers(data, _names(recipe, tasks, counts))
    plan = _Plan(tasks=tasks, counts=counts)
    if not done.is_dir():
        for split in SPLITS:
            shutil.rmtree(data / split, ignore_errors=True)
            datasets.create_split(data, split, puzzle=puzzle, layout=plan.layout(split))
        datasets.write_recipe(data, puzzle, {**asdict(recipe), "dataset": Path(recipe.dataset).name})
        done.mkdir()
    return plan


def _names(recipe: ArcRecipe, tasks: list[Task], counts: list[int]) -> Iterator[str]:
    """The name of every variant, in the order of the ids; notes how many each task has."""
    for task in tasks:
        variants = _variants(task, recipe)
        counts.append(len(variants))
        yield from (variant.name(task.name) for variant in variants)


def _write_tasks(
    plan: _Plan, recipe: ArcRecipe, puzzle: Arc, unfinished: Path, num_workers: int, progress: OnProgress
) -> None:
    starts = zip(*(plan.starts(split) for split in SPLITS), strict=True)
    jobs = [
        _Job(
            task=task,
            side=puzzle.side,
            recipe=recipe,
            data=unfinished / "data",
            starts=dict(zip(SPLITS, of_task, strict=True)),
            done=unfinished / "done" / str(number),
        )
        for number, (task, of_task) in enumerate(zip(plan.tasks, starts, strict=True))
    ]
    missing = [job for job in jobs if not job.done.exists()]
    progress(len(jobs) - len(missing), len(jobs))
    for number, _ in enumerate(results_of(_write_task, missing, num_workers=num_workers), start=1):
        progress(len(jobs) - len(missing) + number, len(jobs))


def _write_task(job: _Job) -> None:
    """Draw one task into its rows; runs in a worker process."""
    variants = _variants(job.task, job.recipe)
    for split in SPLITS:
        pairs = _pairs(job.task, split)
        rng = _generator(job.task, job.recipe, "places") if split == "train" else None
        for first in range(0, len(variants) if pairs else 0, BLOCK):
            drawn = drawn_VET(pairs, variants[first : first + BLOCK], job.side, rng)
            inputs_BT, labels_BT = (rows_VET.reshape(-1, job.side**2) for rows_VET in drawn)
            datasets.write_rows(job.data, split, job.starts[split] + first * len(pairs), inputs_BT, labels_BT)
    job.done.touch()


def _pairs(task: Task, split: str) -> tuple[Pair, ...]:
    """What a task gives to a split."""
    if split == "test":
        return task.tests if task.is_held_out else ()
    return task.demonstrations if task.is_held_out else task.pairs


def _variants(task: Task, recipe: ArcRecipe) -> list[Variant]:
    return variants_of(task.pairs, recipe.augment, _generator(task, recipe, "variants"))


def _generator(task: Task, recipe: ArcRecipe, purpose: str) -> np.random.Generator:
    """Of its own for each task, so that a task looks the same whichever others are chosen."""
    digest = hashlib.sha256(f"{task.name}/{purpose}".encode()).digest()
    return np.random.default_rng([recipe.seed, int.from_bytes(digest[:8], "little")])


def _digest(recipe: ArcRecipe, tasks: list[Task]) -> str:
    named = {**asdict(recipe), "tasks": [task.name for task in tasks]}
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:12]
