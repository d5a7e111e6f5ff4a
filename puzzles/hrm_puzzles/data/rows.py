"""Read the puzzles of a file: a CSV file with any header, or boards as text.

A CSV file holds a puzzle in each row. Its columns are found by their names, else by their content,
unless the caller names them. The separator is a comma, a semicolon or a tab.
A text file holds a puzzle in each line, or boards of several lines with blank lines between them.
Lines count from 1.
"""

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import RIGHT, CsvForm, Grid, Puzzle, PuzzleError, sized

QUESTION_NAMES = ("question", "questions", "puzzle", "puzzles", "quiz", "quizzes")
ANSWER_NAMES = ("answer", "answers", "solution", "solutions")
RATING_NAME = "rating"
SEPARATORS = ",;\t"
HEAD_LINES = 100  # a puzzle over several lines has fewer
BYTE_ORDER_MARK = "\ufeff"  # some Windows editors write it before a text
MAX_RATING_DIGITS = 9  # digits of the largest rating, which fits into 32 bits
MAX_SHOWN = 20  # characters of a value that an error quotes
MAX_SHOWN_HEADER = 160  # characters of a first row that an error quotes
HOW_TO_NAME = "name them with --columns QUESTION,ANSWER"


class Row(NamedTuple):
    """A puzzle as text, and its last line in the file. `rating` is 0 if the file has none."""

    line: int
    question: str
    answer: str | None = None
    rating: int = 0


class Columns(NamedTuple):
    """The places of the columns in a row, from 0; None for columns that the file lacks."""

    question: int
    answer: int | None = None
    rating: int | None = None


class Record(NamedTuple):
    """The fields of a row, and its last line."""

    line: int
    fields: list[str]


def rows_in(
    lines: Iterable[str],
    puzzles: Sequence[Puzzle],
    *,
    name: str,
    columns: str | None = None,
) -> Iterator[Row]:
    """The puzzles of a file, read lazily.

    `puzzles` are the kinds that the file may hold, `name` is the name of the file. `columns` are
    the names or the numbers of its columns. Raises DatasetError with the line of a malformed row.
    """
    rest = iter(lines)
    head = list(itertools.islice(rest, HEAD_LINES))
    if head:
        head[0] = head[0].removeprefix(BYTE_ORDER_MARK)
    every_line = itertools.chain(head, rest)
    table = _table_of(head, puzzles, name, columns)
    if table is None:
        yield from _boards_in(every_line, head, puzzles)
    else:
        yield from table.rows(every_line)


def readable(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines. Raises DatasetError for a line that is too long or not UTF-8."""
    number = 0
    try:
        for line in lines:
            number += 1
            yield line
    except ValueError as error:
        remedy = "write one puzzle in each line, in UTF-8"
        raise error_in_line(name, number + 1, str(error), remedy) from error


def error_in_line(name: str, line: int, problem: str, remedy: str) -> DatasetError:
    return DatasetError(f"{name}, line {line}: {problem}; {remedy}.")


def board_from(puzzle: Puzzle, text: str) -> Grid:
    """Read a question or an answer as text. Raises PuzzleError."""
    if isinstance(puzzle, CsvForm):
        return puzzle.board_of(text)
    return puzzle.parse(text).grid


# CSV files


class _Table(NamedTuple):
    """How to read a CSV file."""

    name: str
    separator: str
    columns: Columns
    has_header: bool

    def rows(self, lines: Iterable[str]) -> Iterator[Row]:
        records = _records(self.name, lines, self.separator)
        if self.has_header:
            next(records, None)
        for record in records:
            yield self._row(record)

    def _row(self, record: Record) -> Row:
        line, fields = record
        last = max(place for place in self.columns if place is not None)
        if len(fields) <= last:
            problem = f"the row {shown(self.separator.join(fields))} has {len(fields)} columns"
            remedy = f"write at least {last + 1}, as in the first row"
            raise error_in_line(self.name, line, problem, remedy)
        question, answer, rating = self.columns
        return Row(
            line=line,
            question=fields[question],
            answer=None if answer is None else fields[answer] or None,
            rating=0 if rating is None else self._rating(line, fields[rating]),
        )

    def _rating(self, line: int, text: str) -> int:
        is_number = text.isascii() and text.isdigit()
        if not is_number or len(text) > MAX_RATING_DIGITS:
            problem = f"the rating is {shown(text)}"
            remedy = "write a whole number, or leave the rating out of --columns"
            raise error_in_line(self.name, line, problem, remedy)
        return int(text)


def _table_of(
    head: Sequence[str],
    puzzles: Sequence[Puzzle],
    name: str,
    columns: str | None,
) -> _Table | None:
    """How to read a file with these first lines; None for a text file."""
    separator = _separator_of(head)
    if separator is None and columns is None:
        return None
    separator = separator or SEPARATORS[0]
    records = list(itertools.islice(_records(name, head, separator), 2))
    if not records:
        return None
    first = records[0]
    if columns is not None:
        return _Table(name, separator, *_named_columns(name, columns, first))
    found = _columns_by_name(first.fields)
    if found is not None:
        return _Table(name, separator, found, has_header=True)
    for record in records:
        found = _columns_by_content(record.fields, puzzles)
        if found is not None:
            return _Table(name, separator, found, has_header=record is not first)
    if any(_reads_start(puzzle, head) for puzzle in puzzles):
        return None
    problem = f"the columns are {first.fields}"[:MAX_SHOWN_HEADER] + ", and none holds a puzzle"
    remedy = f"begin the file with question,answer, or {HOW_TO_NAME}"
    raise error_in_line(name, first.line, problem, remedy)


def _separator_of(head: Sequence[str]) -> str | None:
    """The most frequent separator of the first line; None if it is not a row of a CSV file."""
    for line in head:
        if line.strip():
            separator = max(SEPARATORS, key=line.count)
            is_row = separator in line or line.strip().lower() in QUESTION_NAMES
            return separator if is_row else None
    return None


def _records(name: str, lines: Iterable[str], separator: str) -> Iterator[Record]:
    """The rows that are not empty."""
    reader = csv.reader(lines, delimiter=separator)
    try:
        for fields in reader:
            if any(fields):
                yield Record(reader.line_num, fields)
    except csv.Error as error:
        remedy = "write one puzzle in each line"
        raise error_in_line(name, reader.line_num, str(error), remedy) from error


def _columns_by_name(fields: Sequence[str]) -> Columns | None:
    names = [field.strip().lower() for field in fields]
    question = _place_of(names, QUESTION_NAMES)
    if question is None:
        return None
    answer = _place_of(names, ANSWER_NAMES)
    rating = _place_of(names, (RATING_NAME,))
    return Columns(question, answer, rating)


def _place_of(names: Sequence[str], known: Sequence[str]) -> int | None:
    for place, name in enumerate(names):
        if name in known:
            return place
    return None


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
    inputs_1T = puzzle.encode(question)[None]
    answers_1T = puzzle.encode(answer)[None]
    is_changed = not np.array_equal(inputs_1T, answers_1T)
    return is_changed and bool(puzzle.check_BT(inputs_1T, answers_1T)[0] == RIGHT)


def _named_columns(name: str, columns: str, first: Record) -> tuple[Columns, bool]:
    """Find columns by number or by name; also returns whether the first row is a header."""
    names = [field.strip().lower() for field in first.fields]
    places: list[int] = []
    numbers = [str(number) for number in range(1, len(names) + 1)]
    for part in columns.lower().split(","):
        wanted = part.strip()
        if wanted in names:
            places.append(names.index(wanted))
        elif wanted in numbers:
            places.append(numbers.index(wanted))
        else:
            problem = f"--columns {columns}: the columns are {first.fields}"[:MAX_SHOWN_HEADER]
            remedy = f"give two of these names, or numbers from 1 to {len(names)}"
            raise error_in_line(name, first.line, problem, remedy)
    if len(places) > len(Columns._fields):
        problem = f"--columns {columns} names {len(places)} columns"
        remedy = "name QUESTION,ANSWER or QUESTION,ANSWER,RATING"
        raise error_in_line(name, first.line, problem, remedy)
    has_header = _is_name(first.fields[places[0]])
    return Columns(*places), has_header


def _is_name(field: str) -> bool:
    """Whether a field is the name of a column: boards have signs or begin with digits."""
    words = field.split()
    return bool(words) and all(word.isidentifier() for word in words)


# Text files


def _boards_in(
    lines: Iterable[str], head: Sequence[str], puzzles: Sequence[Puzzle]
) -> Iterator[Row]:
    """One board per line, or boards with blank lines between them."""
    if _is_one_board(head, puzzles):
        yield Row(len(head), "".join(head).rstrip("\r\n"))
    elif _has_board_per_line(head, puzzles):
        for number, line in enumerate(lines, start=1):
            if not _is_ignored(line):
                yield Row(number, line.rstrip("\r\n"))
    else:
        yield from _parted(lines)


def _is_one_board(head: Sequence[str], puzzles: Sequence[Puzzle]) -> bool:
    """Whether all lines are one board, which may have blank lines inside."""
    text = "".join(head)
    is_whole = 0 < len(head) < HEAD_LINES
    return is_whole and any(_reads(puzzle, text) for puzzle in puzzles)


def _has_board_per_line(head: Sequence[str], puzzles: Sequence[Puzzle]) -> bool:
    block = _first_block(head)
    if len(block) > 1 and any(_reads(puzzle, "".join(block)) for puzzle in puzzles):
        return False
    longest = max((len(line.strip()) for line in block), default=0)
    shortest = min(puzzle.seq_len for puzzle in puzzles)
    return longest >= shortest or len(block) == HEAD_LINES


def _first_block(head: Sequence[str]) -> list[str]:
    """The first lines that are not blank, without comments before them."""
    is_before = itertools.dropwhile(_is_ignored, head)
    return list(itertools.takewhile(str.strip, is_before))


def _parted(lines: Iterable[str]) -> Iterator[Row]:
    """Boards with blank lines between them; a line that begins with # and a space is a comment."""
    numbered = enumerate(lines, start=1)
    for is_board, group in itertools.groupby(numbered, key=lambda pair: bool(pair[1].strip())):
        block = list(group)
        if is_board and not (len(block) == 1 and _is_ignored(block[0][1])):
            text = "".join(line for _, line in block)
            yield Row(block[-1][0], text.rstrip("\r\n"))


def _is_ignored(line: str) -> bool:
    """Whether a line is empty or a comment."""
    return not line.strip() or line.startswith("# ")


def _reads_start(puzzle: Puzzle, head: Sequence[str]) -> bool:
    """Whether the first lines hold a board: all of them, their first block, or its first line."""
    block = _first_block(head)
    texts = ("".join(head), "".join(block), block[0])
    return any(_reads(puzzle, text) for text in texts)


def _reads(puzzle: Puzzle, text: str) -> bool:
    try:
        board_from(sized(puzzle, text), text)
    except PuzzleError:
        return False
    return True


def shown(text: str) -> str:
    """The beginning of a value, for error messages."""
    return repr(text[:MAX_SHOWN])
