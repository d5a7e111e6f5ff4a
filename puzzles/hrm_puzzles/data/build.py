"""Build a data set from generated puzzles and CSV rows, or from exported puzzles.

Splits do not share puzzles. A data set is written completely or not at all. Exported puzzles are
files of any form that `reading` knows. Shapes: N examples, T tokens.
"""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hrm_host.atomic import new_directory, require_free
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles import registry
from hrm_puzzles.data import datasets, sources
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.examples import (
    Examples,
    Rows,
    Say,
    bad_rows_text,
    example_type,
    quiet,
    read_examples,
    write_data_set,
)
from hrm_puzzles.puzzle import BoolArray, IntpArray, Puzzle

# Training and test puzzles. The mazes are those of the published Maze-Hard.
USUAL_COUNTS = {"maze": (1000, 1000), "logistics": (960, 400)}
OTHER_COUNTS = (1000, 200)
FORM = 'write {"puzzle": ..., "solution": ...} in each line, or a form of docs/notations.md'


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """What a data set consists of: generated puzzles of a difficulty, and rows of CSV files.

    If `csv_sample` is set, training uses this many random rows of `csv_train`. `columns` names the
    columns of both files, as in `reading.tables`.
    """

    puzzle: str
    num_train: int
    num_test: int
    seed: int = 0
    difficulty: str = sources.MIXED
    csv_train: Path | None = None
    csv_test: Path | None = None
    csv_sample: int | None = None
    columns: str | None = None


def usual_counts(puzzle: Puzzle) -> tuple[int, int]:
    """The default numbers of generated puzzles, for training and for the test."""
    family, _, _ = puzzle.name.partition("-")
    return USUAL_COUNTS.get(family, OTHER_COUNTS)


def build(
    recipe: DataRecipe,
    out: Path,
    *,
    num_workers: int = 1,
    progress: OnProgress = unheard,
    skip_bad: bool = False,
    say: Say = quiet,
) -> datasets.BuiltSet:
    """Build a data set at `out`, which must not exist.

    A stopped build continues if it is started again with the same recipe. `skip_bad` omits bad rows
    of files and passes their number to `say`.
    """
    puzzle = registry.get(recipe.puzzle)
    sources.difficulties_of(puzzle, recipe.difficulty)  # raises for an unknown one
    rows = _file_rows(recipe, puzzle, skip_bad=skip_bad, say=say)
    require_free(out)
    chunks = datasets.stopped_build(out, asdict(recipe))
    for split, count in (("train", recipe.num_train), ("test", recipe.num_test)):
        made = sources.generated(
            puzzle,
            count,
            chunks,
            is_test=split == "test",
            difficulty=recipe.difficulty,
            seed=recipe.seed,
            num_workers=num_workers,
            progress=progress,
        )
        rows[split] = np.concatenate([made, rows[split]])
    # Without folders, so that data sets built on two machines are equal.
    values = asdict(recipe)
    for key in ("csv_train", "csv_test"):
        if values[key] is not None:
            values[key] = values[key].name
    built = write_data_set(puzzle, values, rows, out)
    shutil.rmtree(chunks, ignore_errors=True)
    return built


def _file_rows(recipe: DataRecipe, puzzle: Puzzle, *, skip_bad: bool, say: Say) -> Rows:
    """The rows of both files. Training may use a random sample of its rows.

    Raises DatasetError if a file holds no puzzle, or if a split would be empty.
    """
    nothing = np.zeros(0, dtype=example_type(puzzle))
    rows = {"train": nothing, "test": nothing}
    for split, file in (("train", recipe.csv_train), ("test", recipe.csv_test)):
        if file is not None:
            content = read_examples(file, puzzle, recipe.columns, skip_bad=skip_bad, say=say)
            if content.faults:
                say(f"{bad_rows_text(content.faults)} and left out.")
            if not len(content.rows):
                raise DatasetError(f"{file} does not hold a puzzle; {FORM}.")
            rows[split] = content.rows
    rows["train"] = _sample(recipe, rows["train"])
    for split, count in (("train", recipe.num_train), ("test", recipe.num_test)):
        if not count and not len(rows[split]):
            remedy = f"give --{split} or --csv-{split} with rows"
            raise DatasetError(f"the {split} split would be empty; {remedy}.")
    return rows


def _sample(recipe: DataRecipe, rows: Examples) -> Examples:
    if recipe.csv_sample is None:
        return rows
    # Streams 0 and 1 generate puzzles, see `sources`.
    seed = np.random.SeedSequence(recipe.seed, spawn_key=(3,))
    return rows[sources.chosen_rows(len(rows), recipe.csv_sample, seed)]


def import_file(
    path: Path,
    puzzle: Puzzle,
    out: Path,
    *,
    split: str | None = None,
    say: Say = quiet,
) -> datasets.BuiltSet:
    """Build a data set from the good puzzles of a file.

    They go to `split`, or to both splits by `is_held_out_N`. Raises DatasetError if a split that
    training needs would be empty.
    """
    require_free(out)
    content = read_examples(path, puzzle, skip_bad=True, say=say)
    if not len(content.rows):
        reason = next(iter(content.faults.values()), "it is empty.")
        raise DatasetError(f"{path} does not hold a valid puzzle: {reason.rstrip('.')}; {FORM}.")
    names, ids = np.unique(["", *content.names], return_inverse=True)
    ids_N = ids[1:]  # 0 for a row without a name
    order_N = np.argsort(ids_N, kind="stable")
    ids_N = ids_N[order_N]
    rows = content.rows[order_N]
    is_test_N = np.full(len(rows), split == "test")
    if split is None:
        is_test_N = sources.is_held_out_N(puzzle, rows["inputs"], rows["labels"])
        _require_both(path, puzzle, is_test_N)
    with new_directory(out) as directory:
        for part, chosen_N in (("train", ~is_test_N), ("test", is_test_N)):
            if chosen_N.any():
                layout = _layout(ids_N[chosen_N], len(names))
                inputs_NT = rows["inputs"][chosen_N]
                labels_NT = rows["labels"][chosen_N]
                datasets.write_split(
                    directory, part, inputs_NT, labels_NT, puzzle=puzzle, layout=layout
                )
        datasets.write_identifiers(directory, names[1:].tolist())
        datasets.write_recipe(directory, puzzle, {"imported": path.name})
    num_test = int(is_test_N.sum())
    return datasets.BuiltSet(
        num_train=len(rows) - num_test,
        num_test=num_test,
        num_left_out=len(content.faults),
        faults=list(content.faults.values()),
        fingerprint=datasets.fingerprint(out),
    )


def _require_both(path: Path, puzzle: Puzzle, is_test_N: BoolArray) -> None:
    """Raise DatasetError if all puzzles of a file belong to one split."""
    for split, chosen_N in (("train", ~is_test_N), ("test", is_test_N)):
        if chosen_N.any():
            continue
        count = f"none of the {len(is_test_N)} puzzles of {path} belongs to it"
        remedy = "add puzzles, or train on all of them and generate the test with hrm-data build "
        remedy += f"{puzzle.name} --csv-train {path} --test 200"
        if not puzzle.difficulties:
            remedy = "add puzzles, or import a file for each split and name it with --split"
        raise DatasetError(f"the {split} split would be empty, because {count}; {remedy}.")


def _layout(ids_N: IntpArray, num_puzzle_ids: int) -> datasets.Layout:
    """Neighbors with one id are one puzzle. Each example with id 0 is a puzzle of its own."""
    is_new_N = (ids_N[1:] != ids_N[:-1]) | (ids_N[1:] == 0)
    starts = np.flatnonzero(np.append(True, is_new_N))
    return datasets.Layout(
        puzzle_ids=ids_N[starts].astype(np.int32),
        puzzle_offsets=np.append(starts, len(ids_N)),
        group_offsets=np.arange(len(starts) + 1),
        num_puzzle_ids=num_puzzle_ids,
    )
