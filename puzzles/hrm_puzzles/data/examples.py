"""Rows of examples in memory, and the files that hold them.

Shapes: N examples, T tokens.
"""

from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_host.reading import lines_of
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.rows import Row, board_from, error_in_line, readable, rows_in, shown
from hrm_puzzles.puzzle import RIGHT, CsvForm, Grid, Labelling, Puzzle, PuzzleError

MAX_LINE = 1 << 20  # characters; a row of the largest maze has 2,000

Examples = NDArray[np.void]  # rows of `example_type`


def example_type(puzzle: Puzzle) -> np.dtype[np.void]:
    """The tokens of a question and its answer, [T] each, and the rating of the question."""
    question = ("inputs", np.uint8, puzzle.seq_len)
    answer = ("labels", np.uint8, puzzle.seq_len)
    return np.dtype([question, answer, ("rating", "<i4")])


def read_examples(path: Path, puzzle: Puzzle, columns: str | None = None) -> Examples:
    """Read a file of `data.rows` and check every answer. Errors name the line.

    A question without an answer is labeled by the puzzle's exact solver. Ratings are the file's
    own (Sudoku-Extreme: guesses of tdoku).
    """
    if not isinstance(puzzle, CsvForm):
        problem = f"{path}: {puzzle.name} does not have a CSV form"
        raise DatasetError(f"{problem}; generate, build or import its data sets instead.")
    content = bytearray()
    line_of = array("q")
    with path.open(newline="", encoding="utf-8-sig") as stream:
        lines = readable(str(path), lines_of(stream, MAX_LINE))
        for row in rows_in(lines, [puzzle], name=str(path), columns=columns):
            content += _example_bytes(str(path), puzzle, row)
            line_of.append(row.line)
    rows = np.frombuffer(content, dtype=example_type(puzzle))
    is_right_N = puzzle.check_BT(rows["inputs"], rows["labels"]) == RIGHT
    wrong: list[int] = np.flatnonzero(~is_right_N).tolist()
    if wrong:
        first = wrong[0]
        answer = str(puzzle.asked(puzzle.decode(rows["labels"][first]), ""))
        problem = f"the answer {shown(answer)} does not solve the question"
        raise error_in_line(str(path), line_of[first], problem, "correct or remove the row")
    return rows


def _example_bytes(name: str, puzzle: Puzzle, row: Row) -> bytes:
    question = _board(name, puzzle, row.line, "question", row.question)
    if row.answer is not None:
        answer = _board(name, puzzle, row.line, "answer", row.answer)
    else:
        answer = _label(name, puzzle, row.line, question)
    inputs_T = puzzle.encode(question).astype(np.uint8)
    labels_T = puzzle.encode(answer).astype(np.uint8)
    return inputs_T.tobytes() + labels_T.tobytes() + row.rating.to_bytes(4, "little")


def _board(name: str, puzzle: Puzzle, line: int, column: str, text: str) -> Grid:
    try:
        return board_from(puzzle, text)
    except PuzzleError as error:
        problem = f"in the {column} {shown(text)} {error.problem}"
        raise error_in_line(name, line, problem, error.remedy) from None


def _label(name: str, puzzle: Puzzle, line: int, question: Grid) -> Grid:
    if not isinstance(puzzle, Labelling):
        remedy = "add a column with the answers"
        raise error_in_line(name, line, "the question has no answer", remedy)
    try:
        return puzzle.label_of(question)
    except PuzzleError as error:
        raise error_in_line(name, line, error.problem, error.remedy) from None
