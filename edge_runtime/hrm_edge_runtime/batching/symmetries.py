"""The variants a question can be tried in: itself, then copies under the puzzle's symmetries.

Shapes: T tokens. A variant turns an answer back, so that whoever asked never sees that the question was turned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.lane import Checker
from hrm_edge_runtime.engines.engine import Int32
from hrm_puzzles.puzzle import Grid, Symmetry

DRAWS = 4  # for each variant asked for: a puzzle with few symmetries soon gives none that is new


class SymmetricPuzzle(Checker, Protocol):
    """What attempts ask of a puzzle."""

    @property
    def proof_exists(self) -> bool: ...

    def symmetry(self, rng: np.random.Generator) -> Symmetry: ...

    def decode(self, tokens_T: NDArray[Any]) -> Grid: ...


@runtime_checkable
class NamedVariants(Protocol):
    """A puzzle whose turned copies are rows of the puzzle table with names of their own, as those of an ARC task."""

    def variant_of(self, name: str) -> tuple[str, Symmetry]:
        """The task behind a name, and the symmetry that makes this variant of its questions."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskVariant:
    """A copy of a question, its row of the puzzle table, and the way back for answers."""

    tokens_T: Int32
    puzzle_id: int
    turn_back: Callable[[Int32], Int32]


class TaskVariants:
    """Makes the variants of questions; the same question always gets the same ones, the first being itself."""

    def __init__(self, puzzle: SymmetricPuzzle, identifiers: Sequence[str] = ()) -> None:
        self._puzzle = puzzle
        self._names = identifiers
        self._variants = puzzle if isinstance(puzzle, NamedVariants) else None
        self._ids_of = _ids_by_task(self._variants, identifiers) if self._variants else {}
        self._drawn: list[Symmetry] = []

    def variants(self, tokens_T: Int32, puzzle_id: int, count: int) -> list[TaskVariant]:
        """Up to `count` different variants; fewer where the puzzle has no more symmetries, or its task no variants."""
        itself = TaskVariant(tokens_T=tokens_T, puzzle_id=puzzle_id, turn_back=lambda answer_T: answer_T)
        others = self._named(itself) if self._variants else self._turned(itself, count)
        return [itself, *islice(others, count - 1)]

    def _turned(self, itself: TaskVariant, count: int) -> Iterator[TaskVariant]:
        seen = {itself.tokens_T.tobytes()}
        for number in range(DRAWS * (count - 1)):
            symmetry = self._symmetry(number)
            tokens_T = symmetry.apply(itself.tokens_T[None])[0]
            if tokens_T.tobytes() not in seen:
                seen.add(tokens_T.tobytes())
                yield TaskVariant(tokens_T=tokens_T, puzzle_id=itself.puzzle_id, turn_back=_way_back(symmetry))

    def _symmetry(self, number: int) -> Symmetry:
        while len(self._drawn) <= number:
            self._drawn.append(self._puzzle.symmetry(np.random.default_rng(len(self._drawn))))
        return self._drawn[number]

    def _named(self, itself: TaskVariant) -> Iterator[TaskVariant]:
        assert self._variants is not None
        task, asked = self._variants.variant_of(self._names[itself.puzzle_id])
        upright_BT = asked.invert(itself.tokens_T[None])
        for puzzle_id in self._ids_of[task]:
            if puzzle_id != itself.puzzle_id:
                _, other = self._variants.variant_of(self._names[puzzle_id])
                yield TaskVariant(
                    tokens_T=other.apply(upright_BT)[0], puzzle_id=puzzle_id, turn_back=_way_back(other, then=asked)
                )


def _way_back(symmetry: Symmetry, then: Symmetry | None = None) -> Callable[[Int32], Int32]:
    def turn_back(answer_T: Int32) -> Int32:
        upright_BT = symmetry.invert(answer_T[None])
        return (then.apply(upright_BT) if then else upright_BT)[0]

    return turn_back


def _ids_by_task(puzzle: NamedVariants, names: Sequence[str]) -> dict[str, list[int]]:
    ids: dict[str, list[int]] = {}
    for puzzle_id, name in enumerate(names):
        ids.setdefault(puzzle.variant_of(name)[0], []).append(puzzle_id)
    return ids
