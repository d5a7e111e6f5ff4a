"""A question and its answer as a picture for a terminal; what the model found looks different from what was given.

A Sudoku has boxes, the other puzzles a `palette` of colours by value.
"""

from collections.abc import Mapping
from typing import cast

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hrm_puzzles.puzzle import Coloured, Grid, Puzzle, PuzzleError
from hrm_puzzles.sudoku.sudoku import Sudoku

GIVEN, FOUND = "bold", "cyan"


def board(puzzle: Puzzle, question: object, solution: object) -> RenderableType | None:
    """The picture; None for an answer that is no board."""
    try:
        asked, answered = puzzle.parse(question).grid, puzzle.parse(_asked_like(question, solution)).grid
    except PuzzleError:
        return None
    if isinstance(puzzle, Sudoku):
        return _sudoku_board(puzzle, asked, answered)
    if isinstance(puzzle, Coloured):
        return _coloured_board(puzzle, asked, answered)
    return Text(puzzle.render(answered, asked))


def _asked_like(question: object, solution: object) -> object:
    """An ARC question names its task; its solution is a grid alone."""
    return {**cast("dict[str, object]", question), "input": solution} if isinstance(question, dict) else solution


def _sudoku_board(puzzle: Sudoku, asked: Grid, answered: Grid) -> Text:
    """Digits between the lines of the boxes."""
    side, rows, cols = len(asked), puzzle.box_rows, puzzle.box_cols
    bar = ["─" * (2 * cols + 1)] * (side // cols)
    edges = {0: "┌┬┐", side: "└┴┘"}
    text = Text()
    for row in range(side + 1):
        if row % rows == 0:
            left, middle, right = edges.get(row, "├┼┤")
            text.append(f"{left}{middle.join(bar)}{right}\n", style="dim")
        if row < side:
            _append_row(text, cols, asked[row].tolist(), answered[row].tolist())
    text.rstrip()
    return text


def _append_row(text: Text, box_cols: int, asked: list[int], answered: list[int]) -> None:
    for col, (given, found) in enumerate(zip(asked, answered, strict=True)):
        text.append("│ " if col % box_cols == 0 else "", style="dim")
        text.append(f"{found or '.'} ", style=GIVEN if given else FOUND)
    text.append("│\n", style="dim")


def _coloured_board(puzzle: Puzzle, asked: Grid, answered: Grid) -> RenderableType:
    """Cells in the puzzle's colours; for puzzles without proof the question stands beside its answer."""
    assert isinstance(puzzle, Coloured)
    if puzzle.proof_exists:
        return _cells(puzzle.palette, answered, _signs(puzzle, asked, answered))
    pair = Table.grid(padding=(0, 3))
    pair.add_row(*(_cells(puzzle.palette, grid, _digits(grid)) for grid in (asked, answered)))
    return pair


def _cells(palette: Mapping[int, str], grid: Grid, signs: list[list[str]]) -> Text:
    lines = [
        Text.assemble(*((sign, _style(palette.get(value, "#ffffff"))) for value, sign in zip(values, row, strict=True)))
        for values, row in zip(grid.tolist(), signs, strict=True)
    ]
    return Text("\n").join(lines)


def _signs(puzzle: Puzzle, asked: Grid, answered: Grid) -> list[list[str]]:
    """The letters of the puzzle's own text board, two to a cell, without its frame."""
    lines = puzzle.render(answered, asked).splitlines()[1:-1]
    pairs = [[line[at : at + 2] for at in range(1, len(line) - 1, 2)] for line in lines]
    return [[pair.replace("█", " ") for pair in row] for row in pairs]  # the colour shows a wall


def _digits(grid: Grid) -> list[list[str]]:
    return [[f"{value} " for value in row] for row in grid.tolist()]


def _style(colour: str) -> str:
    """Dark letters on light colours, light ones on dark."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "white"
    return f"{ink} on {colour}"
