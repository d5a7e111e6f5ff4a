"""Where training rows come from: a data set, a fresh symmetry and a number of revealed cells for each.

What slot b is offered at step s is a function of (seed, s, b) alone, so that no row is replayed on resume and the
numbers of ranks and threads do not matter. Only slots whose puzzle has halted take it. Shapes: B slots, T tokens.
"""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.data import datasets
from hrm_puzzles.puzzle import Puzzle

Int32Array = NDArray[np.int32]
BLOCK = 32  # slots drawn by one generator: whole blocks are drawn, whichever slots of them are asked for
_ORDERS, _ROWS = 1, 2  # keep the two kinds of draws apart; not 0, which a seed of fewer numbers is padded with


class Batch(NamedTuple):
    tokens_BT: Int32Array
    labels_BT: Int32Array
    puzzle_ids_B: Int32Array


class Offer(NamedTuple):
    """Rows for slots; `explore_draw_B` in [0, 1) decides which of them must think for a random number of segments."""

    tokens_BT: Int32Array
    labels_BT: Int32Array
    puzzle_ids_B: Int32Array
    explore_draw_B: NDArray[np.float32]


class Source(Protocol):
    """Examples in groups: a group is an original puzzle, its members are variants of it (a data set split)."""

    @property
    def num_groups(self) -> int: ...

    def pick(self, groups_B: NDArray[np.intp], chance_B2: NDArray[np.float64]) -> NDArray[np.intp]:
        """An example of each group: chances in [0, 1) choose the variant, then its example."""
        ...

    def rows(self, indices_B: NDArray[np.intp]) -> Batch: ...


class Feed:
    """Draws what any slots are offered at any step."""

    def __init__(self, source: Source, puzzle: Puzzle, *, seed: int, augment: bool) -> None:
        self.source, self.puzzle, self.seed, self.augment = source, puzzle, seed, augment

        @lru_cache(maxsize=4)
        def order(epoch: int) -> NDArray[np.intp]:
            return np.random.default_rng((seed, epoch, 0, _ORDERS)).permutation(source.num_groups)

        self._order = order

    def draw(self, step: int, slots: range, batch_size: int, num_revealed: int) -> Offer:
        """Offers to `slots` of a global batch, each row with up to `num_revealed` of its open cells filled in."""
        blocks = range(slots.start // BLOCK, -(-slots.stop // BLOCK))
        parts = [self._block(step, block, batch_size, num_revealed) for block in blocks]
        skip = slots.start % BLOCK
        return Offer(*(np.concatenate(arrays)[skip : skip + len(slots)] for arrays in zip(*parts, strict=True)))

    def _block(self, step: int, block: int, batch_size: int, num_revealed: int) -> Offer:
        rng = np.random.default_rng((self.seed, step, block, _ROWS))
        chance_B4 = rng.random((BLOCK, 4))
        # as published, each epoch visits every group once, in an order of its own
        draws_B = step * batch_size + block * BLOCK + np.arange(BLOCK)
        epoch_B, place_B = np.divmod(draws_B, self.source.num_groups)
        groups_B = np.array([self._order(epoch)[place] for epoch, place in zip(epoch_B.tolist(), place_B, strict=True)])
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


class Curriculum:
    """Reveals fewer cells while the share of solved puzzles is above the target.

    Counts are taken in every INTERVAL steps and change the level one interval later, so that rows can be drawn ahead.
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
        """Takes in the puzzles that halted in one interval."""
        self.level = self.upcoming
        if not num_finished or not self.level:
            return
        memory = self.MEMORY**self.INTERVAL
        self.solved_share = memory * self.solved_share + (1 - memory) * num_solved / num_finished
        if self.solved_share > self.target:
            self.upcoming = max(0.0, self.level - self.FALL * num_finished / 8)


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
        return tuple(json.loads((self.path / "identifiers.json").read_text(encoding="utf-8")))

    def pick(self, groups_B: NDArray[np.intp], chance_B2: NDArray[np.float64]) -> NDArray[np.intp]:
        puzzles_B = _within(self._split.group_offsets, groups_B, chance_B2[:, 0])
        return _within(self._split.puzzle_offsets, puzzles_B, chance_B2[:, 1])

    def rows(self, indices_B: NDArray[np.intp]) -> Batch:
        split = self._split
        return Batch(split.inputs(indices_B), split.labels(indices_B), split.puzzle_ids_N[indices_B].astype(np.int32))


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


def validation_rows(source: SplitSource, num_rows: int, seed: int) -> Batch:
    """The same seeded subset at every validation of a run."""
    order = np.random.default_rng((seed, 1)).permutation(len(source))
    return source.rows(np.sort(order[:num_rows]))


T = TypeVar("T")


class Prefetcher(Generic[T]):
    """`at(step)` is `draw(step, setting(step))`, begun `depth` steps early on `workers` threads (0: on demand)."""

    def __init__(
        self, draw: Callable[[int, int], T], setting: Callable[[int], int], *, workers: int, depth: int
    ) -> None:
        self._draw, self._setting, self._depth = draw, setting, depth
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rows") if workers and depth else None
        self._begun: dict[int, Future[T]] = {}

    def at(self, step: int) -> T:
        if self._pool is None:
            return self._draw(step, self._setting(step))
        self._begun = {begun: future for begun, future in self._begun.items() if begun >= step}
        for coming in range(step, step + self._depth + 1):
            if coming not in self._begun:
                self._begun[coming] = self._pool.submit(self._draw, coming, self._setting(coming))
        return self._begun.pop(step).result()

    def forget(self) -> None:
        self._begun.clear()
