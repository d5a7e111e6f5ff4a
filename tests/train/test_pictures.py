"""Pictures of a run: its curve is whole, and its boards show what is right and what is wrong."""

from pathlib import Path

import numpy as np
from PIL import Image

from hrm_puzzles import registry
from hrm_puzzles.data.datasets import Batch
from hrm_train.pictures import BOARDS, COLORS, GAP, GIVEN, PIXELS, RIGHT, WRONG, boards, draw_curve
from hrm_train.status import VALIDATIONS, append_line


def test_a_curve_at_one_is_drawn_whole(tmp_path: Path):
    shares = {"exact": [0.0, 1.0], "proven": [0.0], "cells": [0.25], "score": 1.0}
    for step in (1, 2):
        row = {"kind": "whole", "step": step, "samples": 8 * step, "num_puzzles": 9, "loss": 0.1}
        append_line(tmp_path / VALIDATIONS, {**row, **shares, "proof_exists": False})
    draw_curve(tmp_path)
    colors = np.asarray(Image.open(tmp_path / "curve.png").convert("RGB")).astype(int)
    blue_ink = (colors[..., 2] - colors[..., 0]).clip(0).sum()
    assert blue_ink > 200_000  # 276,000 is the whole line, 82,000 what an edge at 1 leaves of it


def test_boards_show_right_and_wrong_cells():
    puzzle = registry.get("sudoku-4x4")
    rng = np.random.default_rng(0)
    labels_BT = rng.integers(2, 6, size=(3, 16), dtype=np.int32)
    tokens_BT = labels_BT.copy()
    tokens_BT[:, :2] = 1  # open cells
    answers_BT = labels_BT.copy()
    answers_BT[1, 1] = 0
    rows = Batch(tokens_BT, labels_BT, np.zeros(3, dtype=np.int32))
    drawn = boards(puzzle, rows, answers_BT)
    cells = drawn[:, ::PIXELS, ::PIXELS]
    assert cells.shape == (2 * BOARDS, 5, 5, 3)
    for board in (0, 1, BOARDS):
        assert (cells[board, 1:4, :4] == COLORS[GIVEN]).all()
    assert (cells[:2, 0, :2] == COLORS[RIGHT]).all()
    assert (cells[BOARDS, 0, :2] == [COLORS[RIGHT], COLORS[WRONG]]).all()
    assert (np.delete(cells, (0, 1, BOARDS), axis=0) == COLORS[GAP]).all()
