"""Building ARC data sets as the published builder does: every variant of a task is a puzzle id of its own.

Sizes are known before any canvas is drawn, so workers put their tasks straight into the finished files: memory stays
flat for any number of examples, and a build that was stopped continues.
Shapes: V variants of a task (the task as it is comes first), E its examples of one split, S side of the canvas,
T = S * S tokens, K variants of one turn, H and W the sides of one grid, C = 10 colours.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hrm_host.atomic import publish, require_free
from hrm_host.progress import OnProgress, unheard
from hrm_host.workers import results_of
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.canvas import (
    END,
    FIRST_COLOUR,
    NUM_TURNS,
    TRANSPOSING,
    Pair,
    Variant,
    turned,
    variants_of,
)
from hrm_puzzles.arc.notation import ArcTask, chosen, read_tasks
from hrm_puzzles.data import datasets
from hrm_puzzles.puzzle import Grid

SPLITS = ("train", "test")
BLOCK = 256  # variants drawn at a time: a few megabytes

UInt8Array = np.typing.NDArray[np.uint8]
IntpArray = np.typing.NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class ArcRecipe:
    """Up to `augment` variants of each task besides itself; `read_tasks` and `chosen` say what the tasks are."""

    puzzle: str
    dataset: str = "arcagi"
    tasks: str | None = None
    augment: int = 1000
    hold_out_all: bool = False  # the test pairs of training tasks as well
    keep_colours: bool = False  # variants only turn the grids
    seed: int = 0

    def variants(self, task: ArcTask) -> list[Variant]:
        generator = self.generator(task, "variants")
        return variants_of(task.pairs, self.augment, generator, keep_colours=self.keep_colours)

    def generator(self, task: ArcTask, purpose: str) -> np.random.Generator:
        """A generator of its own for each task, so that a task looks the same whichever others are chosen."""
        digest = hashlib.sha256(f"{task.name}/{purpose}".encode()).digest()
        return np.random.default_rng([self.seed, int.from_bytes(digest[:8], "little")])


def most_bytes(recipe: ArcRecipe, puzzle: Arc) -> int:
    """The most that its data set takes on disk; a task with few symmetries has fewer variants."""
    tasks = (
        task
        for task in chosen(read_tasks(recipe.dataset), recipe.tasks)
        if task.side <= puzzle.side
    )
    num_pairs = sum(len(_pairs(task, split)) for task in tasks for split in SPLITS)
    return 2 * puzzle.seq_len * num_pairs * (recipe.augment + 1)


def build_arc(
    recipe: ArcRecipe,
    puzzle: Arc,
    out: Path,
    *,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> datasets.BuiltSet:
    """Build a data set at `out`, which must not exist; the same for a seed with any number of workers."""
    require_free(out)
    tasks = chosen(read_tasks(recipe.dataset), recipe.tasks)
    fitting = [
        replace(task, is_held_out=task.is_held_out or recipe.hold_out_all)
        for task in tasks
        if task.side <= puzzle.side
    ]
    if not any(task.is_held_out and task.tests for task in fitting):
        problem = (
            f"{recipe.dataset} has no held-out task with an answer whose grids fit {puzzle.name}"
        )
        raise datasets.DatasetError(
            f"{problem}, so the test split would be empty; choose other tasks or a larger canvas."
        )
    named = {**asdict(recipe), "tasks": [task.name for task in fitting]}
    digest = hashlib.sha256(json.dumps(named).encode()).hexdigest()
    unfinished = out.with_name(f".{out.name}.unfinished-{digest[:12]}")
    counts = _begin(recipe, puzzle, fitting, unfinished)
    jobs = list(_jobs(fitting, counts, unfinished / "done"))
    missing = [job for job in jobs if not job.done.exists()]
    progress(len(jobs) - len(missing), len(jobs))
    write = partial(_write_task, recipe=recipe, side=puzzle.side, data=unfinished / "data")
    for done, _ in enumerate(
        results_of(write, missing, num_workers=num_workers), start=len(jobs) - len(missing) + 1
    ):
        progress(done, len(jobs))
    publish(unfinished / "data", out)
    shutil.rmtree(unfinished, ignore_errors=True)
    train, test = (_layout(fitting, counts, split) for split in SPLITS)
    return datasets.BuiltSet(
        num_tasks=len(fitting),
        num_left_out=len(tasks) - len(fitting),
        num_puzzles=train.num_puzzle_ids - 1,
        num_train=train.num_examples,
        num_test=test.num_examples,
        fingerprint=datasets.fingerprint(out),
    )


def _begin(recipe: ArcRecipe, puzzle: Arc, tasks: list[ArcTask], unfinished: Path) -> list[int]:
    """Write all but the examples, keeping those of an earlier run, and return how many variants each task has."""
    data, done = unfinished / "data", unfinished / "done"
    data.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    datasets.write_identifiers(data, _names(recipe, tasks, counts))
    if not done.is_dir():
        for split in SPLITS:
            shutil.rmtree(data / split, ignore_errors=True)
            datasets.create_split(data, split, puzzle=puzzle, layout=_layout(tasks, counts, split))
        datasets.write_recipe(
            data, puzzle, {**asdict(recipe), "dataset": Path(recipe.dataset).name}
        )
        done.mkdir()
    return counts


def _names(recipe: ArcRecipe, tasks: list[ArcTask], counts: list[int]) -> Iterator[str]:
    """The name of every variant, in the order of the ids; notes how many each task has."""
    for task in tasks:
        variants = recipe.variants(task)
        counts.append(len(variants))
        yield from (variant.name(task.name) for variant in variants)


def _layout(tasks: list[ArcTask], counts: list[int], split: str) -> datasets.Layout:
    """Each variant a puzzle, each task a group; tasks without examples in the split do not appear."""
    of_task = np.array([len(_pairs(task, split)) for task in tasks])
    of_variant = np.repeat(of_task, counts)
    return datasets.Layout(
        puzzle_ids=(np.flatnonzero(of_variant) + 1).astype(np.int32),
        puzzle_offsets=np.append(0, np.cumsum(of_variant[of_variant > 0])),
        group_offsets=np.append(0, np.cumsum(np.array(counts)[of_task > 0])),
        num_puzzle_ids=len(of_variant) + 1,
    )


def _pairs(task: ArcTask, split: str) -> tuple[Pair, ...]:
    if split == "test":
        return task.tests if task.is_held_out else ()
    return task.demonstrations if task.is_held_out else task.pairs


class _Job(NamedTuple):
    """One task to be written: where its rows of each split begin, and the file that says it is done."""

    task: ArcTask
    starts: dict[str, int]
    done: Path


def _jobs(tasks: list[ArcTask], counts: list[int], done: Path) -> Iterator[_Job]:
    start: dict[str, int] = dict.fromkeys(SPLITS, 0)
    for number, (task, count) in enumerate(zip(tasks, counts, strict=True)):
        yield _Job(task, dict(start), done / str(number))
        for split in SPLITS:
            start[split] += count * len(_pairs(task, split))


def _write_task(job: _Job, recipe: ArcRecipe, side: int, data: Path) -> None:
    """Draw one task into its rows; runs in a worker process."""
    variants = recipe.variants(job.task)
    for split, start in job.starts.items():
        pairs = _pairs(job.task, split)
        rng = recipe.generator(job.task, "places") if split == "train" else None
        for first in range(0, len(variants) if pairs else 0, BLOCK):
            drawn = _drawn_VET(pairs, variants[first : first + BLOCK], side, rng)
            inputs_BT, labels_BT = (rows_VET.reshape(-1, side**2) for rows_VET in drawn)
            datasets.write_rows(data, split, start + first * len(pairs), inputs_BT, labels_BT)
    job.done.touch()


def _drawn_VET(
    pairs: Sequence[Pair], variants: Sequence[Variant], side: int, rng: np.random.Generator | None
) -> tuple[UInt8Array, UInt8Array]:
    """Questions and answers of every variant; with a generator each pair at a random place where both grids fit."""
    at_corner_VE2 = np.zeros((len(variants), len(pairs), 2), dtype=np.intp)
    origins_VE2 = at_corner_VE2 if rng is None else _origins_VE2(pairs, variants, side, rng)
    inputs_VET, labels_VET = (
        np.empty((len(variants), len(pairs), side * side), dtype=np.uint8) for _ in range(2)
    )
    for number, (question, answer) in enumerate(pairs):
        origins_V2 = origins_VE2[:, number]
        inputs_VET[:, number] = _drawn_VT(question, variants, side, origins_V2)
        labels_VET[:, number] = _drawn_VT(answer, variants, side, origins_V2)
    return inputs_VET, labels_VET


def _origins_VE2(
    pairs: Sequence[Pair], variants: Sequence[Variant], side: int, rng: np.random.Generator
) -> IntpArray:
    extents_E2 = np.array([np.maximum(question.shape, answer.shape) for question, answer in pairs])
    is_turned_V = np.isin([variant.turn for variant in variants], TRANSPOSING)
    extents_VE2 = np.where(is_turned_V[:, None, None], extents_E2[:, ::-1], extents_E2)
    origins_VE2 = rng.integers(side - extents_VE2 + 1)
    kept_V = rng.integers(
        len(pairs), size=len(variants)
    )  # as published, one pair of each stays in the corner
    origins_VE2[np.arange(len(variants)), kept_V] = 0
    return origins_VE2


def _drawn_VT(
    grid: Grid, variants: Sequence[Variant], side: int, origins_V2: IntpArray
) -> UInt8Array:
    turn_V = np.array([variant.turn for variant in variants])
    tokens_VC = np.array([variant.colours for variant in variants], dtype=np.uint8) + np.uint8(
        FIRST_COLOUR
    )
    canvas_VSS = np.zeros(
        (len(variants), side + 1, side + 1), dtype=np.uint8
    )  # one more, where marks may fall
    for turn in range(NUM_TURNS):
        chosen = np.flatnonzero(turn_V == turn)
        cells_KHW = tokens_VC[chosen][:, turned(grid, turn)]
        _, height, width = cells_KHW.shape
        top_K1, left_K1 = origins_V2[chosen, :1], origins_V2[chosen, 1:]
        row_KH, col_KW = top_K1 + np.arange(height), left_K1 + np.arange(width)
        canvas_VSS[chosen[:, None], row_KH, left_K1 + width] = END
        canvas_VSS[chosen[:, None], top_K1 + height, col_KW] = END
        canvas_VSS[chosen[:, None, None], row_KH[:, :, None], col_KW[:, None, :]] = cells_KHW
    return canvas_VSS[:, :side, :side].reshape(len(variants), side * side)
