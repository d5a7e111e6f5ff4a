"""Held-out puzzles with their labels, from a data set or a CSV file.

Shapes: N puzzles, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.csv_rows import read_csv
from hrm_puzzles.datasets import DatasetError, open_split
from hrm_puzzles.puzzle import Puzzle


@dataclass(frozen=True, kw_only=True, eq=False)
class Questions:
    """Tokens, labels (negative where any answer will do), puzzle ids, and ratings where the source has them."""

    tokens_NT: NDArray[np.int32]
    labels_NT: NDArray[np.int32]
    puzzle_ids_N: NDArray[np.int32]
    ratings_N: NDArray[np.int32] | None

    def __len__(self) -> int:
        return len(self.tokens_NT)

    def sample(self, count: int, seed: int = 0) -> Questions:
        """A seeded choice of `count`, in the order of the source; all where there are no more."""
        chosen = np.sort(np.random.default_rng(seed).permutation(len(self))[:count])
        return Questions(
            tokens_NT=self.tokens_NT[chosen],
            labels_NT=self.labels_NT[chosen],
            puzzle_ids_N=self.puzzle_ids_N[chosen],
            ratings_N=None if self.ratings_N is None else self.ratings_N[chosen],
        )


def questions_from_data(path: Path, puzzle: Puzzle) -> Questions:
    """The test split of a data set; refuses one of another size than the puzzle."""
    split = open_split(path, "test")
    found, expected = (split.meta.seq_len, split.meta.vocab_size), (puzzle.seq_len, puzzle.vocab_size)
    if found != expected:
        raise DatasetError(
            f"{path} has {found[0]} positions of {found[1]} tokens where {puzzle.name} has {expected[0]} of "
            f"{expected[1]}; give a data set of {puzzle.name}"
        )
    everything = slice(None)
    return Questions(
        tokens_NT=split.inputs(everything),
        labels_NT=split.labels(everything),
        puzzle_ids_N=split.puzzle_ids_N,
        ratings_N=split.ratings_N,
    )


def questions_from_csv(path: Path, puzzle: Puzzle) -> Questions:
    """All rows of a CSV file with the columns source, question, answer, rating, for puzzles that have this form."""
    rows = read_csv(path, puzzle)
    return Questions(
        tokens_NT=rows.questions_NT.astype(np.int32),
        labels_NT=rows.answers_NT.astype(np.int32),
        puzzle_ids_N=np.zeros(len(rows), np.int32),
        ratings_N=rows.ratings_N,
    )
