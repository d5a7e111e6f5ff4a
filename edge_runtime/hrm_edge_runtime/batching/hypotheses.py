"""Hypotheses: an attempt takes an undecided cell as given for a while. Read `next_T`.

The carry stays. A model that deduces leaves a cell undecided if its symbol does not follow. Given
one of the cell's two likeliest symbols, it deduces further. The answer is still judged against the
original question. Shapes: T tokens, V vocabulary, C open cells, S symbols.
"""

from dataclasses import dataclass, field

import numpy as np

from hrm_edge_runtime.engines.engine import Float32, Int32

START = 16  # segments without a hypothesis at the start of an attempt
PERIOD = 8  # segments that a hypothesis lasts
NUM_CELLS = 3  # number of most undecided cells among which a hypothesis draws


def is_due(segment: int) -> bool:
    """Whether a hypothesis begins after this segment."""
    return segment >= START and (segment - START) % PERIOD == 0


def segments_to_next(segment: int) -> int:
    """Number of segments after this one until a hypothesis begins; never 0."""
    left_of_period = PERIOD - (segment - START) % PERIOD
    return max(START - segment, left_of_period)


@dataclass(kw_only=True, eq=False)
class Hypotheses:
    """The seeded hypotheses of one attempt.

    The last `num_symbols` tokens of the vocabulary are the symbols that a cell can take.
    """

    question_T: Int32
    num_symbols: int
    rng: np.random.Generator
    num_tried: int = field(default=0, init=False)
    _second: tuple[int, int] | None = field(default=None, init=False)

    def next_T(self, logits_TV: Float32) -> Int32:
        """The question with one more given: a cell's likeliest symbol, then its second."""
        tokens_T = self.question_T.copy()
        first_symbol = logits_TV.shape[1] - self.num_symbols
        open_C = np.flatnonzero(tokens_T < first_symbol)
        if not len(open_C):
            return tokens_T
        if self._second is None:
            cell_index, best, second = self._draw(logits_TV[open_C, first_symbol:])
            cell = int(open_C[cell_index])
            token = first_symbol + best
            self._second = (cell, first_symbol + second)
        else:
            cell, token = self._second
            self._second = None
        tokens_T[cell] = token
        self.num_tried += 1
        return tokens_T

    def _draw(self, logits_CS: Float32) -> tuple[int, int, int]:
        """Draw a cell that wavers between two symbols; returns its index and both symbols."""
        finite_CS = np.nan_to_num(logits_CS).astype(np.float64)
        order_CS = finite_CS.argsort(axis=1)
        share_CS = np.exp(finite_CS - finite_CS.max(axis=1, keepdims=True))
        share_CS = share_CS / share_CS.sum(axis=1, keepdims=True)
        best_C2 = np.take_along_axis(share_CS, order_CS[:, -2:], axis=1)
        most_wavering = best_C2.prod(axis=1).argsort()[-NUM_CELLS:]
        cell = int(self.rng.choice(most_wavering))
        return cell, int(order_CS[cell, -1]), int(order_CS[cell, -2])
