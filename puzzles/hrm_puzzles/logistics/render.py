"""A city as a picture in text, two characters to a cell, which makes cells about square, and the colours of others."""

from __future__ import annotations

from hrm_puzzles.logistics.board import BUILDING, CUSTOMER, DEPOT, ON_TOUR
from hrm_puzzles.puzzle import Grid

PICTURES = {BUILDING: "██", 1: "  ", 2: "2 ", 4: "4 ", DEPOT: "D ", CUSTOMER: "C ", 11: "• ", 12: "2•", 14: "4•"}
BROKEN = "✗ "
PALETTE = {
    BUILDING: "#3b3b3b",
    DEPOT: "#2e9e4f",
    CUSTOMER: "#d0342c",
    1: "#ffffff",
    2: "#ffe08a",
    4: "#f5a623",
    ON_TOUR + 1: "#7db4e6",
    ON_TOUR + 2: "#4f8fcc",
    ON_TOUR + 4: "#2a66a3",
}


def board_text(grid: Grid, question: Grid | None = None) -> str:
    """Rows of cells in a frame; a cell that is neither as in the question nor its road on the tour is crossed out."""
    asked = grid if question is None else question
    lines = ["".join(map(_cell, *rows)) for rows in zip(grid.tolist(), asked.tolist(), strict=True)]
    edge = "─" * 2 * grid.shape[1]
    return "\n".join([f"┌{edge}┐", *(f"│{line}│" for line in lines), f"└{edge}┘"])


def _cell(value: int, asked: int) -> str:
    return PICTURES[value] if value in (asked, asked + ON_TOUR) else BROKEN
