"""A Sudoku board as text for people."""

from __future__ import annotations

from hrm_puzzles.puzzle import Grid
from hrm_puzzles.sudoku.board import Board


def board_text(board: Board, grid: Grid, question: Grid | None = None) -> str:
    """Rows of cells with frames between the boxes; with a question, `[5]` is one of its givens and ` 5 ` is not."""
    cells = [_cell(digit, given) for digit, given in _pairs(grid, grid * 0 if question is None else question)]
    rows = [cells[start : start + board.side] for start in range(0, board.num_cells, board.side)]
    lines = ["|".join("".join(part) for part in _chunks(row, board.box_cols)) for row in rows]
    frame = "\n" + "+".join(["---" * board.box_cols] * board.box_rows) + "\n"
    return frame.join("\n".join(band) for band in _chunks(lines, board.box_rows))


def _pairs(grid: Grid, question: Grid) -> list[tuple[int, int]]:
    return list(zip(grid.reshape(-1).tolist(), question.reshape(-1).tolist(), strict=True))


def _cell(digit: int, given: int) -> str:
    if digit and digit == given:
        return f"[{digit}]"
    return f" {digit or '.'} "


def _chunks(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
