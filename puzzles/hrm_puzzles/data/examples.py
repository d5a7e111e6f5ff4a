"""Examples of a data set for people: as text, and as a contact sheet of questions and answers side by side.

Shapes: R rows, C columns of a grid.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hrm_puzzles.data.datasets import DatasetError, open_split
from hrm_puzzles.data.inspection import puzzle_at
from hrm_puzzles.puzzle import Coloured, Grid, Puzzle

PAIRS_IN_A_ROW = 3
INCHES = 2.2  # the side of one board
LINES = "#888888"


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownExample:
    """A question and its label as grids; the title says where it is in the data set and what is known of it."""

    puzzle: Puzzle
    title: str
    question: Grid
    answer: Grid

    def text(self) -> str:
        """The question, then the label with the givens marked, then the title."""
        boards = (self.puzzle.render(self.question), self.puzzle.render(self.answer, self.question))
        return "\n\n".join((*boards, self.title))


def read_examples(path: Path, split: str, first: int, count: int, puzzle_name: str | None) -> list[ShownExample]:
    """The example at index `first` and the first ones of the groups after it, up to `count`.

    Refuses an index beyond the end.
    """
    examples = open_split(path, split)
    if first >= len(examples):
        raise DatasetError(f"{split} has {len(examples)} examples, so there is no index {first}; give a smaller one.")
    puzzle = puzzle_at(path, examples.meta, puzzle_name)
    try:
        names = list(json.loads((path / "identifiers.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        names = []  # titles then give the number
    starts = examples.puzzle_offsets[examples.group_offsets[:-1]]
    found: list[ShownExample] = []
    for index in [first, *starts[starts > first].tolist()[: count - 1]]:
        known = [f"{split} {index}"]
        number = int(examples.puzzle_ids_N[index])
        if number:
            known.append(names[number] if number < len(names) else f"puzzle id {number}")
        if examples.ratings_N is not None:
            known.append(f"rating {examples.ratings_N[index]}")
        question, answer = (puzzle.decode(tokens_NT[index]) for tokens_NT in (examples.inputs_NT, examples.labels_NT))
        found.append(ShownExample(puzzle=puzzle, title=", ".join(known), question=question, answer=answer))
    return found


def save_sheet(path: Path, examples: Sequence[ShownExample]) -> None:
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
    """The colours of a puzzle that has any; the values but 0 of any other, of an answer the new ones in blue."""
    if not grid.size:
        axis.text(0.5, 0.5, "no grid", ha="center", va="center", fontsize=8)
        return
    height, width = grid.shape
    if isinstance(puzzle, Coloured):
        colours = np.ones((max(puzzle.palette) + 1, 3))  # white for a value without one
        for value, colour in puzzle.palette.items():
            colours[value] = [component / 255 for component in bytes.fromhex(colour[1:])]
        axis.imshow(colours[grid], aspect="equal")
    else:
        axis.imshow(np.ones((height, width, 3)), aspect="equal")
        for (row, col), value in np.ndenumerate(grid):
            is_given = question is None or question.shape != grid.shape or question[row, col] == value
            if value:
                color = "black" if is_given else "tab:blue"
                axis.text(col, row, str(value), ha="center", va="center", fontsize=90 / height, color=color)
    axis.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, colors=LINES, linewidth=0.4)
    axis.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, colors=LINES, linewidth=0.4)
