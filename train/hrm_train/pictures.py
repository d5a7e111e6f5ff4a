"""Pictures of a run: the curve of its validations, and boards that its model answers."""

import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.data.datasets import IGNORE, Batch, Int32Array
from hrm_puzzles.puzzle import Puzzle
from hrm_train import status

BOARDS = 8  # right boards, and wrong ones: TensorBoard shows eight in a row
PIXELS = 8  # of a cell's side
GIVEN, RIGHT, WRONG, GAP = range(4)
COLORS = np.array([[211, 211, 211], [44, 160, 44], [214, 39, 40], [255, 255, 255]], dtype=np.uint8)


def draw_curve(run: Path) -> None:
    """Draws the validations of a run into its `curve.png`."""
    os.environ.pop("MPLBACKEND", None)  # a notebook's backend, which may be absent here
    # Slow to import; every resume would wait for it.
    from matplotlib.figure import Figure

    # The whole set's row comes after the fast one of the same step and replaces it.
    row_of = {row["step"]: row for row in status.validations(run)}
    rows = list(row_of.values())
    samples = [row["samples"] for row in rows]
    curves = {"exact": "exact puzzles", "cells": "right among open cells"}
    if rows[0]["proof_exists"]:
        curves["proven"] = "proven puzzles"
    figure = Figure(figsize=(8, 4.5), dpi=120)
    axes = figure.add_subplot(xlabel="samples (one puzzle for one segment)", ylabel="share")
    for name, label in curves.items():
        shares = [row[name][-1] for row in rows]
        axes.plot(samples, shares, ".-", label=label)
    axes.set_ylim(-0.02, 1.02)  # a curve at 0 or 1 is seen whole
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3)  # above, so it hides no curve
    figure.savefig(run / "curve.png")


def boards(puzzle: Puzzle, rows: Batch, answers_BT: Int32Array) -> NDArray[np.uint8]:
    """A row of the first right boards, then one of the first wrong ones [board, y, x, RGB].

    Cells are gray if the question has them, else green or red. The puzzle's positions must be the
    cells of a board.
    """
    board = puzzle.geometry.board
    half = len(board) // 2
    height = math.prod(board[:half])
    width = math.prod(board[half:])
    kinds_BT = np.where(answers_BT == rows.labels_BT, RIGHT, WRONG)
    kinds_BT[(rows.tokens_BT == rows.labels_BT) | (rows.labels_BT == IGNORE)] = GIVEN
    is_wrong_B = (kinds_BT == WRONG).any(1)
    drawn = np.full((2 * BOARDS, height + 1, width + 1), GAP)
    for begin, chosen_B in ((0, ~is_wrong_B), (BOARDS, is_wrong_B)):
        for offset, index in enumerate(np.flatnonzero(chosen_B)[:BOARDS]):
            drawn[begin + offset, :-1, :-1] = kinds_BT[index].reshape(height, width)
    return COLORS[drawn].repeat(PIXELS, axis=1).repeat(PIXELS, axis=2)
