"""Building a data set: generated puzzles and rows of CSV files, splits kept apart, written whole or not at all.

Shapes: N examples, T tokens.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import new_directory, require_free
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.csv_rows import read_csv
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.generation import MIXED, Chunk, Rows, chunks_of, difficulties_of, generate_chunks, read_chunk
from hrm_puzzles.puzzle import Puzzle

USUAL_COUNTS = {"maze": (1000, 1000), "logistics": (960, 400)}  # as the published Maze-Hard, and the city set


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to build: generated puzzles of a difficulty, and the rows of CSV files within a range of ratings.

    Of the CSV rows to train on, `csv_sample` says how many are taken, at random. `copies` random symmetric copies
    follow each training question, in one group with it.
    """

    puzzle: str
    num_train: int
    num_test: int
    seed: int = 0
    difficulty: str = MIXED
    copies: int = 0
    csv_train: str | None = None
    csv_test: str | None = None
    least_rating: int = 0
    greatest_rating: int | None = None
    csv_sample: int | None = None

    def chunks(self, *, is_test: bool) -> list[Chunk]:
        count = self.num_test if is_test else self.num_train
        return chunks_of(self.puzzle, self.difficulty, self.seed, is_test=is_test, count=count)


@dataclass(frozen=True, kw_only=True)
class Built:
    """`num_left_out` training questions were equivalent to test questions and are not in the data set."""

    num_train: int
    num_test: int
    num_left_out: int
    fingerprint: str


def usual_counts(puzzle: Puzzle) -> tuple[int, int]:
    """How many puzzles are generated for training and for the test where nobody says."""
    return USUAL_COUNTS.get(puzzle.name.partition("-")[0], (1000, 200))


def build(recipe: Recipe, out: Path, *, num_workers: int = 1, progress: OnProgress = unheard) -> Built:
    """Build a data set at `out`, which must not exist; a build that was stopped continues with the same recipe.
    No question of the training split is a symmetric copy of one of the test split.
    """
    puzzle = registry.get(recipe.puzzle)
    difficulties_of(puzzle, recipe.difficulty)  # refuse before any work
    require_free(out)
    # Before the long work, since a faulty file ends it.
    csv_train, csv_test = (_csv_rows(puzzle, recipe, is_test=is_test) for is_test in (False, True))
    finished = out.with_name(f".{out.name}.chunks-{_digest(recipe)}")
    chunks = [*recipe.chunks(is_test=False), *recipe.chunks(is_test=True)]
    generate_chunks(chunks, finished, num_workers=num_workers, progress=progress)
    all_train = _joined([*(read_chunk(chunk, finished) for chunk in recipe.chunks(is_test=False)), *csv_train])
    test = _joined([*(read_chunk(chunk, finished) for chunk in recipe.chunks(is_test=True)), *csv_test])
    train = _apart_from(puzzle, all_train, test)
    with new_directory(out) as directory:
        _write(puzzle, recipe, directory, train, test)
    shutil.rmtree(finished, ignore_errors=True)
    return Built(
        num_train=len(train) * (1 + recipe.copies),
        num_test=len(test),
        num_left_out=len(all_train) - len(train),
        fingerprint=datasets.fingerprint(out),
    )


def _csv_rows(puzzle: Puzzle, recipe: Recipe, *, is_test: bool) -> list[Rows]:
    """The rows of the CSV file of a split, if there is one; refuses what would leave the split empty."""
    source = recipe.csv_test if is_test else recipe.csv_train
    sample = None if is_test else recipe.csv_sample
    parts = [] if source is None else [_read_csv(puzzle, recipe, Path(source), sample)]
    if not recipe.chunks(is_test=is_test) and not any(map(len, parts)):
        split = "test" if is_test else "train"
        raise DatasetError(f"the {split} split would be empty; give --{split} or --csv-{split} with rows in range.")
    return parts


def _read_csv(puzzle: Puzzle, recipe: Recipe, path: Path, sample: int | None) -> Rows:
    rows = read_csv(path, puzzle, least_rating=recipe.least_rating, greatest_rating=recipe.greatest_rating)
    if sample is not None and sample < len(rows):
        rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(3,)))
        rows = rows.at(np.sort(rng.permutation(len(rows))[:sample]))
    return Rows(inputs_NT=rows.questions_NT, labels_NT=rows.answers_NT, ratings_N=rows.ratings_N)


def _joined(parts: list[Rows]) -> Rows:
    return Rows(
        inputs_NT=np.concatenate([part.inputs_NT for part in parts]),
        labels_NT=np.concatenate([part.labels_NT for part in parts]),
        ratings_N=np.concatenate([part.ratings_N for part in parts]),
    )


def _apart_from(puzzle: Puzzle, train: Rows, test: Rows) -> Rows:
    """The training rows that are no symmetric copies of test rows; only CSV rows can be."""
    of_train_N, of_test_N = (puzzle.equivalence_hash_B(rows.inputs_NT, rows.labels_NT) for rows in (train, test))
    return train.at(~np.isin(of_train_N, of_test_N))


def _write(puzzle: Puzzle, recipe: Recipe, directory: Path, train: Rows, test: Rows) -> None:
    copied = _with_copies(puzzle, train, recipe)
    for split, rows, variants in (("train", copied, 1 + recipe.copies), ("test", test, 1)):
        datasets.write_split(
            directory,
            split,
            rows.inputs_NT,
            rows.labels_NT,
            puzzle=puzzle,
            ratings_N=rows.ratings_N,
            layout=datasets.Layout.of_variants(len(rows), variants),
        )
    datasets.write_identifiers(directory)
    datasets.write_recipe(directory, puzzle, _described(recipe))


def _with_copies(puzzle: Puzzle, rows: Rows, recipe: Recipe) -> Rows:
    """Each question followed by its symmetric copies; their rating is that of the original."""
    if not recipe.copies:
        return rows
    rng = np.random.default_rng(np.random.SeedSequence(recipe.seed, spawn_key=(2,)))
    variant_N = np.tile(np.arange(1 + recipe.copies), len(rows))
    copied = rows.at(np.repeat(np.arange(len(rows)), 1 + recipe.copies))
    for chosen in np.array_split(np.flatnonzero(variant_N), len(rows) // 256 + 1):
        inputs_BT, labels_BT = copied.inputs_NT[chosen], copied.labels_NT[chosen]
        copied.inputs_NT[chosen], copied.labels_NT[chosen] = _narrow(puzzle.augment_BT(rng, inputs_BT, labels_BT))
    return copied


def _narrow(pair: tuple[NDArray[Any], NDArray[Any]]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return pair[0].astype(np.uint8), pair[1].astype(np.uint8)


def _described(recipe: Recipe) -> dict[str, object]:
    """The recipe without the folders of one machine."""
    files = {key: getattr(recipe, key) for key in ("csv_train", "csv_test")}
    return {**asdict(recipe), **{key: value and Path(value).name for key, value in files.items()}}


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(asdict(recipe)).encode()).hexdigest()[:12]
