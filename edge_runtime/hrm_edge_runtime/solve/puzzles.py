"""Puzzles as people keep them: an argument, lines of text, a published CSV, or requests as NDJSON.

A line of NDJSON is a request of `/solve` or a puzzle written as JSON. The `solution` beside a
puzzle, as the web page exports it, and the `answer` of a CSV are known solutions. They are never
sent anywhere.
"""

import contextlib
import csv
import itertools
import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hrm_host.command import CANNOT_BEGIN
from hrm_host.reading import json_from, lines_of

FILE_NAME = re.compile(r"[^\n]+\.[A-Za-z]{3,6}")  # no puzzle ends like this
MAX_FILE_NAME = 250  # characters; file systems take no longer name
HEAD_LINES = 100  # a puzzle over several lines has fewer
MAX_LINE = 1 << 24  # characters; a list of all requests can be one line
BYTE_ORDER_MARK = "\ufeff"  # some Windows editors write it before a text


class SolvingError(ValueError):
    """A run cannot begin or finish; the text is one sentence with the remedy."""


class OutOfReachError(SolvingError):
    """The request is valid, but the server or the disk cannot serve it now."""

    exit_status = CANNOT_BEGIN


class NoServerError(OutOfReachError):
    """Nothing answers at the server's address."""


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
def opened(argument: str, shortest: int) -> Generator[Iterator[Entry]]:
    """The puzzles of an argument, read lazily.

    If every line is shorter than `shortest`, a puzzle's length, all lines are one puzzle.
    """
    with contextlib.closing(_entries_of(argument, shortest)) as entries:
        yield entries


def _entries_of(argument: str, shortest: int) -> Generator[Entry]:
    try:
        if argument == "-":
            yield from entries(lines_of(sys.stdin, MAX_LINE), shortest)
        elif is_many(argument):
            with Path(argument).open(encoding="utf-8", newline="") as stream:
                yield from entries(lines_of(stream, MAX_LINE), shortest)
        else:
            yield from entries([argument], 0)
    except (OSError, ValueError, csv.Error) as error:
        remedy = "give a text file of puzzles"
        raise SolvingError(f"{argument!r} cannot be read ({error}): {remedy}.") from error


def entries(lines: Iterable[str], shortest: int) -> Iterator[Entry]:
    """The puzzles in some lines; the first lines show whether they are CSV, one puzzle or many."""
    rest = iter(lines)
    head = list(itertools.islice(rest, HEAD_LINES))
    if head:
        head[0] = head[0].removeprefix(BYTE_ORDER_MARK)
    written = [line for line in head if not _is_ignored(line)]
    if not written:
        yield from _numbered(line for line in rest if not _is_ignored(line))
        return
    every_line = itertools.chain(head, rest)
    if "question" in written[0].strip().split(","):
        yield from _from_csv(every_line)
    elif _has_puzzle_per_line(head, written, shortest):
        yield from _numbered(line for line in every_line if not _is_ignored(line))
    else:
        yield from _numbered(["".join(head)])


def _has_puzzle_per_line(head: list[str], written: list[str], shortest: int) -> bool:
    longest = max(len(line.strip()) for line in written)
    return longest >= shortest or len(head) == HEAD_LINES


def _is_ignored(line: str) -> bool:
    """Empty lines and comments."""
    return not line.strip() or line.startswith("# ")


def _from_csv(lines: Iterable[str]) -> Iterator[Entry]:
    rows = csv.DictReader(line for line in lines if line.strip())
    for number, row in enumerate(rows, 1):
        fields = {"puzzle": row.get("question") or ""}
        yield Entry(number=number, fields=fields, known=row.get("answer") or None)


def _numbered(texts: Iterable[str]) -> Iterator[Entry]:
    values = itertools.chain.from_iterable(map(_values, texts))
    for number, value in enumerate(values, 1):
        if isinstance(value, dict) and "puzzle" in value:
            fields = cast("dict[str, object]", value)
            known = fields.pop("solution", None)
            yield Entry(number=number, fields=fields, known=known)
        else:
            yield Entry(number=number, fields={"puzzle": value})


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
