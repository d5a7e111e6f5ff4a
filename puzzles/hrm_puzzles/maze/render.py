"""A maze as a picture in text, two characters to a cell, which makes cells about square, and the colours of others."""

from __future__ import annotations

from hrm_puzzles.maze.board import GOAL, OPEN, PATH, START, WALL
from hrm_puzzles.puzzle import Grid

PICTURES = {OPEN: "  ", WALL: "██", START: "S ", GOAL: "G ", PATH: "• "}
BROKEN = "✗ "
PALETTE = {OPEN: "#ffffff", WALL: "#3b3b3b", START: "#2e9e4f", GOAL: "#d0342c", PATH: "#7db4e6"}


def board_text(grid: Grid, question: Grid | None = None) -> str:
    """Rows of cells in a frame; a cell that is neither as in the question nor a mark on an open one is crossed out."""
    asked = grid if question is None else question
    lines = ["".join(map(_cell, *rows)) for rows in zip(grid.tolist(), asked.tolist(), strict=True)]
    edge = "─" * 2 * grid.shape[1]
    return "\n".join([f"┌{edge}┐", *(f"│{line}│" for line in lines), f"└{edge}┘"])


def _cell(value: int, asked: int) -> str:
    is_kept = value == asked or (value, asked) == (PATH, OPEN)
    return PICTURES[value] if is_kept else BROKEN
