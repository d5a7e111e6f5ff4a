"""Variants of a puzzle: copies under its symmetries, each with the way back for answers.

Shapes: B puzzles, T tokens.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from hrm_edge_runtime.contract.bundle import Identifiers
from hrm_edge_runtime.engines.engine import Int32
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, Puzzle, Symmetry, Voting

DRAWS = 4  # maximum draws per variant; a puzzle with few symmetries soon repeats


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
        original = TaskVariant(tokens_T=tokens_T, puzzle_id=puzzle_id)
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
