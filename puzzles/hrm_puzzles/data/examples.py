"""Rows of examples in memory, and the CSV files that hold them.

CSV files have the form of Sudoku-Extreme and Maze-Hard: a header and the columns source, question,
answer, rating. Shapes: N examples, T tokens.
"""

import csv
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from hrm_host.reading import lines_of
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import RIGHT, CsvForm, Puzzle, PuzzleError

COLUMNS = ["source", "question", "answer", "rating"]
MAX_CSV_LINE = 1 << 20  # characters; a row of the largest maze has 2,000
MAX_RATING_DIGITS = 9  # digits of the largest rating, which fits into 32 bits
MAX_SHOWN = 20  # characters of a value that an error quotes

Examples = NDArray[np.void]  # rows of `example_type`


def example_type(puzzle: Puzzle) -> np.dtype[np.void]:
    """The tokens of a question and its answer, [T] each, and the rating of the question."""
    question = ("inputs", np.uint8, puzzle.seq_len)
    answer = ("labels", np.uint8, puzzle.seq_len)
    return np.dtype([question, answer, ("rating", "<i4")])


def read_csv(path: Path, puzzle: Puzzle) -> Examples:
    """Read a CSV file and check every answer. Errors name the line.

    Ratings are the file's own (Sudoku-Extreme: guesses of tdoku).
    """
    if not isinstance(puzzle, CsvForm):
        problem = f"{path}: {puzzle.name} does not have a CSV form"
        raise DatasetError(f"{problem}; generate, build or import its data sets instead.")
    content = bytearray()
    lines = array("q")
    with path.open(newline="", encoding="utf-8-sig") as stream:
        numbered = _rows_of(path, stream)
        _, header = next(numbered, (1, []))
        if header != COLUMNS:
            problem = f"the columns are {header}"[:200]
            raise _csv_error(path, 1, problem, f"begin the file with {','.join(COLUMNS)}")
        for number, row in numbered:
            rating = _rating(path, number, row)
            _, question, answer, _ = row
            content += _csv_tokens(path, number, puzzle, "question", question)
            content += _csv_tokens(path, number, puzzle, "answer", answer)
            content += rating.to_bytes(4, "little")
            lines.append(number)
    rows = np.frombuffer(content, dtype=example_type(puzzle))
    is_right_N = puzzle.check_BT(rows["inputs"], rows["labels"]) == RIGHT
    wrong: list[int] = np.flatnonzero(~is_right_N).tolist()
    if wrong:
        problem = "the answer does not solve the question"
        raise _csv_error(path, lines[wrong[0]], problem, "correct or remove the row")
    return rows


def _csv_tokens(path: Path, number: int, puzzle: Puzzle, column: str, text: str) -> bytes:
    assert isinstance(puzzle, CsvForm)
    try:
        tokens_T = puzzle.encode(puzzle.board_of(text))
    except PuzzleError as error:
        problem = f"in the {column} {error.problem}"
        raise _csv_error(path, number, problem, error.remedy) from None
    return tokens_T.astype(np.uint8).tobytes()


def _rows_of(path: Path, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, each with the number of its last line."""
    reader = csv.reader(lines_of(stream, MAX_CSV_LINE))
    remedy = "write one puzzle in each line"
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise _csv_error(path, reader.line_num, str(error), remedy) from error
    except ValueError as error:  # the reader has not counted this line yet
        line = reader.line_num + 1
        raise _csv_error(path, line, str(error), f"{remedy}, in UTF-8") from error


def _rating(path: Path, line: int, row: list[str]) -> int:
    if len(row) != len(COLUMNS):
        problem = f"the row has {len(row)} columns"
        raise _csv_error(path, line, problem, f"write {','.join(COLUMNS)}")
    text = row[-1]
    is_number = text.isascii() and text.isdigit()
    if not is_number or len(text) > MAX_RATING_DIGITS:
        problem = f"the rating is {text[:MAX_SHOWN]!r}"
        raise _csv_error(path, line, problem, "write a whole number")
    return int(text)


def _csv_error(path: Path, line: int, problem: str, remedy: str) -> DatasetError:
    return DatasetError(f"{path}, line {line}: {problem}; {remedy}.")
