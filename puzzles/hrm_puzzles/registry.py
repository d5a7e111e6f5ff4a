"""Puzzles by name: the built-in ones, and those of other packages.

Other packages register an entry point in the group `hrm_edge.puzzles`.
"""

import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.grid.puzzle import GridPuzzle, of_shape
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.maze import Maze
from hrm_puzzles.puzzle import Puzzle, PuzzleError
from hrm_puzzles.sudoku.sudoku import Sudoku

GROUP = "hrm_edge.puzzles"

_LISTED: tuple[Puzzle, ...] = (
    Sudoku(name="sudoku", box_rows=3, box_cols=3),
    Sudoku(name="sudoku-6x6", box_rows=2, box_cols=3),
    Sudoku(name="sudoku-4x4", box_rows=2, box_cols=2),
    Maze(name="maze", rows=30, cols=30),
    Maze(name="maze-14x14", rows=14, cols=14),
    Maze(name="maze-10x10", rows=10, cols=10),
    Maze(name="maze-8x8", rows=8, cols=8),
    Logistics(name="logistics", rows=10, cols=10),
    Logistics(name="logistics-6x6", rows=6, cols=6),
    Arc(name="arc", side=30),
    Arc(name="arc-15x15", side=15),
    Arc(name="arc-10x10", side=10),
    Arc(name="arc-7x7", side=7),
)
# `get` knows these names, as it knows the sizes of mazes. They are not listed, because they have
# neither a shipped model nor a board on the page.
_UNLISTED: tuple[Puzzle, ...] = (
    Sudoku(name="sudoku-12x12", box_rows=3, box_cols=4),
    Sudoku(name="sudoku-16x16", box_rows=4, box_cols=4),
)
_BUILT_IN = {puzzle.name: puzzle for puzzle in (*_LISTED, *_UNLISTED)}

_SIZED = re.compile(r"(maze|logistics)-([1-9]\d?)x([1-9]\d?)")
_FULL_SIZES = {
    "sudoku-9x9": "sudoku",
    "maze-30x30": "maze",
    "logistics-10x10": "logistics",
    "arc-30x30": "arc",
}


def names() -> list[str]:
    """Every name that `get` knows, built-in ones first."""
    others = _entry_points().keys() - _BUILT_IN.keys()
    return [*(puzzle.name for puzzle in _LISTED), *sorted(others)]


def get(name: str) -> Puzzle:
    """The puzzle of a name. Raises PuzzleError with all known names for an unknown one.

    Mazes and cities of any supported size have a name, such as maze-12x20, and so have Sudokus of
    12x12 and 16x16. An entry point loads a Puzzle, or a callable without arguments that makes one.
    It cannot replace a built-in name, and a geometry that does not fit the puzzle raises
    PuzzleError.
    """
    name = _FULL_SIZES.get(name, name)
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    puzzle = _sized(name)
    if puzzle is not None:
        return puzzle
    entry = _entry_points().get(name)
    if entry is None:
        problem = f"the puzzle {name[:40]!r} does not exist"
        raise PuzzleError(problem, "unknown-puzzle", f"use one of {', '.join(names())}")
    return _load(entry)


def _sized(name: str) -> Puzzle | None:
    """A maze or a city of the size in its name; None if the size is not supported."""
    match = _SIZED.fullmatch(name)
    if match is None:
        return None
    family, rows, cols = match.groups()
    kind = cast(GridPuzzle, _BUILT_IN[family])
    shape = GridShape(rows=int(rows), cols=int(cols))
    return cast(Puzzle | None, of_shape(kind, shape))


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


@cache
def _load(entry: EntryPoint) -> Puzzle:
    loaded = entry.load()
    if callable(loaded):
        loaded = loaded()
    puzzle = cast(Puzzle, loaded)
    if puzzle.name != entry.name:
        problem = f"the entry point {entry.name!r} gives a puzzle named {puzzle.name!r}"
        raise PuzzleError(problem, "wrong-name", "use one name for both")
    puzzle.geometry.require(puzzle.seq_len, puzzle.vocab_size)
    return puzzle
