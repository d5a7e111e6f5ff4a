"""A Sudoku in a text, with or without frames, headers and remarks.

A form gives the cells of each line. A text is read if exactly one form makes a board of it. Spaces
are blanks only if the text has no other blank mark and its cells are in columns.
Shapes: S digits and lines, T = S * S cells.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from hrm_puzzles.puzzle import Parsed, PuzzleError
from hrm_puzzles.reading.grids import (
    BOX_DRAWING,
    FRAME,
    WORD,
    Span,
    number_rows,
    parsed_cells,
    reject_doubtful_zero,
)
from hrm_puzzles.reading.legend import (
    BoardSize,
    Legend,
    Values,
    ambiguous,
    bad_character,
    values_in,
)
from hrm_puzzles.reading.text import QUOTES, Line, is_heading, lines_of

Row = list[Span]

BETWEEN = frozenset("|!/:+=~,;[](){} \t" + QUOTES + BOX_DRAWING)
BARS = re.compile("[|!:│┃║┆┇┊┋]")
TOKEN = re.compile(rf"[^\s;,|:={QUOTES}]+")
SECTION = re.compile(r"\s*\[\s*([A-Za-z]{3,})[^\]]*\]\s*")  # [Puzzle] and [State] of .sdk files
FIELD_SEPARATORS = ",;\t"
PITCHES = ((0, 1), (1, 2), (0, 2), (1, 3))  # first column and step of the cells of a box
ROWS = (("row", "plus"), ("row",), ("row", "plus", "dashes"))  # kinds of lines that may be rows
AS_TEXT = "give the column the type text in the spreadsheet, and write the board again"
OTHER_FORMS = (
    (r"\s*\w+://", "the text is an address", "send the board in it, such as the text after bd="),
    (
        r"\s*<[?!\w]",
        "the text is XML or HTML",
        "send the text of the board in it",
    ),
    (
        r"\s*\[?\s*\{\s*([\"'}]|$)",
        "the text begins like JSON and is not",
        "send a whole value with quotes around its names",
    ),
    (r"\s*=", "the text is a formula of a spreadsheet", AS_TEXT),
    (r"\s*\d([.,]\d+)?E\+\d+\s*$", "the text is a number that a spreadsheet rounded", AS_TEXT),
)


class Reading(NamedTuple):
    """The cells of each line of a text, and the value of each token."""

    text: str
    rows: list[Row]
    values: Values


def parsed_framed(size: BoardSize, legend: Legend, box_cols: int, text: str) -> Parsed:
    """Read a text whose boxes have `box_cols` columns.

    Raises PuzzleError with the rule of `size`, `bad-character`, `ambiguous` or `not-a-board`.
    """
    reject_other_forms(text)
    board = _Text(size=size, legend=legend, box_cols=box_cols, text=text)
    values = values_in(legend, board.row_marks)
    board = replace(board, legend=replace(legend, values=values))
    found: dict[bytes, Parsed] = {}
    for reading in board.readings():
        read = board.parsed(reading)
        found.setdefault(read.grid.tobytes(), read)
    if len(found) > 1:
        raise ambiguous("the cells of the text can be read in two ways", size.forms)
    if not found:
        raise board.error()
    return next(iter(found.values()))


def reject_other_forms(text: str) -> None:
    """Raise PuzzleError for a text that is known not to be a board by itself."""
    for pattern, problem, remedy in OTHER_FORMS:
        if re.match(pattern, text):
            raise PuzzleError(problem, "not-a-board", remedy)


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A text of one board, and the ways to find its cells."""

    size: BoardSize
    legend: Legend
    box_cols: int
    text: str

    @property
    def side(self) -> int:
        return self.size.shape.rows

    @property
    def num_cells(self) -> int:
        return self.size.shape.num_cells

    @property
    def blanks(self) -> frozenset[str]:
        """The blank marks except the space."""
        return self.legend.open_marks - {" "}

    @cached_property
    def lines(self) -> list[Line]:
        """The lines with text, without headings and remarks; of several sections only [Puzzle]."""
        lines: list[Line] = []
        section = "puzzle"
        for start, line in lines_of(self.text):
            if not line.strip():
                continue
            heading = SECTION.fullmatch(line)
            if heading is not None:
                section = heading[1].lower()
            elif section == "puzzle" and not is_heading(line):
                text, _, _ = line.partition("#")
                text, _, _ = text.partition("//")
                if text.strip():
                    lines.append(Line(start, text))
        return lines

    @property
    def row_marks(self) -> list[str]:
        """The marks of the lines with letters or digits, without what separates cells."""
        rows = [line.text for line in self.lines if any(map(str.isalnum, line.text))]
        return [mark for mark in chain.from_iterable(rows) if mark not in BETWEEN]

    def parsed(self, reading: Reading) -> Parsed:
        cells = list(chain.from_iterable(reading.rows))
        tokens = [reading.text[start:end] for start, end in cells]
        reject_doubtful_zero(self.legend, tokens)
        kind = "words" if any(len(token) != 1 for token in tokens) else "text"
        shape = self.size.shape
        return parsed_cells(shape, self.legend, reading.text, cells, reading.values, kind)

    def readings(self) -> Iterator[Reading]:
        """Every form that makes a board of the text."""
        numbers = self.legend.of_tokens
        solid = self._solid()
        if solid is not None:
            yield Reading(self.text, [solid], self.legend.values)
            return
        for rows in (*self._fields(), number_rows(self.text) or []):
            if self._is_board(rows, numbers):
                yield Reading(self.text, rows, numbers)
        if self._is_board(self.marks, self.legend.values):
            yield Reading(self.text, self.marks, self.legend.values)
        elif not self.blanks & self._marks_of_rows():
            yield from self._columns()

    def _is_board(self, rows: list[Row], values: Values) -> bool:
        """Whether these are T known cells, and S in each of S lines."""
        cells = list(chain.from_iterable(rows))
        is_whole = len(rows) != self.side or all(len(row) == self.side for row in rows)
        is_known = all(self.text[start:end] in values for start, end in cells)
        return len(cells) == self.num_cells and is_whole and is_known

    def _solid(self) -> Row | None:
        """The cells of a board without gaps in the only line, which may have other fields."""
        if len(self.lines) != 1:
            return None
        start, line = self.lines[0]
        known = {*self.legend.values, "+"} - {" "}  # HoDoKu writes + before a solved cell
        found: list[Row] = []
        for match in TOKEN.finditer(line):
            places = range(start + match.start(), start + match.end())
            row = [(place, place + 1) for place in places if self.text[place] != "+"]
            if len(row) == self.num_cells and known.issuperset(match[0]):
                found.append(row)
        if len(found) == 1:
            return found[0]
        return None

    def _fields(self) -> Iterator[list[Row]]:
        """The cells of a table: S fields in each of S lines, and an empty field is a blank."""
        for separator in FIELD_SEPARATORS:
            counts = {line.text.count(separator) for line in self.lines}
            if len(self.lines) == self.side and counts == {self.side - 1}:
                yield [_fields_of(line, separator) for line in self.lines]

    def _marks_of_rows(self) -> set[str]:
        """The marks of the lines that have a digit."""
        marks: set[str] = set()
        for _, line in self.lines:
            found = set(line) - BETWEEN
            if found - self.blanks:
                marks |= found
        return marks

    @cached_property
    def marks(self) -> list[Row]:
        """One character a cell, in the lines that are no frames."""
        used = self._marks_of_rows() or set(self.blanks)
        lines: list[tuple[str, Row]] = []
        for line in self.lines:
            lines.append((self._kind_of(line.text, used), _cells_of(line)))
        choices: list[list[Row]] = []
        for chosen in ROWS:
            choices.append([row for kind, row in lines if kind in chosen])
        for rows in choices:
            if sum(map(len, rows)) == self.num_cells:
                return rows
        return choices[0]

    def _kind_of(self, line: str, used: set[str]) -> str:
        """What a line is. `used` are the marks of the lines with digits."""
        cells = [mark for mark in line if mark not in BETWEEN]
        marks = set(cells)
        if marks - self.blanks:
            return "row"
        if len(cells) == self.side and marks <= used:
            return "plus" if "+" in line else "row"
        if len(cells) == self.side and len(marks) == 1:
            return "dashes"
        if not cells or FRAME.search(line):
            return "frame"
        return "row"

    def _columns(self) -> Iterator[Reading]:
        """Boards whose blanks are spaces: each cell has its column in a line or a box."""
        lines = [text for _, text in self.lines]
        if any(map(BARS.search, lines)):
            lines = [line for line in lines if BARS.search(line) and not FRAME.search(line)]
        longest = max(map(len, lines), default=0)
        is_indented = all(line.startswith(" ") for line in lines) and longest < self.side
        if len(lines) != self.side or is_indented or any("\t" in line for line in lines):
            return
        text = "\n".join(line.ljust(max(self.side, longest)) for line in lines)
        parts = [self._parts_of(line) for line in lines_of(text)]
        for first, step in PITCHES:
            rows = [self._row_at(text, row, first, step) for row in parts]
            if all(rows):
                yield Reading(text, rows, self.legend.values)

    def _parts_of(self, line: Line) -> list[Span]:
        """The parts of a line between its bars, without what is outside of the frame."""
        bars = [line.start + match.start() for match in BARS.finditer(line.text)]
        starts = [line.start, *(bar + 1 for bar in bars)]
        ends = [*bars, line.start + len(line.text)]
        parts = list(zip(starts, ends, strict=True))
        if len(parts) in (self.side + 2, self.side // self.box_cols + 2):
            return parts[1:-1]
        return parts

    def _row_at(self, text: str, parts: list[Span], first: int, step: int) -> Row:
        """The cells of a line; empty if anything else is there, or if a part has another width."""
        num_cells, rest = divmod(self.side, len(parts))
        row: Row = []
        for start, end in parts:
            last = start + first + step * (num_cells - 1)
            cells = range(start + first, last + 1, step)
            between = [text[place] for place in range(start, end) if place not in cells]
            if rest or not last < end <= last + step or "".join(between).strip():
                return []
            row.extend((place, place + 1) for place in cells)
        marks = {text[place] for place, _ in row}
        if marks <= self.legend.values.keys():
            return row
        return []

    def error(self) -> PuzzleError:
        """Why no form makes a board of the text."""
        rows = self.marks
        cells = list(chain.from_iterable(rows))
        words = [word for _, line in self.lines for word in WORD.findall(line)]
        is_list = len(cells) == self.side * self.num_cells
        if is_list or (len(words) == self.num_cells < len(cells) and self.side < 10):
            problem = "the text has several digits in a cell, as a list of candidates has"
            return PuzzleError(problem, "not-a-board", self.size.forms)
        if len(cells) < self.num_cells and self.text.strip().isdigit():
            count = f"the text has {len(cells)} digits instead of {self.num_cells}"
            problem = f"{count}: a spreadsheet drops zeros at the beginning of a number"
            return PuzzleError(problem, self.size.rule, AS_TEXT)
        for place, (start, end) in enumerate(cells):
            mark = self.text[start:end]
            if mark not in self.legend.values:
                return bad_character(self._name_of(rows, place), mark, self.legend.described)
        try:
            if len(rows) == self.side:
                for number, row in enumerate(rows):
                    self.size.require_row(row, "cells", number)
            self.size.require(cells, self.num_cells, "the text", "cells")
        except PuzzleError as error:
            return error
        return ambiguous("the rows of the text have no common width", self.size.forms)

    def _name_of(self, rows: list[Row], place: int) -> tuple[int, int]:
        """The (row, column) from 1 of a cell, by its place among all cells of the text."""
        if len(rows) != self.side:
            return self.size.shape.cell_name(place)
        for number, row in enumerate(rows, start=1):
            if place < len(row):
                return number, place + 1
            place -= len(row)
        raise AssertionError("the place is beyond the cells of the text")


def _cells_of(line: Line) -> Row:
    """Every character of a line that separates no cells."""
    row: Row = []
    for place, mark in enumerate(line.text, line.start):
        if mark not in BETWEEN:
            row.append((place, place + 1))
    return row


def _fields_of(line: Line, separator: str) -> Row:
    """The fields of a line without the spaces and quotes around them, and without .0 of floats."""
    row: Row = []
    begin = line.start
    for field in line.text.split(separator):
        inner = field.strip(" \"'").removesuffix(".0")
        start = begin + field.find(inner)
        row.append((start, start + len(inner)))
        begin += len(field) + 1
    return row
