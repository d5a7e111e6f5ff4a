"""Examples as a picture: a contact sheet of questions and answers side by side.

A puzzle whose cells are colours says which (`palette`); of any other the values are written into the cells.
Shapes: R rows, C columns of a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.examples import Example
from hrm_puzzles.puzzle import Grid, Puzzle

PAIRS_IN_A_ROW = 3
INCHES = 2.2  # the side of one board
LINES = "#888888"


@runtime_checkable
class Coloured(Protocol):
    """What a puzzle offers whose cells are shown as colours."""

    @property
    def palette(self) -> Mapping[int, str]:
        """The colour of each value of a grid, as #rrggbb."""
        ...


def save_sheet(path: Path, examples: Sequence[Example]) -> None:
    """Write a PNG with each question and, right of it, its answer; needs matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        remedy = "install it with pip install 'hrm-edge[train]', or leave --png away for text"
        raise DatasetError(f"pictures need the package matplotlib, which is missing; {remedy}.") from error
    columns = min(PAIRS_IN_A_ROW, len(examples))
    rows = -(-len(examples) // columns)
    figure = Figure(figsize=(2 * columns * INCHES, rows * (INCHES + 0.3)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.array(figure.subplots(rows, 2 * columns, squeeze=False)).reshape(-1, 2)
    for axis in axes.reshape(-1):
        axis.set_axis_off()
    for (left, right), example in zip(axes, examples, strict=False):
        left.set_title(example.title, fontsize=7, loc="left")
        _draw(left, example.puzzle, example.question, None)
        _draw(right, example.puzzle, example.answer, example.question)
    figure.savefig(path, dpi=120, format="png")


def _draw(axis: Any, puzzle: Puzzle, grid: Grid, question: Grid | None) -> None:
    if not grid.size:
        axis.text(0.5, 0.5, "no grid", ha="center", va="center", fontsize=8)
        return
    height, width = grid.shape
    if isinstance(puzzle, Coloured):
        axis.imshow(_rgb(puzzle.palette)[grid], aspect="equal")
    else:
        axis.imshow(np.ones((height, width, 3)), aspect="equal")
        _write(axis, grid, question)
    axis.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, colors=LINES, linewidth=0.4)
    axis.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, colors=LINES, linewidth=0.4)


def _write(axis: Any, grid: Grid, question: Grid | None) -> None:
    """The values that are not 0; of an answer, those that were not given in blue."""
    for (row, col), value in np.ndenumerate(grid):
        is_given = question is None or question.shape != grid.shape or question[row, col] == value
        if value:
            color = "black" if is_given else "tab:blue"
            axis.text(col, row, str(value), ha="center", va="center", fontsize=90 / len(grid), color=color)


def _rgb(palette: Mapping[int, str]) -> NDArray[np.float64]:
    """The colours as numbers, [values, 3]; white where a value has none."""
    colours = np.ones((max(palette) + 1, 3))
    for value, colour in palette.items():
        colours[value] = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return colours
