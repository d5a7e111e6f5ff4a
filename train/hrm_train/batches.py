"""Where training rows come from: a data set, a fresh symmetry and a number of revealed cells for each.

What slot b is offered at step s is a function of (seed, s, b) alone, so that no row is replayed on resume and the
numbers of ranks and threads do not matter. Only slots whose puzzle has halted take it. Shapes: B slots, T tokens.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_host.reading import json_from, text_of
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
    tokens_BT: torch.Tensor
    labels_BT: torch.Tensor
    puzzle_ids_B: torch.Tensor
    explore_draw_B: torch.Tensor  # in [0, 1), decides which rows must think for a random number of segments

    def rows(self, part: slice) -> "Offer":
        return Offer(*(tensor[part] for tensor in self))


class SplitSource:
    """One split of the published layout, read row by row; a group is an original puzzle, its members its variants."""

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
        file = self.path / "identifiers.json"
        try:
            return tuple(json_from(text_of(file)))
        except (OSError, ValueError, TypeError) as error:
            raise datasets.DatasetError(f"{file} cannot be read ({error}); build the data set again.") from error

    def pick(self, groups_B: NDArray[np.intp], chance_B2: NDArray[np.float64]) -> NDArray[np.intp]:
        """An example of each group: chances in [0, 1) choose the variant, then its example."""
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


class Feed:
    def __init__(self, source: SplitSource, puzzle: Puzzle, *, seed: int, augment: bool) -> None:
        self.source, self.puzzle, self.seed, self.augment = source, puzzle, seed, augment

        @lru_cache(maxsize=4)
        def order(epoch: int) -> NDArray[np.intp]:
            return np.random.default_rng((seed, epoch, 0, _ORDERS)).permutation(source.num_groups)

        self._order = order

    def draw(self, step: int, slots: range, batch_size: int, num_revealed: int) -> Offer:
        """Offers to `slots` of a global batch, each row with up to `num_revealed` of its open cells filled in."""
        blocks = range(slots.start // BLOCK, -(-slots.stop // BLOCK))
        parts = [self._block(step, block, batch_size, num_revealed) for block in blocks]
        whole = Offer(*(torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parts, strict=True)))
        skip = slots.start % BLOCK
        return whole.rows(slice(skip, skip + len(slots)))

    def _block(self, step: int, block: int, batch_size: int, num_revealed: int) -> tuple[NDArray[Any], ...]:
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
        integers = (values.astype(np.int32) for values in (tokens_BT, labels_BT, ids_B))
        return *integers, chance_B4[:, 3].astype(np.float32)


INTERVAL, FALL, MEMORY = 16, 0.02, 0.98  # of the curriculum: steps, cells for eight puzzles, of the share per step


@dataclass(kw_only=True)
class Progress:
    """How far a run and its curriculum are; JSON-ready. `counted_*` are the puzzles not taken in yet.

    Fewer cells are revealed while the share of solved puzzles is above the target. Counts are taken in every INTERVAL
    steps and change the level one interval later, so that rows can be drawn ahead.
    """

    step: int = 0
    samples: int = 0
    curriculum_level: float = 0.0
    curriculum_upcoming: float = 0.0
    solved_share: float = 0.0
    counted_solved: int = 0
    counted_finished: int = 0

    def num_revealed(self, step: int) -> int:
        """The level at a step of this interval or the next."""
        is_near = step // INTERVAL <= self.step // INTERVAL
        return round(self.curriculum_level if is_near else self.curriculum_upcoming)

    def take_in(self, num_solved: float, num_finished: float, target: float) -> None:
        self.curriculum_level = self.curriculum_upcoming
        if not num_finished or not self.curriculum_level:
            return
        memory = MEMORY**INTERVAL
        self.solved_share = memory * self.solved_share + (1 - memory) * num_solved / num_finished
        if self.solved_share > target:
            self.curriculum_upcoming = max(0.0, self.curriculum_level - FALL * num_finished / 8)


class Prefetcher:
    """`at` is `draw(step, setting(step))`, begun `depth` steps early on `workers` threads (0: on demand)."""

    def __init__(self, draw: Callable[[int, int], Offer], *, workers: int, depth: int) -> None:
        self._draw, self._depth = draw, depth
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rows") if workers and depth else None
        self._begun: dict[int, Future[Offer]] = {}

    def at(self, step: int, setting: Callable[[int], int]) -> Offer:
        if self._pool is None:
            return self._draw(step, setting(step))
        self._begun = {begun: future for begun, future in self._begun.items() if begun >= step}
        for coming in range(step, step + self._depth + 1):
            if coming not in self._begun:
                self._begun[coming] = self._pool.submit(self._draw, coming, setting(coming))
        return self._begun.pop(step).result()

    def forget(self) -> None:
        self._begun.clear()
