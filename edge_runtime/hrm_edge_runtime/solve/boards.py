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
        if isinstance(question, dict):  # an ARC question names its task; its solution is a grid alone
            solution = {**cast("dict[str, object]", question), "input": solution}
        asked, answered = puzzle.parse(question).grid, puzzle.parse(solution).grid
    except PuzzleError:
        return None
    if isinstance(puzzle, Sudoku):
        return _sudoku_board(puzzle, asked, answered)
    if isinstance(puzzle, Coloured):
        return _coloured_board(puzzle, asked, answered)
    return Text(puzzle.render(answered, asked))


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
            for col, (given, found) in enumerate(zip(asked[row].tolist(), answered[row].tolist(), strict=True)):
                text.append("│ " if col % cols == 0 else "", style="dim")
                text.append(f"{found or '.'} ", style=GIVEN if given else FOUND)
            text.append("│\n", style="dim")
    text.rstrip()
    return text


def _coloured_board(puzzle: Puzzle, asked: Grid, answered: Grid) -> RenderableType:
    """Cells in the puzzle's colours; for puzzles without proof the question stands beside its answer."""
    assert isinstance(puzzle, Coloured)
    if not puzzle.proof_exists:
        pair = Table.grid(padding=(0, 3))
        signed = [(grid, [[f"{value} " for value in row] for row in grid.tolist()]) for grid in (asked, answered)]
        pair.add_row(*(_cells(puzzle.palette, grid, signs) for grid, signs in signed))
        return pair
    # the letters of the puzzle's own text board, two to a cell, without its frame; the colour shows a wall
    lines = [line.replace("█", " ") for line in puzzle.render(answered, asked).splitlines()[1:-1]]
    signs = [[line[at : at + 2] for at in range(1, len(line) - 1, 2)] for line in lines]
    return _cells(puzzle.palette, answered, signs)


def _cells(palette: Mapping[int, str], grid: Grid, signs: list[list[str]]) -> Text:
    """Dark letters on light colours, light ones on dark."""
    lines: list[Text] = []
    for values, row in zip(grid.tolist(), signs, strict=True):
        line = Text()
        for value, sign in zip(values, row, strict=True):
            colour = palette.get(value, "#ffffff")
            red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
            ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "white"
            line.append(sign, style=f"{ink} on {colour}")
        lines.append(line)
    return Text("\n").join(lines)
