"""A smaller board on the board of a model; knows no puzzle, only boards with rows and columns.

Shapes: T cells of the outer board, I cells of the inner board.
"""

from collections.abc import Sized
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.puzzle import Board, Grid, IntArray, Notation, Parsed, Route, Routed
from hrm_puzzles.reading.grids import shape_in, square
from hrm_puzzles.reading.legend import Legend


class RectangularBoard(Board, Protocol):
    """A board of `rows` x `cols` cells."""

    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Framed:
    """Boards of `inner` in the first rows and columns of `outer`, with walls on all other cells.

    No path and no tour enters a wall, so both boards have the same answers: a proof on the outer
    board is a proof of the question as asked. `wall` is the value of a wall.
    """

    inner: RectangularBoard
    outer: RectangularBoard
    wall: int

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def seq_len(self) -> int:
        return self.inner.seq_len

    def parse(self, notation: object) -> Parsed:
        return self.inner.parse(notation)

    def write(self, grid: Grid, notation: Notation) -> object:
        return self.inner.write(grid, notation)

    def encode(self, grid: Grid) -> NDArray[np.int32]:
        """Convert a grid of the inner board to tokens [T] of the outer board."""
        framed = np.full((self.outer.rows, self.outer.cols), self.wall, dtype=np.int8)
        framed[: self.inner.rows, : self.inner.cols] = grid
        return self.outer.encode(framed)

    def decode(self, tokens_T: IntArray) -> Grid:
        """Convert tokens [T] of the outer board to a grid of the inner board."""
        grid = self.outer.decode(tokens_T)
        return grid[: self.inner.rows, : self.inner.cols]

    def route(self, question: Grid, answer: Grid) -> Route:
        return cast(Routed, self.inner).route(question, answer)


def shape_of(legend: Legend, notation: object) -> GridShape | None:
    """Rows and columns of a board in any notation; None if the notation does not show them.

    A board in one line or in a flat list is a square. Raises PuzzleError for a text that shows two
    shapes.
    """
    if isinstance(notation, dict):
        fields = cast("dict[object, object]", notation)
        return shape_of(legend, fields.get("grid"))
    if isinstance(notation, str):
        return shape_in(legend, notation)
    if not isinstance(notation, list) or not notation:
        return None
    rows = cast("list[object]", notation)
    if all(isinstance(row, str) for row in rows):
        return shape_in(legend, "\n".join(cast("list[str]", rows)))
    if all(isinstance(row, list) for row in rows):
        longest = max(map(len, cast("list[Sized]", rows)))
        return GridShape(rows=len(rows), cols=longest)
    return square(len(rows))


def cells_in(notation: str | list[object]) -> set[str | int]:
    """The distinct characters of a text, or the distinct values of lists."""
    if isinstance(notation, str):
        return set(notation)
    cells: set[str | int] = set()
    for value in notation:
        if isinstance(value, str | list):
            cells |= cells_in(cast("str | list[object]", value))
        elif isinstance(value, int):
            cells.add(value)
    return cells
