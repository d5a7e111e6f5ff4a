"""Pictures of a run: the curve of its validations, and boards that its model answers."""

from pathlib import Path
from typing import Any

import numpy as np

from hrm_puzzles.puzzle import Puzzle
from hrm_train import status
from hrm_train.batches import Batch, Int32Array

CURVE = "curve.png"
CURVE_INCHES = (8, 4.5)
DPI = 120
MARGIN = 0.02  # of an axis of shares, so that a curve at 0 or 1 is seen whole
BOARDS = 4  # right boards, and wrong ones
BOARDS_INCHES = (8, 4)
# Kinds of cells, and their colors.
GIVEN, RIGHT, WRONG = range(3)
COLORS = ("lightgray", "tab:green", "tab:red")


def _figure(inches: tuple[float, float]) -> Any:
    # Slow to import; every resume would wait for it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches)
    FigureCanvasAgg(figure)
    return figure


def draw_curve(run: Path) -> None:
    """Draws the validations of a run into its `curve.png`."""
    figure = _figure(CURVE_INCHES)
    axes = figure.add_subplot(
        xlabel="samples (one puzzle for one segment)", ylabel="share of held-out puzzles"
    )
    # The whole set's row comes after the fast one of the same step and replaces it.
    row_of = {row["step"]: row for row in status.History(run).rows()}
    rows = list(row_of.values())
    early = min(4, len(rows[0]["exact"])) - 1
    curves = {
        "exact after the last segment": ("exact", -1),
        "exact after 4 segments": ("exact", early),
        "right among open cells": ("cells", -1),
    }
    if rows[0]["proof_exists"]:
        curves["proven at any segment"] = ("proven", -1)
    samples = [row["samples"] for row in rows]
    for label, (name, index) in curves.items():
        shares = [row[name][index] for row in rows]
        axes.plot(samples, shares, label=label)
    whole = [row for row in rows if row["kind"] == "whole"]
    whole_samples = [row["samples"] for row in whole]
    scores = [row["score"] for row in whole]
    axes.plot(whole_samples, scores, "k.", label="score on the whole set")
    axes.set_ylim(-MARGIN, 1 + MARGIN)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(run / CURVE, dpi=DPI)


def boards(puzzle: Puzzle, rows: Batch, answers_BT: Int32Array) -> Any:
    """A figure of the first right boards and, below them, of the first wrong ones.

    Cells are gray if the question has them, else green or red. The puzzle's positions must be the
    cells of a board.
    """
    from matplotlib.colors import ListedColormap

    wrong_BT = answers_BT != rows.labels_BT
    kinds_BT = np.where(wrong_BT, WRONG, RIGHT)
    kinds_BT[rows.tokens_BT == rows.labels_BT] = GIVEN
    is_wrong_B = (kinds_BT == WRONG).any(1)
    figure = _figure(BOARDS_INCHES)
    axes = figure.subplots(2, BOARDS)
    board = puzzle.geometry.board
    half = len(board) // 2
    shape = (int(np.prod(board[:half])), int(np.prod(board[half:])))
    for row, chosen_B in enumerate((~is_wrong_B, is_wrong_B)):
        for column in range(BOARDS):
            axes[row, column].axis("off")
        for column, index in enumerate(np.flatnonzero(chosen_B)[:BOARDS]):
            kinds_RC = kinds_BT[index].reshape(shape)
            colors = ListedColormap(COLORS)
            axes[row, column].imshow(kinds_RC, cmap=colors, vmin=GIVEN, vmax=WRONG)
    return figure
