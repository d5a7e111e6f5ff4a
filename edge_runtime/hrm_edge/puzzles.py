"""Puzzles as people keep them: an argument, or a file in any form that `reading` knows.

A JSON object with `puzzle` may be a request of `/solve`. The answers of a file are known solutions.
They are never sent anywhere.
"""

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from hrm_edge_runtime.api.schema import SolveRequest
from hrm_host.command import CANNOT_BEGIN
from hrm_host.reading import encoding_of, lines_of
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Puzzle
from hrm_puzzles.reading.record import PuzzleRecord, board_in
from hrm_puzzles.reading.records import MAX_LINE, records_at, records_in

FILE_NAME = re.compile(r"[^\n]{1,200}\.[A-Za-z]{3,10}")  # no puzzle ends like this


class SolvingError(ValueError):
    """A run cannot begin or finish; the text is one sentence with the remedy."""


class OutOfReachError(SolvingError):
    """The request is valid, but the server or the disk cannot serve it now."""

    exit_status = CANNOT_BEGIN


class Entry(NamedTuple):
    """One puzzle, numbered from 1; `fields` are those of its request, `known` its solution."""

    number: int
    fields: Mapping[str, object]
    known: object | None = None

    @property
    def puzzle(self) -> object:
        return self.fields["puzzle"]


def is_many(argument: str) -> bool:
    """Whether an argument names a file or standard input; otherwise it is a puzzle."""
    return argument == "-" or os.path.isfile(argument)


def require_file(argument: str) -> None:
    """Raise SolvingError if an argument looks like a file name and is not a file."""
    if is_many(argument):
        return
    if os.path.exists(argument):
        raise SolvingError(f"{argument} is not a plain file: give one, or - for standard input.")
    if FILE_NAME.fullmatch(argument):
        raise SolvingError(f"file {argument} does not exist: give an existing file or a puzzle.")


def entries_of(
    argument: str, puzzles: Sequence[Puzzle], columns: str | None = None
) -> Iterator[Entry]:
    """The puzzles of an argument, read lazily.

    `puzzles` are the kinds that a file may hold. `columns` are those of a table.
    """
    try:
        if argument == "-":
            lines = lines_of(_standard_input(), MAX_LINE)
            yield from numbered(records_in(lines, puzzles, name="standard input", columns=columns))
        elif is_many(argument):
            yield from numbered(records_at(Path(argument), puzzles, columns))
        else:
            yield Entry(number=1, fields={"puzzle": board_in(argument)})
    except DatasetError as error:
        raise SolvingError(str(error)) from error
    except (OSError, ValueError) as error:
        remedy = "give a file of puzzles"
        raise SolvingError(f"{argument!r} cannot be read ({error}): {remedy}.") from error


def _standard_input() -> TextIO:
    """Standard input in UTF-8, or in UTF-16 if its mark is there."""
    if isinstance(sys.stdin, io.TextIOWrapper) and isinstance(sys.stdin.buffer, io.BufferedReader):
        encoding = encoding_of(sys.stdin.buffer.peek())
        sys.stdin.reconfigure(encoding=encoding, errors=sys.stdin.errors)
    return sys.stdin


def numbered(records: Iterable[PuzzleRecord]) -> Iterator[Entry]:
    """The puzzles of records. Beside an answer, unknown fields are columns of a data set."""
    for number, record in enumerate(records, start=1):
        fields = {"puzzle": board_in(record.question)}
        for name, value in record.fields.items():
            if record.answer is None or name in SolveRequest.model_fields:
                fields[name] = value
        yield Entry(number=number, fields=fields, known=record.answer)
