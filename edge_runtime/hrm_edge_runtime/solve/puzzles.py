"""Puzzles as people keep them: an argument, a file of `data.rows`, or requests as NDJSON.

A line of NDJSON is a request of `/solve` or a puzzle written as JSON. The `solution` beside a
puzzle, as the web page exports it, and the answer of a CSV are known solutions. They are never
sent anywhere.
"""

import contextlib
import itertools
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hrm_host.command import CANNOT_BEGIN
from hrm_host.reading import json_from, lines_of
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.rows import BYTE_ORDER_MARK, HEAD_LINES, Row, readable, rows_in
from hrm_puzzles.puzzle import Puzzle

FILE_NAME = re.compile(r"[^\n]+\.[A-Za-z]{3,6}")  # no puzzle ends like this
MAX_FILE_NAME = 250  # characters; file systems take no longer name
MAX_LINE = 1 << 24  # characters; a list of all requests can be one line


class SolvingError(ValueError):
    """A run cannot begin or finish; the text is one sentence with the remedy."""


class OutOfReachError(SolvingError):
    """The request is valid, but the server or the disk cannot serve it now."""

    exit_status = CANNOT_BEGIN


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One puzzle, numbered from 1; `fields` are those of its request, `known` its solution."""

    number: int
    fields: Mapping[str, object]
    known: object | None = None

    @property
    def puzzle(self) -> object:
        return self.fields["puzzle"]


def is_many(argument: str) -> bool:
    """Whether an argument names a file or standard input; otherwise it is a puzzle."""
    if argument == "-":
        return True
    return len(argument) < MAX_FILE_NAME and Path(argument).is_file()


def require_file(argument: str) -> None:
    """Raise SolvingError if an argument looks like a file name and the file does not exist."""
    if FILE_NAME.fullmatch(argument) and not is_many(argument):
        raise SolvingError(f"file {argument} does not exist: give an existing file or a puzzle.")


@contextlib.contextmanager
def opened(
    argument: str, puzzles: Sequence[Puzzle], columns: str | None = None
) -> Generator[Iterator[Entry]]:
    """The puzzles of an argument, read lazily.

    `puzzles` are the kinds that a file may hold. `columns` are those of a CSV file.
    """
    with contextlib.closing(_entries_of(argument, puzzles, columns)) as entries:
        yield entries


def _entries_of(argument: str, puzzles: Sequence[Puzzle], columns: str | None) -> Generator[Entry]:
    try:
        if argument == "-":
            lines = lines_of(sys.stdin, MAX_LINE)
            yield from entries(lines, puzzles, name="standard input", columns=columns)
        elif is_many(argument):
            with Path(argument).open(encoding="utf-8", newline="") as stream:
                lines = lines_of(stream, MAX_LINE)
                yield from entries(lines, puzzles, name=argument, columns=columns)
        else:
            yield from _numbered([Row(1, argument)])
    except DatasetError as error:
        raise SolvingError(str(error)) from error
    except (OSError, ValueError) as error:
        remedy = "give a text file of puzzles"
        raise SolvingError(f"{argument!r} cannot be read ({error}): {remedy}.") from error


def entries(
    lines: Iterable[str],
    puzzles: Sequence[Puzzle],
    *,
    name: str = "the text",
    columns: str | None = None,
) -> Iterator[Entry]:
    """The puzzles in some lines: JSON, or what `data.rows` reads."""
    rest = readable(name, lines)
    head = list(itertools.islice(rest, HEAD_LINES))
    if head:
        head[0] = head[0].removeprefix(BYTE_ORDER_MARK)
    every_line = itertools.chain(head, rest)
    written = [line for line in head if not _is_ignored(line)]
    if written and written[0].lstrip().startswith(("[", "{")):
        texts = _json_texts(every_line, head, written, puzzles)
        rows = (Row(0, text) for text in texts)
    else:
        rows = rows_in(every_line, puzzles, name=name, columns=columns)
    yield from _numbered(rows)


def _json_texts(
    lines: Iterable[str], head: list[str], written: list[str], puzzles: Sequence[Puzzle]
) -> Iterable[str]:
    """One value in each line, or one over several lines."""
    longest = max(len(line.strip()) for line in written)
    shortest = min(puzzle.seq_len for puzzle in puzzles)
    if longest >= shortest or len(head) == HEAD_LINES:
        return (line for line in lines if not _is_ignored(line))
    return ["".join(head)]


def _is_ignored(line: str) -> bool:
    """Empty lines and comments."""
    return not line.strip() or line.startswith("# ")


def _numbered(rows: Iterable[Row]) -> Iterator[Entry]:
    numbers = itertools.count(1)
    for row in rows:
        for value in _values(row.question):
            number = next(numbers)
            if isinstance(value, dict) and "puzzle" in value:
                fields = cast("dict[str, object]", value)
                known = fields.pop("solution", None)
                yield Entry(number=number, fields=fields, known=known)
            else:
                yield Entry(number=number, fields={"puzzle": value}, known=row.answer)


def _values(text: str) -> list[object]:
    """The puzzles or requests of a text: rows, lists and objects are JSON, the rest is one puzzle.

    A list of objects is a list of requests; any other list is one puzzle.
    """
    text = text.rstrip("\r\n")
    if not text.lstrip().startswith(("[", "{")):
        return [text]
    try:
        value: object = json_from(text)
    except ValueError:
        return [text]
    if not isinstance(value, list):
        return [value]
    values = cast("list[object]", value)
    if values and all(isinstance(one, dict) for one in values):
        return values
    return [values]
