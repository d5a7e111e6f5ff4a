"""Where training rows come from: a data set, a fresh symmetry and a number of revealed cells for each.

What slot b is offered at step s is a function of (seed, s, b) alone: no row is replayed on resume, and neither the
number of ranks nor of threads matters. Only slots whose puzzle has halted take their offer; the others' are dropped.
Shapes: B slots, T tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import Puzzle

Int32Array = NDArray[np.int32]
BLOCK = 32
"""Slots drawn by one generator: whole blocks are drawn, whichever slots of them are asked for."""
_ORDERS, _ROWS = 1, 2  # keep the two kinds of draws apart; not 0, which a seed of fewer numbers is padded with


class Rows(NamedTuple):
    tokens_BT: Int32Array
    labels_BT: Int32Array
    puzzle_ids_B: Int32Array


class Offer(NamedTuple):
    """Rows for slots; `patience_B` in [0, 1) decides which of them must think for a random number of segments."""

    tokens_BT: Int32Array
    labels_BT: Int32Array
    puzzle_ids_B: Int32Array
    patience_B: NDArray[np.float32]


class Source(Protocol):
    """Examples in groups: a group is an original puzzle, its members are variants of it (a data set split)."""

    @property
    def num_groups(self) -> int: ...

    def pick(self, groups_B: NDArray[np.intp], chance_B2: NDArray[np.float64]) -> NDArray[np.intp]:
        """An example of each group: chances in [0, 1) choose the variant, then its example."""
        ...

    def rows(self, indices_B: NDArray[np.intp]) -> Rows: ...


class Feed:
    """Draws what any slots are offered at any step."""

    def __init__(self, source: Source, puzzle: Puzzle, *, seed: int, augment: bool) -> None:
        self.source, self.puzzle, self.seed, self.augment = source, puzzle, seed, augment
        self._order = lru_cache(maxsize=4)(self._shuffled)

    def draw(self, step: int, slots: range, batch_size: int, num_revealed: int) -> Offer:
        """Offers to `slots` of a global batch, each row with up to `num_revealed` of its open cells filled in."""
        blocks = range(slots.start // BLOCK, -(-slots.stop // BLOCK))
        parts = [self._block(step, block, batch_size, num_revealed) for block in blocks]
        skip = slots.start % BLOCK
        return Offer(*(np.concatenate(arrays)[skip : skip + len(slots)] for arrays in zip(*parts, strict=True)))

    def _block(self, step: int, block: int, batch_size: int, num_revealed: int) -> Offer:
        rng = np.random.default_rng((self.seed, step, block, _ROWS))
        chance_B4 = rng.random((BLOCK, 4))
        groups_B = self._groups(step * batch_size + block * BLOCK + np.arange(BLOCK))
        tokens_BT, labels_BT, ids_B = self.source.rows(self.source.pick(groups_B, chance_B4[:, :2]))
        if self.augment:
            tokens_BT, labels_BT = self.puzzle.augment_BT(rng, tokens_BT, labels_BT)
        if num_revealed:
            revealed_B = (chance_B4[:, 2] * (num_revealed + 1)).astype(np.int64)
            tokens_BT = self.puzzle.reveal_BT(rng, tokens_BT, labels_BT, revealed_B)
        return Offer(
            tokens_BT.astype(np.int32),
            labels_BT.astype(np.int32),
            ids_B.astype(np.int32),
            chance_B4[:, 3].astype(np.float32),
        )

    def _groups(self, draws_B: NDArray[np.int64]) -> NDArray[np.intp]:
        """As published, each epoch visits every group once, in an order of its own."""
        epoch_B, place_B = np.divmod(draws_B, self.source.num_groups)
        return np.array([self._order(epoch)[place] for epoch, place in zip(epoch_B.tolist(), place_B, strict=True)])

    def _shuffled(self, epoch: int) -> NDArray[np.intp]:
        return np.random.default_rng((self.seed, epoch, 0, _ORDERS)).permutation(self.source.num_groups)


class Curriculum:
    """Reveals fewer cells while puzzles are being solved: the level falls when the solved share passes the target.

    Counts are taken in every INTERVAL steps and change the level one interval later, so that rows can be drawn ahead
    and a device is rarely asked.
    """

    INTERVAL = 16
    FALL = 0.02
    MEMORY = 0.98

    def __init__(self, level: float, target: float) -> None:
        self.level, self.upcoming, self.target, self.solved_share = level, level, target, 0.0

    def restore(self, level: float, upcoming: float, solved_share: float) -> None:
        self.level, self.upcoming, self.solved_share = level, upcoming, solved_share

    def num_revealed(self, step: int, *, now: int) -> int:
        """The level at a step of this interval or the next, as known at step `now`."""
        return round(self.level if step // self.INTERVAL <= now // self.INTERVAL else self.upcoming)

    def see(self, num_solved: int, num_finished: int) -> None:
        """Takes in the puzzles that halted in one interval, and lets the next begin."""
        self.level = self.upcoming
        if not num_finished or not self.level:
            return
        memory = self.MEMORY**self.INTERVAL
        self.solved_share = memory * self.solved_share + (1 - memory) * num_solved / num_finished
        if self.solved_share > self.target:
            self.upcoming = max(0.0, self.level - self.FALL * num_finished / 8)
