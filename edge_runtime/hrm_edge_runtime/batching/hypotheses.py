"""Hypotheses: an attempt treats one undecided cell as given for a while, while its carry stays. Read `next_T`.

A model that deduces leaves undecided what does not follow. Given one of a cell's two likeliest symbols it deduces on;
what comes of it is judged against the question as it was asked. Shapes: T tokens, V vocabulary, C cells, S symbols.
"""

from dataclasses import dataclass, field

import numpy as np

from hrm_edge_runtime.contract.arrays import Float32, Int32

START = 16  # segments that an attempt runs plain first
PERIOD = 8  # segments that a hypothesis lasts
NUM_CELLS = 3  # drawn from: those that waver most between two symbols


def is_due(segment: int) -> bool:
    return segment >= START and (segment - START) % PERIOD == 0


def segments_to_next(segment: int) -> int:
    """How many segments after this one another hypothesis begins; never 0."""
    return max(START - segment, PERIOD - (segment - START) % PERIOD)


@dataclass(kw_only=True, eq=False)
class Hypotheses:
    """Those of one attempt, seeded; the last `num_symbols` tokens are what a cell can be given."""

    question_T: Int32
    num_symbols: int
    rng: np.random.Generator
    num_tried: int = field(default=0, init=False)
    _second: tuple[int, int] | None = field(default=None, init=False)

    def next_T(self, logits_TV: Float32) -> Int32:
        """The question with a drawn cell's likeliest symbol as given, and a period later with its second instead."""
        tokens_T, first = self.question_T.copy(), logits_TV.shape[1] - self.num_symbols
        open_C = np.flatnonzero(tokens_T < first)
        if not len(open_C):
            return tokens_T
        if self._second is None:
            place, token, other = self._drawn(logits_TV[open_C, first:])
            cell, token, other = int(open_C[place]), first + token, first + other
            self._second = cell, other
        else:
            (cell, token), self._second = self._second, None
        tokens_T[cell] = token
        self.num_tried += 1
        return tokens_T

    def _drawn(self, logits_CS: Float32) -> list[int]:
        """A cell that wavers between two symbols, and both."""
        finite_CS = np.nan_to_num(logits_CS).astype(np.float64)
        order_CS = finite_CS.argsort(axis=1)
        share_CS = np.exp(finite_CS - finite_CS.max(axis=1, keepdims=True))
        best_C2 = np.take_along_axis(share_CS / share_CS.sum(axis=1, keepdims=True), order_CS[:, -2:], axis=1)
        place = self.rng.choice(best_C2.prod(axis=1).argsort()[-NUM_CELLS:])
        return [int(place), *order_CS[place, :-3:-1].tolist()]
