"""Pictures of answered puzzles for a terminal."""

from collections.abc import Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hrm_edge_runtime.solve.solvers import answered
from hrm_puzzles.puzzle import Colored, Grid, Puzzle, PuzzleError, sized
from hrm_puzzles.sudoku.sudoku import Sudoku

GIVEN = "bold"
FOUND = "cyan"
FRAME = "dim"
BLOCK = "█"
LIGHT = 128  # luminance of 255 from which a color needs dark letters


def board(puzzle: Puzzle, question: object, solution: object) -> RenderableType | None:
    """A picture that shows given and found cells differently; None if an answer is not a board."""
    puzzle = sized(puzzle, question)
    try:
        question_grid = puzzle.parse(question).grid
        answer_grid = answered(puzzle, question, solution)
    except PuzzleError:
        return None
    if isinstance(puzzle, Sudoku):
        return _sudoku_board(puzzle, question_grid, answer_grid)
    if isinstance(puzzle, Colored):
        return _colored_board(puzzle, puzzle.palette, question_grid, answer_grid)
    return Text(puzzle.render(answer_grid, question_grid))


def _sudoku_board(puzzle: Sudoku, question: Grid, answer: Grid) -> Text:
    text = Text()
    side = len(question)
    for row in range(side):
        if row == 0:
            text.append(_sudoku_edge(puzzle, side, "┌┬┐"), style=FRAME)
        elif row % puzzle.box_rows == 0:
            text.append(_sudoku_edge(puzzle, side, "├┼┤"), style=FRAME)
        _append_sudoku_row(text, puzzle, question[row].tolist(), answer[row].tolist())
    text.append(_sudoku_edge(puzzle, side, "└┴┘"), style=FRAME)
    text.rstrip()
    return text


def _sudoku_edge(puzzle: Sudoku, side: int, corners: str) -> str:
    left, middle, right = corners
    bar = "─" * (2 * puzzle.box_cols + 1)
    bars = [bar] * (side // puzzle.box_cols)
    return f"{left}{middle.join(bars)}{right}\n"


def _append_sudoku_row(text: Text, puzzle: Sudoku, given: list[int], found: list[int]) -> None:
    for col, value in enumerate(found):
        if col % puzzle.box_cols == 0:
            text.append("│ ", style=FRAME)
        style = GIVEN if given[col] else FOUND
        text.append(f"{value or '.'} ", style=style)
    text.append("│\n", style=FRAME)


def _colored_board(
    puzzle: Puzzle, palette: Mapping[int, str], question: Grid, answer: Grid
) -> RenderableType:
    """Cells in the puzzle's colors; a puzzle without proofs shows question and answer."""
    if not puzzle.proof_exists:
        pair = Table.grid(padding=(0, 3))
        pair.add_row(_numbers(palette, question), _numbers(palette, answer))
        return pair
    # the letters of the puzzle's own text board, two per cell, without its frame
    lines = puzzle.render(answer, question).splitlines()[1:-1]
    signs = [_letter_pairs(line) for line in lines]
    return _cells(palette, answer, signs)


def _numbers(palette: Mapping[int, str], grid: Grid) -> Text:
    signs = [[f"{value} " for value in row] for row in grid.tolist()]
    return _cells(palette, grid, signs)


def _letter_pairs(line: str) -> list[str]:
    starts = range(1, len(line) - 1, 2)
    return [line[start : start + 2] for start in starts]


def _cells(palette: Mapping[int, str], grid: Grid, signs: list[list[str]]) -> Text:
    """Letters that contrast with their cell; blocks have their cell's own color."""
    lines: list[Text] = []
    for values, row in zip(grid.tolist(), signs, strict=True):
        line = Text()
        for value, sign in zip(values, row, strict=True):
            color = palette.get(value, "#ffffff")
            ink = color if BLOCK in sign else _ink_on(color)
            line.append(sign, style=f"{ink} on {color}")
        lines.append(line)
    return Text("\n").join(lines)


def _ink_on(color: str) -> str:
    """Black or white, whichever contrasts with a color "#rrggbb"."""
    red, green, blue = bytes.fromhex(color[1:])
    luminance = 0.3 * red + 0.59 * green + 0.11 * blue
    if luminance > LIGHT:
        return "black"
    return "white"
