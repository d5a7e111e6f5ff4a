"""A data set on disk as a source of training rows and of a fixed validation subset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles import datasets
from hrm_puzzles.puzzle import Puzzle
from hrm_train.batches import Rows


class SplitSource:
    """One split of the published layout, read row by row from its memory map."""

    def __init__(self, split: datasets.Split) -> None:
        self._split = split

    def __len__(self) -> int:
        return len(self._split)

    def rows(self, indices_B: NDArray[np.intp]) -> Rows:
        split = self._split
        return Rows(split.inputs(indices_B), split.labels(indices_B), split.puzzle_ids_N[indices_B].astype(np.int32))


def open_source(path: Path, split: str, puzzle: Puzzle) -> SplitSource:
    """Refuses a data set whose sizes are not the puzzle's."""
    opened = datasets.open_split(path, split)
    found = (opened.meta.vocab_size, opened.meta.seq_len)
    if found != (puzzle.vocab_size, puzzle.seq_len):
        raise datasets.DatasetError(
            f"{path} holds {found[0]} tokens at {found[1]} positions, but {puzzle.name} has {puzzle.vocab_size} at "
            f"{puzzle.seq_len}; choose another --data or --puzzle"
        )
    return SplitSource(opened)


def validation_rows(source: SplitSource, num_rows: int, seed: int) -> Rows:
    """The same seeded subset at every validation of a run."""
    order = np.random.default_rng((seed, 1)).permutation(len(source))
    return source.rows(np.sort(order[:num_rows]))
