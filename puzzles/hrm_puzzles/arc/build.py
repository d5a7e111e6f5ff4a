"""Build ARC data sets as the published builder does: every variant of a task has a puzzle id.

The sizes are known before any canvas is drawn, so workers write their tasks straight into the
final files. Memory use stays constant for any number of examples, and a stopped build continues.
Shapes: V variants of a task (the unchanged task first), E its examples of one split, S side of the
canvas, T = S * S tokens, K variants of one turn, H and W the sides of one grid, C = 10 colours.
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
from numpy.typing import NDArray

from hrm_host.atomic import publish, require_free
from hrm_host.progress import OnProgress, unheard
from hrm_host.workers import results_of
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.canvas import END, FIRST_COLOUR
from hrm_puzzles.arc.examples import (
    MORE,
    Examples,
    Extended,
    extended,
    read_examples,
    require_known,
)
from hrm_puzzles.arc.tasks import ArcTask, chosen, read_tasks
from hrm_puzzles.arc.variants import NUM_TURNS, TRANSPOSING, Pair, Variant, turned, variants_of
from hrm_puzzles.data import datasets
from hrm_puzzles.puzzle import Grid

SPLITS = ("train", "test")
BLOCK = 256  # variants that are drawn at once; a few megabytes
MOST_DRAWN = 4096  # examples of these variants; a task of RE-ARC has 1,000 in each
MORE_LICENCE = "LICENSE-more.txt"

UInt8Array = NDArray[np.uint8]
IntpArray = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class ArcRecipe:
    """Up to `augment` variants of each task, besides the task itself.

    `read_tasks` and `chosen` explain `dataset` and `tasks`. With `hold_out_all`, the test pairs of
    training tasks are also held out. With `keep_colours`, variants only turn the grids. `more` is a
    file of further examples, and `more_licence` the file of their licence (`read_examples`).
    """

    puzzle: str
    dataset: str = "arcagi"
    tasks: str | None = None
    augment: int = 1000
    hold_out_all: bool = False
    keep_colours: bool = False
    more: str | None = None
    more_licence: str | None = None
    seed: int = 0

    def variants(self, task: ArcTask) -> list[Variant]:
        rng = self.generator(task, "variants")
        return variants_of(task.pairs, self.augment, rng, keep_colours=self.keep_colours)

    def examples(self) -> Examples | None:
        """The further examples; None if the recipe names no file."""
        if self.more is None:
            return None
        licence = None
        if self.more_licence is not None:
            licence = Path(self.more_licence)
        return read_examples(Path(self.more), licence)

    def generator(self, task: ArcTask, purpose: str) -> np.random.Generator:
        """A generator for one task. It does not depend on the choice of other tasks."""
        digest = hashlib.sha256(f"{task.name}/{purpose}".encode()).digest()
        task_seed = int.from_bytes(digest[:8], "little")
        return np.random.default_rng([self.seed, task_seed])


def most_bytes(recipe: ArcRecipe, puzzle: Arc) -> int:
    """Upper bound of the bytes of a data set. A task with few symmetries has fewer variants."""
    num_pairs = 0
    for task in _source(recipe, puzzle).tasks:
        num_pairs += sum(len(_pairs(task, split)) for split in SPLITS)
    bytes_per_pair = 2 * puzzle.seq_len
    return bytes_per_pair * num_pairs * (recipe.augment + 1)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The tasks that fit the board, with further examples among their demonstrations.

    `num_left_out` counts the chosen tasks that do not fit.
    """

    tasks: list[ArcTask]
    num_left_out: int
    more: Extended | None = None


def _source(recipe: ArcRecipe, puzzle: Arc) -> _Source:
    all_tasks = read_tasks(recipe.dataset)
    wanted = chosen(all_tasks, recipe.tasks)
    tasks = [task for task in wanted if task.side <= puzzle.side]
    if recipe.hold_out_all:
        tasks = [replace(task, is_held_out=True) for task in tasks]
    num_left_out = len(wanted) - len(tasks)
    examples = recipe.examples()
    if examples is None:
        return _Source(tasks=tasks, num_left_out=num_left_out)
    require_known(examples, [task.name for task in all_tasks])
    more = extended(tasks, examples, puzzle)
    return _Source(tasks=more.tasks, num_left_out=num_left_out, more=more)


def build_arc(
    recipe: ArcRecipe,
    puzzle: Arc,
    out: Path,
    *,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> datasets.BuiltSet:
    """Build a data set at `out`, which must not exist.

    A seed gives the same data set for any number of workers.
    """
    require_free(out)
    source = _source(recipe, puzzle)
    tasks = source.tasks
    _check_held_out(recipe, puzzle, tasks)
    unfinished = _unfinished_folder(recipe, source, out)
    counts = _begin(recipe, puzzle, source, unfinished)
    jobs = list(_jobs(tasks, counts, unfinished / "done"))
    missing = [job for job in jobs if not job.done.exists()]
    num_done = len(jobs) - len(missing)
    progress(num_done, len(jobs))
    write = partial(_write_task, recipe=recipe, side=puzzle.side, data=unfinished / "data")
    for _ in results_of(write, missing, num_workers=num_workers):
        num_done += 1
        progress(num_done, len(jobs))
    publish(unfinished / "data", out)
    shutil.rmtree(unfinished, ignore_errors=True)
    train = _layout(tasks, counts, "train")
    test = _layout(tasks, counts, "test")
    built = datasets.BuiltSet(
        num_tasks=len(tasks),
        num_left_out=source.num_left_out,
        num_puzzles=train.num_puzzle_ids - 1,
        num_train=train.num_examples,
        num_test=test.num_examples,
        fingerprint=datasets.fingerprint(out),
    )
    if source.more is None:
        return built
    return replace(
        built, num_more=source.more.num_added, num_more_left_out=source.more.num_left_out
    )


def _check_held_out(recipe: ArcRecipe, puzzle: Arc, tasks: list[ArcTask]) -> None:
    if not any(task.is_held_out and task.tests for task in tasks):
        required = f"held-out task with an answer whose grids fit {puzzle.name}"
        problem = f"the test split would be empty, because {recipe.dataset} has no {required}"
        raise datasets.DatasetError(f"{problem}; choose other tasks or a larger canvas.")


def _unfinished_folder(recipe: ArcRecipe, source: _Source, out: Path) -> Path:
    """The folder of a build until it is complete. The same recipe and tasks find it again."""
    contents = {**asdict(recipe), "tasks": [task.name for task in source.tasks]}
    if source.more is not None:
        contents["more"] = source.more.examples.sha256
    digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    return out.with_name(f".{out.name}.unfinished-{digest[:12]}")


def _begin(
    recipe: ArcRecipe,
    puzzle: Arc,
    source: _Source,
    unfinished: Path,
) -> list[int]:
    """Write everything except the examples, and keep those of an earlier run.

    Returns the number of variants of each task.
    """
    tasks = source.tasks
    data = unfinished / "data"
    done = unfinished / "done"
    data.mkdir(parents=True, exist_ok=True)
    counts: list[int] = []
    datasets.write_identifiers(data, _names(recipe, tasks, counts))
    if not done.is_dir():
        for split in SPLITS:
            shutil.rmtree(data / split, ignore_errors=True)
            layout = _layout(tasks, counts, split)
            datasets.create_split(data, split, puzzle=puzzle, layout=layout)
        _write_provenance(recipe, puzzle, source.more, data)
        done.mkdir()
    return counts


def _write_provenance(recipe: ArcRecipe, puzzle: Arc, more: Extended | None, data: Path) -> None:
    """Write the recipe without the folders of this machine, and the licence of further examples."""
    values = asdict(recipe)
    values["dataset"] = Path(recipe.dataset).name
    del values[MORE]
    del values["more_licence"]
    if more is not None:
        values[MORE] = more.provenance()
        (data / MORE_LICENCE).write_bytes(more.examples.licence.encode())
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
    num_pairs = np.array([len(_pairs(task, split)) for task in tasks])
    num_variants = np.array(counts)
    num_examples = np.repeat(num_pairs, num_variants)  # of each variant
    in_split = num_examples > 0
    puzzle_ids = np.flatnonzero(in_split) + 1
    return datasets.Layout(
        puzzle_ids=puzzle_ids.astype(np.int32),
        puzzle_offsets=_offsets(num_examples[in_split]),
        group_offsets=_offsets(num_variants[num_pairs > 0]),
        num_puzzle_ids=len(num_examples) + 1,
    )


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The start of each part, and the end of the last one."""
    return np.append(0, np.cumsum(sizes))


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
    starts: dict[str, int] = dict.fromkeys(SPLITS, 0)
    for number, (task, count) in enumerate(zip(tasks, counts, strict=True)):
        yield _Job(task, dict(starts), done / str(number))
        for split in SPLITS:
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
            inputs_VET, labels_VET = _drawn_VET(pairs, block, side, rng)
            row = start + first * len(pairs)
            inputs_BT = inputs_VET.reshape(-1, side**2)
            labels_BT = labels_VET.reshape(-1, side**2)
            datasets.write_rows(data, split, row, inputs_BT, labels_BT)
    job.done.touch()


def _drawn_VET(
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    side: int,
    rng: np.random.Generator | None,
) -> tuple[UInt8Array, UInt8Array]:
    """Questions and answers of every variant.

    With a generator, each pair is at a random place where both grids fit. Otherwise it is in the
    upper left corner.
    """
    shape = (len(variants), len(pairs), side * side)
    inputs_VET = np.empty(shape, dtype=np.uint8)
    labels_VET = np.empty(shape, dtype=np.uint8)
    if rng is None:
        origins_VE2 = np.zeros((len(variants), len(pairs), 2), dtype=np.intp)
    else:
        origins_VE2 = _origins_VE2(pairs, variants, side, rng)
    for number, (question, answer) in enumerate(pairs):
        origins_V2 = origins_VE2[:, number]
        inputs_VET[:, number] = _drawn_VT(question, variants, side, origins_V2)
        labels_VET[:, number] = _drawn_VT(answer, variants, side, origins_V2)
    return inputs_VET, labels_VET


def _origins_VE2(
    pairs: Sequence[Pair],
    variants: Sequence[Variant],
    side: int,
    rng: np.random.Generator,
) -> IntpArray:
    """Random places where both grids of a pair fit.

    As published, one pair of each variant stays in the corner.
    """
    extents_E2 = np.array([np.maximum(question.shape, answer.shape) for question, answer in pairs])
    turned_extents_E2 = extents_E2[:, ::-1]
    is_turned_V = np.isin([variant.turn for variant in variants], TRANSPOSING)
    extents_VE2 = np.where(is_turned_V[:, None, None], turned_extents_E2, extents_E2)
    origins_VE2 = rng.integers(side - extents_VE2 + 1)
    kept_V = rng.integers(len(pairs), size=len(variants))
    origins_VE2[np.arange(len(variants)), kept_V] = 0
    return origins_VE2


def _drawn_VT(
    grid: Grid,
    variants: Sequence[Variant],
    side: int,
    origins_V2: IntpArray,
) -> UInt8Array:
    """One grid on the canvas of each variant, all variants of a turn at once."""
    turn_V = np.array([variant.turn for variant in variants])
    colours_VC = np.array([variant.colours for variant in variants], dtype=np.uint8)
    tokens_VC = colours_VC + np.uint8(FIRST_COLOUR)
    # One row and one column more than the canvas, for end marks that fall off it.
    canvas_VSS = np.zeros((len(variants), side + 1, side + 1), dtype=np.uint8)
    for turn in range(NUM_TURNS):
        chosen_K = np.flatnonzero(turn_V == turn)
        cells_KHW = tokens_VC[chosen_K][:, turned(grid, turn)]
        _, height, width = cells_KHW.shape
        top_K1 = origins_V2[chosen_K, :1]
        left_K1 = origins_V2[chosen_K, 1:]
        row_KH = top_K1 + np.arange(height)
        col_KW = left_K1 + np.arange(width)
        chosen_K1 = chosen_K[:, None]
        canvas_VSS[chosen_K1, row_KH, left_K1 + width] = END
        canvas_VSS[chosen_K1, top_K1 + height, col_KW] = END
        row_KH1 = row_KH[:, :, None]
        col_K1W = col_KW[:, None, :]
        canvas_VSS[chosen_K1[:, None], row_KH1, col_K1W] = cells_KHW
    return canvas_VSS[:, :side, :side].reshape(len(variants), side * side)
