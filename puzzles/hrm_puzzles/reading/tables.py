"""Tables: CSV files with any header, and with a comma, a semicolon or a tab between the columns.

Columns are found by their names, else by their content, unless the caller names them.
"""

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import RIGHT, Grid, Puzzle, PuzzleError, sized
from hrm_puzzles.reading.record import (
    ANSWER_KEYS,
    GRID_KEYS,
    QUESTION_KEYS,
    PuzzleRecord,
    board_from,
    error_at_place,
)

SEPARATORS = ",;\t"
MAX_SHOWN_HEADER = 160  # characters of a first row that an error quotes
HOW_TO_NAME = "name them with --columns QUESTION,ANSWER"


Fields = tuple[int, list[str]]  # the last line of a row, and its fields


class Columns(NamedTuple):
    """The places of the columns in a row, from 0; None for columns that the file lacks."""

    question: int
    answer: int | None = None
    rating: int | None = None


class TableReader(NamedTuple):
    """How to read a table."""

    name: str
    separator: str
    columns: Columns
    has_header: bool

    def records(self, lines: Iterable[str]) -> Iterator[PuzzleRecord]:
        rows = _rows(self.name, lines, self.separator)
        if self.has_header:
            next(rows, None)
        for row in rows:
            yield self._record(row)

    def _record(self, row: Fields) -> PuzzleRecord:
        line, fields = row
        place = f"line {line}"
        last = max(column for column in self.columns if column is not None)
        if len(fields) <= last:
            text = self.separator.join(fields)
            problem = f"the row {text[:20]!r} has {len(fields)} columns"
            remedy = f"write at least {last + 1}, as in the first row"
            return PuzzleRecord(place=place, question=text, problem=problem, remedy=remedy)
        question, answer, rating = self.columns
        return PuzzleRecord(
            place=place,
            question=fields[question],
            answer=None if answer is None else fields[answer] or None,
            rating="" if rating is None else fields[rating].strip(),
        )


def table_reader(
    head: Sequence[str], puzzles: Sequence[Puzzle], name: str, columns: str | None
) -> TableReader | None:
    """How to read a file that begins with these lines; None if no column holds a puzzle."""
    separator = _separator_of(head)
    if separator is None and columns is None:
        return None
    separator = separator or SEPARATORS[0]
    rows = list(itertools.islice(_rows(name, head, separator), 2))
    if not rows:
        return None
    first = rows[0]
    if columns is not None:
        return TableReader(name, separator, *_named_columns(name, columns, first))
    _, names = first
    found = _columns_by_name(names)
    if found is not None:
        return TableReader(name, separator, found, has_header=True)
    for row in rows:
        _, fields = row
        found = _columns_by_content(fields, puzzles)
        if found is not None:
            return TableReader(name, separator, found, has_header=row is not first)
    return None


def columns_error(name: str, head: Sequence[str]) -> DatasetError | None:
    """The error about a table without puzzles; None if the lines are not a table."""
    separator = _separator_of(head)
    if separator is None:
        return None
    for line, fields in _rows(name, head, separator):
        problem = f"the columns are {fields}"[:MAX_SHOWN_HEADER] + ", and none holds a puzzle"
        remedy = f"begin the file with question,answer, or {HOW_TO_NAME}"
        return error_at_place(name, f"line {line}", problem, remedy)
    return None


def _separator_of(head: Sequence[str]) -> str | None:
    """The most frequent separator of the first line; None if it is not a row of a table."""
    for line in head:
        if line.strip():
            separator = max(SEPARATORS, key=line.count)
            is_row = separator in line or line.strip().lower() in QUESTION_KEYS
            return separator if is_row else None
    return None


def _rows(name: str, lines: Iterable[str], separator: str) -> Iterator[Fields]:
    """The rows that are not empty."""
    reader = csv.reader(lines, delimiter=separator)
    try:
        for fields in reader:
            if any(fields):
                yield reader.line_num, fields
    except csv.Error as error:
        remedy = "write one puzzle in each line"
        raise error_at_place(name, f"line {reader.line_num}", str(error), remedy) from error


def _columns_by_name(fields: Sequence[str]) -> Columns | None:
    names = [field.strip().lower() for field in fields]
    question = _place_of(names, (*QUESTION_KEYS, *GRID_KEYS))
    if question is None:
        return None
    answer = _place_of(names, ANSWER_KEYS)
    rating = _place_of(names, ("rating",))
    return Columns(question, answer, rating)


def _place_of(names: Sequence[str], known: Sequence[str]) -> int | None:
    return next((place for place, name in enumerate(names) if name in known), None)


def _columns_by_content(fields: Sequence[str], puzzles: Sequence[Puzzle]) -> Columns | None:
    """The first board and the board that solves it; the first two if none solves another."""
    for puzzle in puzzles:
        boards = _boards_of(puzzle, fields)
        for question, answer in itertools.permutations(boards, 2):
            kind = sized(puzzle, fields[question])
            if _is_solved(kind, boards[question], boards[answer]):
                return Columns(question, answer)
        if boards:
            return Columns(*list(boards)[:2])
    return None


def _boards_of(puzzle: Puzzle, fields: Sequence[str]) -> dict[int, Grid]:
    """The fields that are boards, by their places."""
    boards: dict[int, Grid] = {}
    for place, field in enumerate(fields):
        try:
            boards[place] = board_from(sized(puzzle, field), field)
        except PuzzleError:
            continue
    return boards


def _is_solved(puzzle: Puzzle, question: Grid, answer: Grid) -> bool:
    if question.shape != answer.shape:
        return False
    inputs_1T = puzzle.encode(question)[None]
    answers_1T = puzzle.encode(answer)[None]
    is_changed = not np.array_equal(inputs_1T, answers_1T)
    return is_changed and bool(puzzle.check_BT(inputs_1T, answers_1T)[0] == RIGHT)


def _named_columns(name: str, columns: str, first: Fields) -> tuple[Columns, bool]:
    """Find columns by number or by name; also returns whether the first row is a header."""
    line, fields = first
    names = [field.strip().lower() for field in fields]
    place = f"line {line}"
    places: list[int] = []
    numbers = [str(number) for number in range(1, len(names) + 1)]
    for part in columns.lower().split(","):
        wanted = part.strip()
        if wanted in names:
            places.append(names.index(wanted))
        elif wanted in numbers:
            places.append(numbers.index(wanted))
        else:
            problem = f"--columns {columns}: the columns are {fields}"[:MAX_SHOWN_HEADER]
            remedy = f"give two of these names, or numbers from 1 to {len(names)}"
            raise error_at_place(name, place, problem, remedy)
    if len(places) > len(Columns._fields):
        problem = f"--columns {columns} names {len(places)} columns"
        remedy = "name QUESTION,ANSWER or QUESTION,ANSWER,RATING"
        raise error_at_place(name, place, problem, remedy)
    words = fields[places[0]].split()
    # Names of columns have words; boards have signs or begin with digits.
    has_header = bool(words) and all(map(str.isidentifier, words))
    return Columns(*places), has_header
