"""The CSV form of Sudoku-Extreme and Maze-Hard: a header and the columns source, question, answer, rating.

A puzzle has this form when it reads a board out of one text, one character a cell (`board_of`).
Shapes: N rows, T cells.
"""

from __future__ import annotations

import csv
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import RIGHT, Grid, Puzzle, PuzzleError

COLUMNS = ["source", "question", "answer", "rating"]


@runtime_checkable
class CsvForm(Protocol):
    """What a puzzle offers so that its CSV files are read."""

    def board_of(self, text: str) -> Grid:
        """The cells of a question or an answer in one text; raises PuzzleError, and does not judge what they mean."""
        ...


@dataclass(frozen=True, kw_only=True)
class CsvRows:
    """Checked rows as tokens; `lines_N` are line numbers in the file."""

    questions_NT: NDArray[np.uint8]
    answers_NT: NDArray[np.uint8]
    ratings_N: NDArray[np.int32]
    lines_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ratings_N)

    def at(self, index: NDArray[Any]) -> CsvRows:
        return CsvRows(
            questions_NT=self.questions_NT[index],
            answers_NT=self.answers_NT[index],
            ratings_N=self.ratings_N[index],
            lines_N=self.lines_N[index],
        )


def read_csv(path: Path, puzzle: Puzzle, *, least_rating: int = 0, greatest_rating: int | None = None) -> CsvRows:
    """The rows of a rating range; every answer is checked, and refusals name the line.

    The ratings are those of the file: Sudoku-Extreme counts the guesses of tdoku, other files other things.
    """
    rows = _read(path, puzzle, range(least_rating, 10**9 if greatest_rating is None else greatest_rating + 1))
    wrong = np.flatnonzero(puzzle.check_BT(rows.questions_NT, rows.answers_NT) != RIGHT)
    if len(wrong):
        line = int(rows.lines_N[wrong[0]])
        raise _error(path, line, "the answer does not solve the question", "correct or remove the row")
    return rows


def _read(path: Path, puzzle: Puzzle, wanted: range) -> CsvRows:
    questions, answers, ratings, lines = bytearray(), bytearray(), array("i"), array("q")
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        if header != COLUMNS:
            raise _error(path, 1, f"the columns are {header}", f"begin the file with {','.join(COLUMNS)}")
        for row in filter(None, reader):
            rating = _rating(path, reader.line_num, row)
            if rating in wanted:
                questions += _tokens(path, reader.line_num, puzzle, "question", row[1])
                answers += _tokens(path, reader.line_num, puzzle, "answer", row[2])
                ratings.append(rating)
                lines.append(reader.line_num)
    return CsvRows(
        questions_NT=np.frombuffer(questions, dtype=np.uint8).reshape(-1, puzzle.seq_len),
        answers_NT=np.frombuffer(answers, dtype=np.uint8).reshape(-1, puzzle.seq_len),
        ratings_N=np.array(ratings, dtype=np.int32),
        lines_N=np.array(lines, dtype=np.int64),
    )


def _rating(path: Path, line: int, row: list[str]) -> int:
    if len(row) != len(COLUMNS):
        raise _error(path, line, f"there are {len(row)} columns", f"write {','.join(COLUMNS)}")
    if not (row[3].isascii() and row[3].isdigit() and len(row[3]) < 10):
        raise _error(path, line, f"the rating is {row[3][:20]!r}", "write a whole number")
    return int(row[3])


def _tokens(path: Path, line: int, puzzle: Puzzle, column: str, text: str) -> bytes:
    if not isinstance(puzzle, CsvForm):
        raise DatasetError(f"{path}: {puzzle.name} has no CSV form; generate, build or import its data sets instead.")
    try:
        grid = puzzle.board_of(text)
    except PuzzleError as error:
        raise _error(path, line, f"in the {column} {error.problem}", error.remedy) from None
    return puzzle.encode(grid).astype(np.uint8).tobytes()


def _error(path: Path, line: int, problem: str, remedy: str) -> DatasetError:
    return DatasetError(f"{path}, line {line}: {problem}; {remedy}.")
