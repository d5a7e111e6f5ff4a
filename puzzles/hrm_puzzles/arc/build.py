"""Build ARC data sets as the published builder does: every variant of a task has a puzzle id.

The sizes are known before any canvas is drawn, so workers write their tasks straight into the
final files. Memory use stays constant for any number of examples, and a stopped build continues.
Shapes: V variants of a task (the unchanged task first), E its examples of one split, T tokens.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hrm_host.atomic import publish, require_free
from hrm_host.progress import OnProgress, unheard
from hrm_host.workers import results_of
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.examples import (
    MORE,
    NUM_BY_TASK,
    Examples,
    extended,
    read_examples,
    require_known,
)
from hrm_puzzles.arc.tasks import ArcTask, chosen, read_tasks
from hrm_puzzles.arc.variants import Pair, Variant, drawn_VET, variants_of
from hrm_puzzles.data import datasets

BLOCK = 256  # variants that are drawn at once; a few megabytes
MOST_DRAWN = 4096  # examples drawn at once; a task of RE-ARC has 1,000 per variant


@dataclass(frozen=True, kw_only=True)
class ArcRecipe:
    """Up to `augment` variants of each task, besides the task itself.

    `read_tasks` and `chosen` explain `dataset` and `tasks`. With `hold_out_all`, the test pairs of
    training tasks are also held out. With `keep_colors`, variants only turn the grids. `more` is a
    file of further examples, and `more_license` the file of their license (`read_examples`).
    """

    puzzle: str
    dataset: str = "arcagi"
    tasks: str | None = None
    augment: int = 1000
    hold_out_all: bool = False
    keep_colors: bool = False
    more: Path | None = None
    more_license: Path | None = None
    seed: int = 0

    def variants(self, task: ArcTask) -> list[Variant]:
        rng = self.generator(task, "variants")
        return variants_of(task.pairs, self.augment, rng, keep_colors=self.keep_colors)

    def generator(self, task: ArcTask, purpose: str) -> np.random.Generator:
        """The random generator of one task. It does not depend on which other tasks are chosen."""
        digest = hashlib.sha256(f"{task.name}/{purpose}".encode()).digest()
        task_seed = int.from_bytes(digest[:8], "little")
        return np.random.default_rng([self.seed, task_seed])


class _Source(NamedTuple):
    """The tasks that fit the board, with further examples at the end of their demonstrations.

    `num_left_out` counts the chosen tasks that do not fit, `num_more_left_out` such examples.
    `num_by_task` has only tasks with further examples.
    """

    tasks: list[ArcTask]
    num_left_out: int
    examples: Examples | None = None
    num_by_task: Mapping[str, int] = {}
    num_more_left_out: int = 0


def _source(recipe: ArcRecipe, puzzle: Arc) -> _Source:
    all_tasks = read_tasks(recipe.dataset)
    wanted = chosen(all_tasks, recipe.tasks)
    tasks = [task for task in wanted if task.side <= puzzle.side]
    if recipe.hold_out_all:
        tasks = [replace(task, is_held_out=True) for task in tasks]
    num_left_out = len(wanted) - len(tasks)
    if recipe.more is None:
        return _Source(tasks, num_left_out)
    if recipe.more_license is None:
        problem = f"{recipe.more} has examples of somebody, whose license the data set copies"
        raise datasets.DatasetError(f"{problem}; name its file with --more-license FILE.")
    examples = read_examples(recipe.more, recipe.more_license)
    require_known(examples, [task.name for task in all_tasks])
    longer, num_more_left_out = extended(tasks, examples, puzzle)
    num_by_task: dict[str, int] = {}
    for task, after in zip(tasks, longer, strict=True):
        num_added = len(after.demonstrations) - len(task.demonstrations)
        if num_added:
            num_by_task[task.name] = num_added
    return _Source(
        tasks=longer,
        num_left_out=num_left_out,
        examples=examples,
        num_by_task=num_by_task,
        num_more_left_out=num_more_left_out,
    )


def build_arc(
    recipe: ArcRecipe,
    puzzle: Arc,
    out: Path,
    *,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> datasets.BuiltSet:
    """Build a data set at `out`, which must not exist.

    Until it is complete, its folder has another name, which the same recipe and tasks find again. A
    seed gives the same data set for any number of workers.
    """
    require_free(out)
    source = _source(recipe, puzzle)
    if not any(task.is_held_out and task.tests for task in source.tasks):
        required = f"held-out task with an answer whose grids fit {puzzle.name}"
        problem = f"the test split would be empty, because {recipe.dataset} has no {required}"
        remedy = "choose other tasks or a larger canvas, or hold tasks out with --hold-out-all"
        raise datasets.DatasetError(f"{problem}; {remedy}.")
    unfinished = datasets.stopped_build(out, [asdict(recipe), _digest_of(source.tasks)])
    built = _draw(recipe, puzzle, source, unfinished, num_workers=num_workers, progress=progress)
    publish(unfinished / "data", out)
    shutil.rmtree(unfinished, ignore_errors=True)
    return replace(built, fingerprint=datasets.fingerprint(out))


def _draw(
    recipe: ArcRecipe,
    puzzle: Arc,
    source: _Source,
    unfinished: Path,
    *,
    num_workers: int,
    progress: OnProgress,
) -> datasets.BuiltSet:
    """Write the data set of all tasks into "data". Files in "done" mark the written tasks."""
    tasks = source.tasks
    data = unfinished / "data"
    done = unfinished / "done"
    counts = _begin(recipe, puzzle, source, data, done)
    jobs = list(_jobs(tasks, counts, done))
    missing = [job for job in jobs if not job.done.exists()]
    num_done = len(jobs) - len(missing)
    progress(num_done, len(jobs))
    write = partial(_write_task, recipe=recipe, side=puzzle.side, data=data)
    for _ in results_of(write, missing, num_workers=num_workers):
        num_done += 1
        progress(num_done, len(jobs))
    train = _layout(tasks, counts, "train")
    test = _layout(tasks, counts, "test")
    built = datasets.BuiltSet(
        num_tasks=len(tasks),
        num_left_out=source.num_left_out,
        num_puzzles=train.num_puzzle_ids - 1,
        num_train=train.num_examples,
        num_test=test.num_examples,
        fingerprint="",
    )
    if source.examples is None:
        return built
    num_more = sum(source.num_by_task.values())
    return replace(built, num_more=num_more, num_more_left_out=source.num_more_left_out)


def _digest_of(tasks: list[ArcTask]) -> str:
    """sha256 of the names, pairs and roles of tasks."""
    digest = hashlib.sha256()
    for task in tasks:
        sizes = (len(task.demonstrations), len(task.tests), task.is_held_out)
        digest.update(f"{task.name}\0{sizes}\0".encode())
        for question, answer in task.pairs:
            for grid in (question, answer):
                digest.update(f"{grid.shape}".encode())
                digest.update(grid.tobytes())
    return digest.hexdigest()


def _begin(
    recipe: ArcRecipe,
    puzzle: Arc,
    source: _Source,
    data: Path,
    done: Path,
) -> list[int]:
    """Write everything except the examples, and keep the examples of an earlier run.

    Returns the number of variants of each task.
    """
    tasks = source.tasks
    data.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    datasets.write_identifiers(data, _names(recipe, tasks, counts))
    if not done.is_dir():
        for split in datasets.SPLITS:
            shutil.rmtree(data / split, ignore_errors=True)
            layout = _layout(tasks, counts, split)
            datasets.create_split(data, split, puzzle=puzzle, layout=layout)
        _write_provenance(recipe, puzzle, source, data)
        done.mkdir()
    return counts


def _write_provenance(recipe: ArcRecipe, puzzle: Arc, source: _Source, data: Path) -> None:
    """Write the recipe without the folders of this machine, and the license of further examples."""
    values = asdict(recipe)
    values["dataset"] = Path(recipe.dataset).name
    del values[MORE]
    del values["more_license"]
    examples = source.examples
    if examples is not None:
        values[MORE] = {
            "file": examples.path.name,
            "sha256": examples.sha256,
            "license": examples.license.strip().partition("\n")[0],
            "num_left_out": source.num_more_left_out,
            NUM_BY_TASK: source.num_by_task,
        }
        (data / "LICENSE-more.txt").write_bytes(examples.license.encode())
    datasets.write_recipe(data, puzzle, values)


def _names(recipe: ArcRecipe, tasks: list[ArcTask], counts: list[int]) -> Iterator[str]:
    """The names of all variants in the order of their ids.

    Appends the number of variants of each task to `counts`, so that all names of a large build are
    never in memory at once.
    """
    for task in tasks:
        variants = recipe.variants(task)
        counts.append(len(variants))
        for variant in variants:
            yield variant.name(task.name)


def _layout(tasks: list[ArcTask], counts: list[int], split: str) -> datasets.Layout:
    """Each variant is a puzzle and each task is a group.

    Tasks without examples in the split do not appear.
    """
    num_pairs = np.array([len(_pairs(task, split)) for task in tasks], dtype=np.int64)
    num_variants = np.array(counts, dtype=np.int64)
    num_examples = np.repeat(num_pairs, num_variants)  # one number per variant
    in_split = num_examples > 0
    puzzle_ids = np.flatnonzero(in_split) + 1
    return datasets.Layout(
        puzzle_ids=puzzle_ids.astype(np.int32),
        puzzle_offsets=np.append(0, np.cumsum(num_examples[in_split])),
        group_offsets=np.append(0, np.cumsum(num_variants[num_pairs > 0])),
        num_puzzle_ids=len(num_examples) + 1,
    )


def _pairs(task: ArcTask, split: str) -> tuple[Pair, ...]:
    """The examples of a task in a split."""
    if split == "test":
        if task.is_held_out:
            return task.tests
        return ()
    if task.is_held_out:
        return task.demonstrations
    return task.pairs


class _Job(NamedTuple):
    """One task to write: its first row of each split, and the file that marks it as done."""

    task: ArcTask
    starts: dict[str, int]
    done: Path


def _jobs(tasks: list[ArcTask], counts: list[int], done: Path) -> Iterator[_Job]:
    starts: dict[str, int] = dict.fromkeys(datasets.SPLITS, 0)
    for number, (task, count) in enumerate(zip(tasks, counts, strict=True)):
        yield _Job(task, dict(starts), done / str(number))
        for split in datasets.SPLITS:
            starts[split] += count * len(_pairs(task, split))


def _write_task(job: _Job, recipe: ArcRecipe, side: int, data: Path) -> None:
    """Draw one task into its rows. This runs in a worker process."""
    variants = recipe.variants(job.task)
    for split, start in job.starts.items():
        pairs = _pairs(job.task, split)
        if not pairs:
            continue
        rng = None
        if split == "train":
            rng = recipe.generator(job.task, "places")
        step = max(1, min(BLOCK, MOST_DRAWN // len(pairs)))
        for first in range(0, len(variants), step):
            block = variants[first : first + step]
            inputs_VET, labels_VET = drawn_VET(pairs, block, side, rng)
            row = start + first * len(pairs)
            inputs_BT = inputs_VET.reshape(-1, side**2)
            labels_BT = labels_VET.reshape(-1, side**2)
            datasets.write_rows(data, split, row, inputs_BT, labels_BT)
    job.done.touch()
