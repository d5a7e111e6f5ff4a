"""The variants of a task: the puzzle as it was asked, then copies under the puzzle's symmetries.

Shapes: T tokens. A variant transforms an answer back, so that the client never sees the copy.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

import numpy as np

from hrm_edge_runtime.engines.engine import Int32
from hrm_puzzles.puzzle import Puzzle, Symmetry

DRAWS = 4  # symmetries drawn for each variant wanted: a puzzle with few of them soon repeats itself


@runtime_checkable
class NamedVariants(Protocol):
    """A puzzle whose copies are rows of the puzzle table with names of their own, as those of an ARC task."""

    def variant_of(self, name: str) -> tuple[str, Symmetry]:
        """The task behind a name, and the symmetry that makes this variant of its puzzles."""
        ...


def unchanged(answer_T: Int32) -> Int32:
    return answer_T


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskVariant:
    """A copy of a puzzle, its row of the puzzle table, and the way back for answers."""

    tokens_T: Int32
    puzzle_id: int
    turn_back: Callable[[Int32], Int32] = unchanged


class TaskVariants:
    """Makes the variants of puzzles: always the same ones for the same puzzle, the puzzle itself first."""

    def __init__(self, puzzle: Puzzle, identifiers: Sequence[str] = ()) -> None:
        self._puzzle = puzzle
        self._names = identifiers
        self._named = puzzle if isinstance(puzzle, NamedVariants) else None
        self._ids_of: dict[str, list[int]] = {}
        if self._named is not None:
            for puzzle_id, name in enumerate(identifiers):
                self._ids_of.setdefault(self._named.variant_of(name)[0], []).append(puzzle_id)
        self._drawn: list[Symmetry] = []

    def variants(self, tokens_T: Int32, puzzle_id: int, count: int) -> list[TaskVariant]:
        """Up to `count` different variants; fewer where the puzzle has fewer symmetries, or its task fewer names."""
        itself = TaskVariant(tokens_T=tokens_T, puzzle_id=puzzle_id)
        others = self._transformed(itself, count) if self._named is None else self._by_name(itself, self._named)
        return [itself, *islice(others, count - 1)]

    def _transformed(self, itself: TaskVariant, count: int) -> Iterator[TaskVariant]:
        seen = {itself.tokens_T.tobytes()}
        for number in range(DRAWS * (count - 1)):
            if number == len(self._drawn):
                self._drawn.append(self._puzzle.symmetry(np.random.default_rng(number)))
            symmetry = self._drawn[number]
            tokens_T = symmetry.apply(itself.tokens_T[None])[0]
            if tokens_T.tobytes() not in seen:
                seen.add(tokens_T.tobytes())
                yield TaskVariant(tokens_T=tokens_T, puzzle_id=itself.puzzle_id, turn_back=_way_back(symmetry))

    def _by_name(self, itself: TaskVariant, puzzle: NamedVariants) -> Iterator[TaskVariant]:
        task, asked = puzzle.variant_of(self._names[itself.puzzle_id])
        upright_BT = asked.invert(itself.tokens_T[None])
        for puzzle_id in self._ids_of[task]:
            if puzzle_id != itself.puzzle_id:
                _, other = puzzle.variant_of(self._names[puzzle_id])
                tokens_T = other.apply(upright_BT)[0]
                yield TaskVariant(tokens_T=tokens_T, puzzle_id=puzzle_id, turn_back=_way_back(other, then=asked))


def _way_back(symmetry: Symmetry, then: Symmetry | None = None) -> Callable[[Int32], Int32]:
    def turn_back(answer_T: Int32) -> Int32:
        upright_BT = symmetry.invert(answer_T[None])
        return (then.apply(upright_BT) if then else upright_BT)[0]

    return turn_back
