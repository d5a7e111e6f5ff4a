"""A data set on disk as a source of training rows and of a fixed validation subset."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.data import datasets
from hrm_puzzles.puzzle import Puzzle
from hrm_train.batches import Rows


class SplitSource:
    """One split of the published layout, read row by row from its memory map."""

    def __init__(self, path: Path, split: datasets.Split, puzzle: Puzzle) -> None:
        self.path, self.puzzle, self._split = path, puzzle, split

    def __len__(self) -> int:
        return len(self._split)

    @property
    def num_groups(self) -> int:
        return len(self._split.group_offsets) - 1

    @property
    def num_puzzle_ids(self) -> int:
        return self._split.meta.num_puzzle_identifiers

    def identifiers(self) -> tuple[str, ...]:
        """The name of every puzzle id."""
        return tuple(json.loads((self.path / "identifiers.json").read_text(encoding="utf-8")))

    def pick(self, groups_B: NDArray[np.intp], chance_B2: NDArray[np.float64]) -> NDArray[np.intp]:
        puzzles_B = _within(self._split.group_offsets, groups_B, chance_B2[:, 0])
        return _within(self._split.puzzle_offsets, puzzles_B, chance_B2[:, 1])

    def rows(self, indices_B: NDArray[np.intp]) -> Rows:
        split = self._split
        return Rows(split.inputs(indices_B), split.labels(indices_B), split.puzzle_ids_N[indices_B].astype(np.int32))


def _within(
    offsets: NDArray[np.int64], containers_B: NDArray[np.intp], chance_B: NDArray[np.float64]
) -> NDArray[np.intp]:
    """A member of each container, which begins at its offset and ends at the next."""
    begin_B, end_B = offsets[containers_B], offsets[containers_B + 1]
    return (begin_B + (chance_B * (end_B - begin_B)).astype(np.int64)).astype(np.intp)


def open_source(path: Path, split: str, puzzle: Puzzle) -> SplitSource:
    """Refuses a data set whose sizes are not the puzzle's, and groups that hold nothing."""
    opened = datasets.open_split(path, split)
    found = (opened.meta.vocab_size, opened.meta.seq_len)
    if found != (puzzle.vocab_size, puzzle.seq_len):
        raise datasets.DatasetError(
            f"{path} holds {found[0]} tokens at {found[1]} positions, but {puzzle.name} has {puzzle.vocab_size} at "
            f"{puzzle.seq_len}; choose another --data or --puzzle"
        )
    for name, offsets in (("group", opened.group_offsets), ("puzzle", opened.puzzle_offsets)):
        if not np.diff(offsets).all():
            raise datasets.DatasetError(f"{path / split} has a {name} without content; build the data set again")
    return SplitSource(path, opened, puzzle)


def validation_rows(source: SplitSource, num_rows: int, seed: int) -> Rows:
    """The same seeded subset at every validation of a run."""
    order = np.random.default_rng((seed, 1)).permutation(len(source))
    return source.rows(np.sort(order[:num_rows]))
