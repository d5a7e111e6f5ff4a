"""The CSV form of Sudoku-Extreme: a header and the columns source, question, answer, rating.

Shapes: N rows, T cells.
"""

from __future__ import annotations

import csv
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.datasets import DatasetError
from hrm_puzzles.puzzle import RIGHT
from hrm_puzzles.sudoku import BLANK, Sudoku

COLUMNS = ["source", "question", "answer", "rating"]


@dataclass(frozen=True, kw_only=True)
class CsvRows:
    """Checked rows as tokens; `lines_N` are line numbers in the file."""

    questions_NT: NDArray[np.uint8]
    answers_NT: NDArray[np.uint8]
    ratings_N: NDArray[np.int32]
    lines_N: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ratings_N)


def read_csv(path: Path, puzzle: Sudoku, *, least_rating: int = 0, greatest_rating: int | None = None) -> CsvRows:
    """The rows of a rating range; every answer is checked, and refusals name the line.

    The ratings are those of the file: Sudoku-Extreme counts the guesses of tdoku, other files other things.
    """
    rows = _read(path, puzzle.seq_len)
    ratings_N = rows.ratings_N
    is_wanted_N = ratings_N >= least_rating
    if greatest_rating is not None:
        is_wanted_N &= ratings_N <= greatest_rating
    questions_NT = _tokens(path, rows, rows.questions_NT, puzzle, blanks=".0")[is_wanted_N]
    answers_NT = _tokens(path, rows, rows.answers_NT, puzzle, blanks="")[is_wanted_N]
    lines_N = rows.lines_N[is_wanted_N]
    wrong = np.flatnonzero(puzzle.check_BT(questions_NT, answers_NT) != RIGHT)
    if len(wrong):
        raise _error(
            path, int(lines_N[wrong[0]]), "the answer does not solve the question", "correct or remove the row"
        )
    return CsvRows(questions_NT=questions_NT, answers_NT=answers_NT, ratings_N=ratings_N[is_wanted_N], lines_N=lines_N)


def _read(path: Path, seq_len: int) -> CsvRows:
    """The characters of the rows, not yet tokens."""
    questions, answers, ratings, lines = bytearray(), bytearray(), array("i"), array("q")
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        if header != COLUMNS:
            raise _error(path, 1, f"the columns are {header}", f"begin the file with {','.join(COLUMNS)}")
        for row in reader:
            if row:
                question, answer, rating = _row(path, reader.line_num, row, seq_len)
                questions += question
                answers += answer
                ratings.append(rating)
                lines.append(reader.line_num)
    return CsvRows(
        questions_NT=np.frombuffer(questions, dtype=np.uint8).reshape(-1, seq_len),
        answers_NT=np.frombuffer(answers, dtype=np.uint8).reshape(-1, seq_len),
        ratings_N=np.array(ratings, dtype=np.int32),
        lines_N=np.array(lines, dtype=np.int64),
    )


def _row(path: Path, line: int, row: list[str], seq_len: int) -> tuple[bytes, bytes, int]:
    if len(row) != len(COLUMNS):
        raise _error(path, line, f"there are {len(row)} columns", f"write {','.join(COLUMNS)}")
    question, answer = (text.encode("ascii", errors="replace") for text in row[1:3])
    for name, text in (("question", question), ("answer", answer)):
        if len(text) != seq_len:
            raise _error(path, line, f"the {name} has {len(text)} characters", f"write {seq_len}, row by row")
    if not (row[3].isascii() and row[3].isdigit() and len(row[3]) < 10):
        raise _error(path, line, f"the rating is {row[3][:20]!r}", "write a whole number")
    return question, answer, int(row[3])


def _tokens(
    path: Path, rows: CsvRows, characters_NT: NDArray[np.uint8], puzzle: Sudoku, *, blanks: str
) -> NDArray[np.uint8]:
    token_of_character = np.zeros(256, dtype=np.uint8)
    token_of_character[[ord(blank) for blank in blanks]] = BLANK
    for digit in range(1, puzzle.board.side + 1):
        token_of_character[ord(str(digit))] = digit + BLANK
    tokens_NT = token_of_character[characters_NT]
    bad = np.argwhere(tokens_NT == 0)
    if len(bad):
        index, cell = bad[0].tolist()
        row, col = puzzle.board.cell_name(cell)
        problem = f"{chr(characters_NT[index, cell])!r} stands at row {row}, column {col}"
        remedy = f"use 1 to {puzzle.board.side}" + (" and . for a blank of the question" if blanks else "")
        raise _error(path, int(rows.lines_N[index]), problem, remedy)
    return tokens_NT


def _error(path: Path, line: int, problem: str, remedy: str) -> DatasetError:
    return DatasetError(f"{path}, line {line}: {problem}; {remedy}.")
