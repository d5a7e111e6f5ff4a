"""Where training rows come from: a data set, and a fresh symmetry of each row.

What slot b is offered at step s depends only on (seed, s, b). So a resume replays no row, and the
numbers of ranks and threads do not matter. Only slots whose puzzle has halted take their offer.
Shapes: B slots, T tokens.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hrm_puzzles.data.datasets import Split

BLOCK = 32  # slots per generator; blocks are always drawn whole
# Parts of a seed that keep the two kinds of draws apart. 0 is not used: it pads short seeds.
_ORDERS = 1
_ROWS = 2


class Offer(NamedTuple):
    tokens_BT: torch.Tensor
    labels_BT: torch.Tensor
    puzzle_ids_B: torch.Tensor
    explore_draw_B: (
        torch.Tensor
    )  # in [0, 1); decides which rows must run a random number of segments

    def rows(self, part: slice) -> "Offer":
        return Offer(*(tensor[part] for tensor in self))


def _within(
    offsets: NDArray[np.int64], containers_B: NDArray[np.intp], chance_B: NDArray[np.float64]
) -> NDArray[np.intp]:
    """A member of each container; container i holds offsets[i] to offsets[i + 1]."""
    begin_B = offsets[containers_B]
    size_B = offsets[containers_B + 1] - begin_B
    member_B = begin_B + (chance_B * size_B).astype(np.int64)
    return member_B.astype(np.intp)


class Feed:
    """Draws the offers of each step."""

    def __init__(self, source: Split, *, seed: int, augment: bool) -> None:
        self.source = source
        self.puzzle = source.puzzle
        self.seed = seed
        self.augment = augment

        @lru_cache(maxsize=4)
        def order(epoch: int) -> NDArray[np.intp]:
            rng = np.random.default_rng((seed, epoch, 0, _ORDERS))
            return rng.permutation(source.num_groups)

        self._order = order

    def draw(self, step: int, slots: range, batch_size: int) -> Offer:
        """Draws offers for `slots` of a global batch."""
        first_block = slots.start // BLOCK
        last_block = -(-slots.stop // BLOCK)
        blocks = range(first_block, last_block)
        parts = [self._block(step, block, batch_size) for block in blocks]
        arrays = [np.concatenate(part) for part in zip(*parts, strict=True)]
        whole = Offer(*map(torch.from_numpy, arrays))
        skip = slots.start % BLOCK
        return whole.rows(slice(skip, skip + len(slots)))

    def _block(self, step: int, block: int, batch_size: int) -> tuple[NDArray[Any], ...]:
        rng = np.random.default_rng((self.seed, step, block, _ROWS))
        chance_B4 = rng.random((BLOCK, 4))  # older versions used the third; it keeps their draws
        groups_B = self._groups(step * batch_size + block * BLOCK)
        puzzles_B = _within(self.source.group_offsets, groups_B, chance_B4[:, 0])
        rows_B = _within(self.source.puzzle_offsets, puzzles_B, chance_B4[:, 1])
        tokens_BT, labels_BT, ids_B = self.source.rows(rows_B)
        if self.augment:
            tokens_BT, labels_BT = self.puzzle.augment_BT(rng, tokens_BT, labels_BT)
        integers = [values.astype(np.int32) for values in (tokens_BT, labels_BT, ids_B)]
        return *integers, chance_B4[:, 3].astype(np.float32)

    def _groups(self, first_draw: int) -> NDArray[np.intp]:
        """The groups of a block. As published, each epoch visits every group in a new order."""
        draws_B = first_draw + np.arange(BLOCK)
        epoch_B, place_B = np.divmod(draws_B, self.source.num_groups)
        places = zip(epoch_B.tolist(), place_B, strict=True)
        return np.array([self._order(epoch)[place] for epoch, place in places])


@dataclass(kw_only=True)
class Progress:
    """How far a run is, as JSON values."""

    step: int = 0
    samples: int = 0


class Prefetcher:
    """Draws the offers of `slots` `depth` steps early, on `workers` threads (0: on demand).

    `pins` puts them into pinned memory, from which a GPU copies beside its work.
    """

    def __init__(
        self, feed: Feed, slots: range, batch_size: int, *, workers: int, depth: int, pins: bool
    ) -> None:
        self._feed = feed
        self._slots = slots
        self._batch_size = batch_size
        self._depth = depth
        self._pins = pins
        self._pool = None
        if workers and depth:
            self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rows")
        self._begun: dict[int, Future[Offer]] = {}

    def _draw(self, step: int) -> Offer:
        offer = self._feed.draw(step, self._slots, self._batch_size)
        if not self._pins:
            return offer
        return Offer(*(tensor.pin_memory() for tensor in offer))

    def at(self, step: int) -> Offer:
        if self._pool is None:
            return self._draw(step)
        for passed in [begun for begun in self._begun if begun < step]:
            del self._begun[passed]
        for coming in range(step, step + self._depth + 1):
            if coming not in self._begun:
                self._begun[coming] = self._pool.submit(self._draw, coming)
        return self._begun.pop(step).result()

    def forget(self) -> None:
        self._begun.clear()
