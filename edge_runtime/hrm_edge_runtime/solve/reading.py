"""Puzzles as people keep them: one, a board over several lines, lines of text, the published CSV form, NDJSON.

A line of NDJSON is a request of `/solve` or a puzzle written as JSON. The `solution` beside a puzzle, as in what the
web page exports, and the `answer` of a CSV are kept as the known solution and never sent anywhere.
"""

import contextlib
import csv
import itertools
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

MAX_FILE_NAME = 250  # longer is a board, and no file system would take it as a name
HEAD_LINES = 100  # a board over several lines ends before this


class SolvingError(ValueError):
    """A run that cannot be begun or finished; the text is one sentence with the remedy."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One puzzle with the other fields of its request; `known` is its solution, None where the source has none.

    `number` counts the puzzles of one source from 1.
    """

    number: int
    fields: Mapping[str, object]
    known: object | None = None

    @property
    def puzzle(self) -> object:
        return self.fields["puzzle"]


def is_many(argument: str) -> bool:
    """Whether an argument names a file or standard input rather than being the puzzle itself."""
    return argument == "-" or (len(argument) < MAX_FILE_NAME and Path(argument).is_file())


@contextlib.contextmanager
def opened(argument: str, shortest: int) -> Generator[Iterator[Entry]]:
    """The puzzles that an argument names, read lazily: itself, a file's, or standard input's.

    `shortest` is the length of the shortest whole puzzle: shorter lines together are one board.
    """
    try:
        if argument == "-":
            yield entries(sys.stdin, shortest)
        elif is_many(argument):
            with Path(argument).open(encoding="utf-8", newline="") as stream:
                yield entries(stream, shortest)
        else:
            yield entries([argument], 0)
    except (OSError, UnicodeDecodeError) as error:
        raise SolvingError(f"{argument!r} cannot be read ({error}): give a text file of puzzles.") from error


def entries(lines: Iterable[str], shortest: int) -> Iterator[Entry]:
    """The puzzles of some lines; the first lines show the form."""
    rest = iter(lines)
    head = list(itertools.islice(rest, HEAD_LINES))
    first = next((line for line in head if not _is_idle(line)), "")
    if "question" in first.strip().split(","):
        rows = csv.DictReader(line for line in itertools.chain(head, rest) if line.strip())
        for number, row in enumerate(rows, 1):
            yield Entry(number=number, fields={"puzzle": row.get("question") or ""}, known=row.get("answer") or None)
    elif any(len(line.strip()) >= shortest for line in head if not _is_idle(line)) or len(head) == HEAD_LINES:
        yield from _numbered(line for line in itertools.chain(head, rest) if not _is_idle(line))
    elif first:
        yield from _numbered(["".join(head)])


def _is_idle(line: str) -> bool:
    """Blank, or a remark."""
    return not line.strip() or line.startswith("# ")


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
    """What a text says: rows, flat lists and objects are written as JSON, and a list of requests is all of them."""
    text = text.rstrip("\r\n")
    try:
        value: object = json.loads(text) if text.lstrip().startswith(("[", "{")) else text
    except ValueError:
        return [text]
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in cast("list[object]", value)):
        return cast("list[object]", value)
    return [value]
