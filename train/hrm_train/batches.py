"""Where training rows come from: a data set, a fresh symmetry and a number of revealed cells for each.

What is drawn is a pure function of (seed, step), so a resumed run sees the same rows without replaying any.
Shapes: B rows drawn, T tokens.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import Puzzle

Int32Array = NDArray[np.int32]


class Rows(NamedTuple):
    tokens_BT: Int32Array
    labels_BT: Int32Array
    puzzle_ids_B: Int32Array


class Source(Protocol):
    """Anything rows can be taken from by index (a data set split)."""

    def __len__(self) -> int: ...
    def rows(self, indices_B: NDArray[np.intp]) -> Rows: ...


def generator_at(seed: int, step: int, purpose: int) -> np.random.Generator:
    """The random generator of one step; `purpose` keeps draws for different ends independent."""
    return np.random.default_rng((seed, step, purpose))


class Feed:
    """Draws training rows for any step."""

    def __init__(self, source: Source, puzzle: Puzzle, *, seed: int, augment: bool) -> None:
        self.source, self.puzzle, self.seed, self.augment = source, puzzle, seed, augment

    def draw(self, step: int, num_rows: int, num_revealed: int) -> Rows:
        """`num_rows` rows for `step`, each with up to `num_revealed` of its open cells filled in."""
        rng = generator_at(self.seed, step, purpose=0)
        tokens_BT, labels_BT, ids_B = self.source.rows(rng.integers(len(self.source), size=num_rows))
        if self.augment:
            tokens_BT, labels_BT = self.puzzle.augment_BT(rng, tokens_BT, labels_BT)
        if num_revealed:
            revealed_B = rng.integers(num_revealed + 1, size=num_rows)
            tokens_BT = self.puzzle.reveal_BT(rng, tokens_BT, labels_BT, revealed_B)
        return Rows(tokens_BT.astype(np.int32), labels_BT.astype(np.int32), ids_B.astype(np.int32))


class Curriculum:
    """Reveals fewer cells while puzzles are being solved: the level falls when the solved share passes the target."""

    FALL = 0.02
    MEMORY = 0.98

    def __init__(self, level: float, target: float) -> None:
        self.level, self.target, self.solved_share = level, target, 0.0

    @property
    def num_revealed(self) -> int:
        return round(self.level)

    def see(self, num_solved: int, num_finished: int) -> None:
        """Takes in the puzzles that halted in one step."""
        if not num_finished or not self.level:
            return
        share = num_solved / num_finished
        self.solved_share = self.MEMORY * self.solved_share + (1 - self.MEMORY) * share
        if self.solved_share > self.target:
            self.level = max(0.0, self.level - self.FALL * num_finished / 8)
