"""Held-out puzzles with their labels: from a data set, from a CSV file, or made for the purpose.

What is made, and the test split of a data set, hold no puzzle of a training split; a CSV file holds what its owner put
there.
Shapes: N puzzles, T tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.csv_rows import read_csv
from hrm_puzzles.data.datasets import RECIPE, DatasetError, open_split
from hrm_puzzles.data.generation import MIXED, chunks_of, generate_chunks, read_chunk
from hrm_puzzles.puzzle import Puzzle

SEED = 20_017
"""Of puzzles made on the spot; whatever the seed, they are of classes that no training split holds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """One puzzle with its label (negative where any answer will do); `index` is its place among the others."""

    index: int
    tokens_T: NDArray[np.int32]
    labels_T: NDArray[np.int32]
    puzzle_id: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """Tokens, labels (negative where any answer will do), puzzle ids, ratings where the source has them, its name."""

    tokens_NT: NDArray[np.int32]
    labels_NT: NDArray[np.int32]
    puzzle_ids_N: NDArray[np.int32]
    ratings_N: NDArray[np.int32] | None = None
    source: str

    def __len__(self) -> int:
        return len(self.tokens_NT)

    @property
    def title(self) -> str:
        return f"{len(self)} puzzles ({self.source})"

    def __getitem__(self, index: int) -> Question:
        return Question(
            index=index,
            tokens_T=self.tokens_NT[index],
            labels_T=self.labels_NT[index],
            puzzle_id=int(self.puzzle_ids_N[index]),
        )

    def __iter__(self) -> Iterator[Question]:
        return (self[index] for index in range(len(self)))

    def sample(self, count: int, seed: int = 0) -> Questions:
        """A seeded choice of `count`, in the order of the source; all where there are no more."""
        return self.at(_chosen(len(self), count, seed))

    def at(self, rows: NDArray[np.integer]) -> Questions:
        return replace(
            self,
            tokens_NT=self.tokens_NT[rows],
            labels_NT=self.labels_NT[rows],
            puzzle_ids_N=self.puzzle_ids_N[rows],
            ratings_N=None if self.ratings_N is None else self.ratings_N[rows],
        )

    def fingerprint(self) -> str:
        """sha256 of what a solver sees of them and what it is held to."""
        digest = hashlib.sha256()
        for array in (self.tokens_NT, self.labels_NT, self.puzzle_ids_N):
            digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array, np.int32).tobytes())
        return digest.hexdigest()

    def require_ids(self, num_puzzle_ids: int) -> None:
        """Refuses puzzles of tasks that the puzzle table of a model does not hold."""
        largest = int(self.puzzle_ids_N.max(initial=0))
        if largest >= num_puzzle_ids:
            raise DatasetError(
                f"{self.source} has puzzle ids up to {largest} where the model knows {num_puzzle_ids}; give the data "
                "set it was trained on"
            )


def find_questions(
    source: str, puzzle: Puzzle, *, count: int, data: Path | None = None, num_workers: int = 1, progress: OnProgress
) -> Questions:
    """At most `count` held-out puzzles from a name (sudoku, maze, arc, logistics ...) or the path of a data set or CSV.

    A name makes fresh ones, or takes them from `data` where that is given (ARC tasks cannot be made). Refuses a name
    and a data set of another puzzle than the model's.
    """
    path = Path(source)
    if path.is_file():
        return questions_from_csv(path, puzzle).sample(count)
    if path.exists():
        return questions_from_data(path, puzzle, count)
    family = puzzle.name.partition("-")[0]
    if source not in {family, puzzle.name}:
        raise ValueError(
            f"{source} is no path and not the puzzle of the model, which is {puzzle.name}; give {family} or the path "
            f"of a data set of {puzzle.name}"
        )
    if data is not None:
        return questions_from_data(data, puzzle, count)
    return questions_made(puzzle, count, num_workers=num_workers, progress=progress)


def questions_made(
    puzzle: Puzzle,
    count: int,
    *,
    difficulty: str = MIXED,
    seed: int = SEED,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> Questions:
    """Fresh puzzles, by default of all difficulties that are quick to make; refuses puzzles that are made by people."""
    if not puzzle.difficulties:
        raise ValueError(f"{puzzle.name} puzzles are made by people; give the path of a data set (see hrm-data build).")
    chunks = chunks_of(puzzle.name, difficulty, seed, is_test=True, count=count)
    with TemporaryDirectory() as directory:
        generate_chunks(chunks, Path(directory), num_workers=num_workers, progress=progress)
        parts = [read_chunk(chunk, Path(directory)) for chunk in chunks]
    return Questions(
        tokens_NT=np.concatenate([part.inputs_NT for part in parts]).astype(np.int32),
        labels_NT=np.concatenate([part.labels_NT for part in parts]).astype(np.int32),
        puzzle_ids_N=np.zeros(count, np.int32),
        ratings_N=np.concatenate([part.ratings_N for part in parts]),
        source=f"fresh, {difficulty}, seed {seed}",
    )


def questions_from_data(path: Path, puzzle: Puzzle, count: int | None = None, seed: int = 0) -> Questions:
    """The test split of a data set, or a seeded choice of it; refuses one of another puzzle or of another size."""
    _require_same_puzzle(path, puzzle)
    split = open_split(path, "test")
    found, expected = (split.meta.seq_len, split.meta.vocab_size), (puzzle.seq_len, puzzle.vocab_size)
    if found != expected:
        raise DatasetError(
            f"{path} has {found[0]} positions of {found[1]} tokens where {puzzle.name} has {expected[0]} of "
            f"{expected[1]}; give a data set of {puzzle.name}"
        )
    rows = _chosen(len(split), len(split) if count is None else count, seed)
    return Questions(
        tokens_NT=split.inputs(rows),
        labels_NT=split.labels(rows),
        puzzle_ids_N=split.puzzle_ids_N[rows],
        ratings_N=None if split.ratings_N is None else split.ratings_N[rows],
        source=f"test split of {path.name}",
    )


def questions_from_csv(path: Path, puzzle: Puzzle) -> Questions:
    """All rows of a CSV file with the columns source, question, answer, rating, for puzzles that have this form."""
    rows = read_csv(path, puzzle)
    return Questions(
        tokens_NT=rows.questions_NT.astype(np.int32),
        labels_NT=rows.answers_NT.astype(np.int32),
        puzzle_ids_N=np.zeros(len(rows), np.int32),
        ratings_N=rows.ratings_N,
        source=path.name,
    )


def _chosen(num_rows: int, count: int, seed: int) -> NDArray[np.intp]:
    return np.sort(np.random.default_rng(seed).permutation(num_rows)[:count])


def _require_same_puzzle(path: Path, puzzle: Puzzle) -> None:
    """What the recipe says, where there is one: puzzles of one size can share a vocabulary."""
    recipe = path / RECIPE
    stated = json.loads(recipe.read_text(encoding="utf-8")).get("puzzle") if recipe.exists() else None
    if stated is not None and stated != puzzle.name:
        raise DatasetError(
            f"{path} holds {stated} where the model is for {puzzle.name}; give a data set of {puzzle.name}."
        )
