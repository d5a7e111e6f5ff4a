"""Held-out puzzles with their labels: from a data set, from a CSV file, or freshly generated.

Fresh puzzles and the test split of a data set hold no puzzle of a training split; a CSV file may hold anything.
Shapes: N puzzles, T tokens.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.datasets import DatasetError, named_in_recipe, open_split
from hrm_puzzles.data.sources import MIXED, Examples, chunks_of, generated, read_csv
from hrm_puzzles.puzzle import Puzzle

SEED = 20_017
"""Of fresh puzzles; whatever the seed, they are of classes that no training split holds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOutPuzzle:
    """One puzzle with its label (negative where any answer will do); `index` is its place in the collection."""

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

    def __getitem__(self, index: int) -> HeldOutPuzzle:
        tokens_T, labels_T, puzzle_id = self.tokens_NT[index], self.labels_NT[index], int(self.puzzle_ids_N[index])
        return HeldOutPuzzle(index=index, tokens_T=tokens_T, labels_T=labels_T, puzzle_id=puzzle_id)

    def __iter__(self) -> Iterator[HeldOutPuzzle]:
        return (self[index] for index in range(len(self)))

    def sample(self, count: int, seed: int = 0) -> "Questions":
        """A seeded choice of at most `count`, in the order of the source."""
        return self.at(_chosen(len(self), count, seed))

    def at(self, rows: NDArray[np.integer]) -> "Questions":
        return replace(
            self,
            tokens_NT=self.tokens_NT[rows],
            labels_NT=self.labels_NT[rows],
            puzzle_ids_N=self.puzzle_ids_N[rows],
            ratings_N=None if self.ratings_N is None else self.ratings_N[rows],
        )

    def fingerprint(self) -> str:
        """sha256 of tokens, labels and puzzle ids."""
        digest = hashlib.sha256()
        for array in (self.tokens_NT, self.labels_NT, self.puzzle_ids_N):
            digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array, np.int32).tobytes())
        return digest.hexdigest()

    def require_ids(self, num_puzzle_ids: int) -> None:
        """Refuse puzzles of tasks that the puzzle table of a model does not hold."""
        largest = int(self.puzzle_ids_N.max(initial=0))
        if largest >= num_puzzle_ids:
            problem = f"{self.source} has puzzle ids up to {largest} where the model knows {num_puzzle_ids}"
            raise DatasetError(f"{problem}; give the data set it was trained on")


def find_questions(
    source: str, puzzle: Puzzle, *, count: int, data: Path | None = None, num_workers: int = 1, progress: OnProgress
) -> Questions:
    """At most `count` held-out puzzles from a name (sudoku, maze, arc, logistics ...) or the path of a data set or CSV.

    A name generates fresh ones, or takes them from `data` if that is given (ARC tasks cannot be generated). Refuses a
    name and a data set of another puzzle than the model's.
    """
    path = Path(source)
    if path.is_file():
        return questions_from_csv(path, puzzle).sample(count)
    if path.exists():
        return questions_from_data(path, puzzle, count)
    family = puzzle.name.partition("-")[0]
    if source not in {family, puzzle.name}:
        problem = f"{source} is no path and not the puzzle of the model, which is {puzzle.name}"
        raise ValueError(f"{problem}; give {family} or the path of a data set of {puzzle.name}")
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
    """Fresh puzzles, by default of all quick difficulties; refuses puzzles that are made by people."""
    if not puzzle.difficulties:
        raise ValueError(f"{puzzle.name} puzzles are made by people; give the path of a data set (see hrm-data build).")
    chunks = chunks_of(puzzle.name, difficulty, seed, is_test=True, count=count)
    with TemporaryDirectory() as directory:
        parts = generated(chunks, Path(directory), num_workers=num_workers, progress=progress)
    return _from_examples(np.concatenate(parts), f"fresh, {difficulty}, seed {seed}")


def questions_from_data(path: Path, puzzle: Puzzle, count: int | None = None, seed: int = 0) -> Questions:
    """The test split of a data set, or a seeded choice of it; refuses one of another puzzle or of another size."""
    stated = named_in_recipe(path)  # puzzles of one size can share a vocabulary
    if stated and stated != puzzle.name:
        remedy = f"give a data set of {puzzle.name}"
        raise DatasetError(f"{path} holds {stated} where the model is for {puzzle.name}; {remedy}.")
    split = open_split(path, "test")
    if split.meta.sizes != (puzzle.vocab_size, puzzle.seq_len):
        found = f"{path} has {split.meta.seq_len} positions of {split.meta.vocab_size} tokens"
        expected = f"{puzzle.name} has {puzzle.seq_len} of {puzzle.vocab_size}"
        raise DatasetError(f"{found} where {expected}; give a data set of {puzzle.name}")
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
    return _from_examples(read_csv(path, puzzle), path.name)


def _from_examples(examples: Examples, source: str) -> Questions:
    return Questions(
        tokens_NT=examples["inputs"].astype(np.int32),
        labels_NT=examples["labels"].astype(np.int32),
        puzzle_ids_N=np.zeros(len(examples), np.int32),
        ratings_N=examples["rating"],
        source=source,
    )


def _chosen(num_rows: int, count: int, seed: int) -> NDArray[np.intp]:
    return np.sort(np.random.default_rng(seed).permutation(num_rows)[:count])
