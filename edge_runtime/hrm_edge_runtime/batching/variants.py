"""How further attempts at a puzzle differ: copies under its symmetries, and hypotheses.

A copy has the way back for its answer. With hypotheses an attempt takes an undecided cell as given
for a while; read `Hypotheses.next_T`. The carry stays. A model that deduces leaves a cell undecided
if its symbol does not follow. Given one of the cell's two likeliest symbols, it deduces further.
The answer is still judged against the original question.

Shapes: B puzzles, T tokens, V vocabulary, C open cells, S symbols.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from hrm_edge_runtime.contract.bundle import Identifiers
from hrm_edge_runtime.engines.engine import Float32, Int32
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, Puzzle, Symmetry, Voting

DRAWS = 4  # maximum draws per variant; a puzzle with few symmetries soon repeats
START = 16  # segments without a hypothesis at the start of an attempt
PERIOD = 8  # segments that a hypothesis lasts
NUM_CELLS = 3  # number of most undecided cells among which a hypothesis draws


class TaskVariant(NamedTuple):
    """A copy of a puzzle and its row of the puzzle table; `turn_back` transforms answers back."""

    tokens_T: Int32
    puzzle_id: int
    turn_back: Callable[[Int32], Int32] = np.asarray


class TaskVariants:
    """Makes variants: always the same ones for the same puzzle, and the puzzle itself first."""

    def __init__(self, puzzle: Puzzle, identifiers: Identifiers | None = None) -> None:
        self._puzzle = puzzle
        self._names = identifiers or Identifiers([BLANK_IDENTIFIER])
        self._drawn: list[Symmetry] = []

    def variants(self, tokens_T: Int32, puzzle_id: int, count: int) -> list[TaskVariant]:
        """Up to `count` different variants; fewer if the puzzle lacks symmetries or names."""
        original = TaskVariant(tokens_T, puzzle_id)
        if isinstance(self._puzzle, Voting):
            others = self._by_name(original, self._puzzle)
        else:
            others = self._transformed(original, count)
        return [original, *islice(others, count - 1)]

    def _transformed(self, original: TaskVariant, count: int) -> Iterator[TaskVariant]:
        seen = {original.tokens_T.tobytes()}
        for number in range(DRAWS * (count - 1)):
            if number == len(self._drawn):
                rng = np.random.default_rng(number)
                self._drawn.append(self._puzzle.symmetry(rng))
            symmetry = self._drawn[number]
            tokens_T = symmetry.apply(original.tokens_T[None])[0]
            key = tokens_T.tobytes()
            if key not in seen:
                seen.add(key)
                yield TaskVariant(
                    tokens_T=tokens_T,
                    puzzle_id=original.puzzle_id,
                    turn_back=_way_back(symmetry),
                )

    def _by_name(self, original: TaskVariant, puzzle: Voting) -> Iterator[TaskVariant]:
        """The variants of a task that have their own rows in the puzzle table."""
        task, symmetry = puzzle.variant_of(self._names[original.puzzle_id])
        upright_BT = symmetry.invert(original.tokens_T[None])
        for puzzle_id in self._names.rows_beginning(task):
            other_task, other = puzzle.variant_of(self._names[puzzle_id])
            if other_task == task and puzzle_id != original.puzzle_id:
                yield TaskVariant(
                    tokens_T=other.apply(upright_BT)[0],
                    puzzle_id=puzzle_id,
                    turn_back=_way_back(other, then=symmetry),
                )


def _way_back(symmetry: Symmetry, then: Symmetry | None = None) -> Callable[[Int32], Int32]:
    """Undo a symmetry, then apply `then`, the symmetry of the original puzzle."""

    def turn_back(answer_T: Int32) -> Int32:
        answer_BT = symmetry.invert(answer_T[None])
        if then is not None:
            answer_BT = then.apply(answer_BT)
        return answer_BT[0]

    return turn_back


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
