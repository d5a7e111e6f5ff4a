"""Cells in a text, and a board in lines of one character a cell, as mazes and cities are written.

The geometry never depends on trimmed lines. If a dot marks open cells, spaces around the board are
no cells. If spaces do, the first and the last line and the first column hold another character, and
blanks at the ends of lines say nothing: the longest line is as wide as the board.
Shapes: R rows, C columns.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from math import isqrt

import numpy as np

from hrm_host.reading import are_strings, is_list, is_object
from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError
from hrm_puzzles.reading.legend import (
    BoardSize,
    Legend,
    Values,
    ambiguous,
    bad_character,
    values_in,
)
from hrm_puzzles.reading.text import lines_of, plain

BOX_DRAWING = "".join(map(chr, range(0x2500, 0x2580)))
FRAME = re.compile(rf"[-=_*~{BOX_DRAWING}]{{2}}")
WORD = re.compile(rf"[^\s,;|!:'\"\[\](){{}}{BOX_DRAWING}]+")
NUMBER = re.compile(r"(-?\d{1,3}|nan|None|[._*-])(?:\.0*)?")  # also a whole float

Span = tuple[int, int]
"""The offsets of a cell in a text: its first character, and the end."""
WRITE_DOTS = "write . for open cells"
BETWEEN = frozenset(" ,;\t")  # separators of cells
OFTEN_BETWEEN = frozenset("-_* ")  # marks that are as often between the cells
DRAWN = re.compile(r"[+┌┏╔╭]\s?[-─━═]|^\s*[|│┃║]", re.MULTILINE)  # a wall between two cells


def lines_parsed(size: BoardSize, legend: Legend, text: str) -> Parsed:
    """Read lines of equal length, all cells in one line, or numbers between spaces.

    Raises PuzzleError with the rule of `size`, `bad-character`, `drawn-walls` or `ambiguous`.
    """
    shape = size.shape
    numbers = number_rows(text)
    if numbers is not None and _shape_of_rows(numbers) == shape:
        cells = [cell for row in numbers for cell in row]
        return parsed_cells(shape, legend, text, cells, legend.of_tokens, "words")
    lines = _lines_in(legend, text)
    step = 1
    if len(lines) > 1:
        if DRAWN.search(text) is not None and "+" not in legend.values:
            problem = "the walls are drawn as lines between the cells"
            remedy = f"write one character a cell: {legend.described}"
            raise PuzzleError(problem, "drawn-walls", remedy)
        step = _step_of(legend, lines)
    rows = [line[::step] for line in lines]
    marks = "".join(rows)
    values = values_in(legend, marks)
    if not values.keys() >= set(marks):
        for row, line in enumerate(rows, start=1):
            for col, mark in enumerate(line, start=1):
                if mark not in values:
                    raise bad_character((row, col), mark, legend.described)
    if len(lines) == 1:
        size.require(lines[0], shape.num_cells, "the text", "characters")
    else:
        size.require(rows, shape.rows, "the text", "lines")
        for row, line in enumerate(rows):
            size.require_row(line, "characters", row)
    return parsed_cells(shape, legend, "\n".join(lines), _cells_of(lines, step), values)


def shape_in(legend: Legend, text: str) -> GridShape | None:
    """Rows and columns of a board in a text; None if the text does not show them."""
    text = plain(text)
    numbers = number_rows(text)
    if numbers is not None:
        return _shape_of_rows(numbers)
    lines = _lines_in(legend, text)
    longest = max(map(len, lines))
    if len(lines) == 1:
        return square(longest)
    step = _step_of(legend, lines)
    return GridShape(rows=len(lines), cols=len(range(0, longest, step)))


def values_shown(legend: Legend, text: str) -> set[int]:
    """The values of the known cells in a text."""
    text = plain(text)
    values = values_in(legend, text)
    tokens: Iterable[str] = text
    numbers = number_rows(text)
    if numbers is not None:
        values = legend.of_tokens
        tokens = [text[start:end] for row in numbers for start, end in row]
    return {values[token] for token in tokens if token in values}


def shape_of(legend: Legend, notation: object) -> GridShape | None:
    """Rows and columns of a board in any notation; None if the notation does not show them.

    A board in one line or in a flat list is a square. Raises PuzzleError for a text that shows two
    shapes.
    """
    if is_object(notation):
        return shape_of(legend, notation.get("grid"))
    if isinstance(notation, str):
        return shape_in(legend, notation)
    if not is_list(notation) or not notation:
        return None
    if are_strings(notation):
        return shape_in(legend, "\n".join(notation))
    rows = list(filter(is_list, notation))
    if len(rows) == len(notation):
        return GridShape(rows=len(rows), cols=max(map(len, rows)))
    return square(len(notation))


def cells_in(notation: object) -> set[str | int]:
    """The distinct characters of a text, or the distinct values of lists."""
    if isinstance(notation, str):
        return set(notation)
    if isinstance(notation, int):
        return {notation}
    cells: set[str | int] = set()
    if is_list(notation):
        cells.update(*map(cells_in, notation))
    return cells


def square(num_cells: int) -> GridShape | None:
    """The square of so many cells; None if there is none."""
    side = isqrt(num_cells)
    if side * side != num_cells:
        return None
    return GridShape(rows=side, cols=side)


def _shape_of_rows(rows: list[list[Span]]) -> GridShape | None:
    widths = set(map(len, rows))
    if len(widths) != 1:
        return None
    return GridShape(rows=len(rows), cols=widths.pop())


def _lines_in(legend: Legend, text: str) -> list[str]:
    """The lines of a board without what surrounds it; at least one."""
    lines = _without_empty_edges(text.splitlines())
    if len(lines) < 2:
        line = lines[0]
        return [line if " " in legend.values else line.strip()]
    if _spaces_are_cells(legend, text):
        return _of_spaces(lines)
    return _without_margins(lines)


def _spaces_are_cells(legend: Legend, text: str) -> bool:
    """Whether spaces are open cells: the legend has them, and the text has no other open mark."""
    marks = legend.open_marks
    others = legend.others.get(legend.open_value, "")
    return " " in marks and not (marks - {" "} | set(others)) & set(text)


def _of_spaces(lines: list[str]) -> list[str]:
    """Restore the blanks at the ends of lines.

    Raises PuzzleError if an edge of the board holds only spaces, which could be cells or a margin,
    or if only the right side of a closed board has a gap, which could be a lost wall.
    """
    widths = set(map(len, lines))
    bare = [line.rstrip() for line in lines]
    width = max(map(len, bare))
    is_edge_blank = not bare[0] or not bare[-1] or (len(widths) == 1 and widths != {width})
    if is_edge_blank or _indent_of(lines):
        problem = "an edge of the board holds only spaces, which can be open cells or a margin"
        raise ambiguous(problem, WRITE_DOTS)
    first_column = "".join(line[:1] for line in bare)
    is_closed = len({*bare[0], *bare[-1], *first_column}) == 1
    for row, line in enumerate(bare, start=1):
        if is_closed and len(line) < width:
            problem = f"row {row} ends before the others, but walls close the other sides"
            raise ambiguous(problem, WRITE_DOTS)
    return [line.ljust(width) for line in bare]


def _without_margins(lines: list[str]) -> list[str]:
    """Remove the common indent, blanks at the ends of lines, and blank lines around the board."""
    bare = _without_empty_edges(line.rstrip() for line in lines)
    indent = _indent_of(bare)
    return [line[indent:] for line in bare]


def _without_empty_edges(lines: Iterable[str]) -> list[str]:
    """The lines without empty ones before and after them; at least one."""
    return "\n".join(lines).strip("\n").split("\n")


def _indent_of(lines: list[str]) -> int:
    """The number of blanks that begin every line, except for empty lines."""
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    return min(indents, default=0)


def _step_of(legend: Legend, lines: list[str]) -> int:
    """The distance of two cells in a line: 2 if a separator follows every cell, else 1.

    Raises PuzzleError if spaces separate the cells and can be open cells, or if all cells have two
    equal characters, or one and a space.
    """
    pairs = {line[place : place + 2] for line in lines for place in range(0, len(line), 2)}
    between = {pair[1] for pair in pairs if len(pair) == 2}
    if len(between) != 1 or not between <= BETWEEN:
        if all(pair[1:] in (pair[0], " ") for pair in pairs):
            problem = "every cell of the board can be one or two characters wide"
            raise ambiguous(problem, "write one character a cell, and . for an open cell")
        return 1
    if between == {" "} and _spaces_are_cells(legend, "".join(lines)):
        problem = "every second character is a space, which can be an open cell or a separator"
        raise ambiguous(problem, WRITE_DOTS)
    return 2


def _cells_of(lines: list[str], step: int) -> list[Span]:
    """The cells of the joined lines."""
    cells: list[Span] = []
    begin = 0
    for line in lines:
        cells += [(place, place + 1) for place in range(begin, begin + len(line), step)]
        begin += len(line) + 1
    return cells


def parsed_cells(
    shape: GridShape,
    legend: Legend,
    text: str,
    cells: Sequence[Span],
    values: Values,
    kind: str = "text",
) -> Parsed:
    """The question of these cells of a text. Raises PuzzleError for an unknown token."""
    tokens = [text[start:end] for start, end in cells]
    found = list(map(values.get, tokens))
    if None in found:
        cell = found.index(None)
        raise bad_character(shape.cell_name(cell), tokens[cell], legend.described)
    grid: Grid = np.array(found, dtype=np.int8).reshape(shape.rows, shape.cols)
    blank = legend.characters[legend.open_value]
    if legend.open_value in found:
        blank = tokens[found.index(legend.open_value)]
    notation = Notation(kind=kind, blank=blank, template=text, cells=tuple(cells))
    return Parsed(grid=grid, notation=notation)


def plain_board(shape: GridShape, legend: Legend, text: str) -> Parsed | None:
    """Read a text that holds the cells in one line or in lines; None if it holds anything else."""
    marks = set(text)
    if not {*legend.values, "\n"} >= marks:
        return None
    lines = text.split("\n")
    if len(lines) == 1:
        is_whole = len(text) == shape.num_cells
    else:
        widths = set(map(len, lines))
        is_whole = len(lines) == shape.rows and widths == {shape.cols}
        is_whole = is_whole and marks.isdisjoint(OFTEN_BETWEEN)
    if not is_whole:
        return None
    reject_doubtful_zero(legend, marks)
    cells = _cells(len(lines), len(lines[0]))
    return parsed_cells(shape, legend, text, cells, legend.values)


@cache
def _cells(rows: int, cols: int) -> tuple[Span, ...]:
    """The cells of lines of `cols` characters."""
    cells: list[Span] = []
    for row in range(rows):
        start = row * (cols + 1)
        cells += [(place, place + 1) for place in range(start, start + cols)]
    return tuple(cells)


def number_rows(text: str) -> list[list[Span]] | None:
    """The numbers of each line that has some, as a printed array has them; marks may be blanks.

    None if anything else but frames is there, or if no line has several numbers.
    """
    rows: list[list[Span]] = []
    for start, line in lines_of(text):
        if not line:
            continue
        if FRAME.search(line) and not any(mark.isalnum() for mark in line):
            continue
        row: list[Span] = []
        for word in WORD.finditer(line):
            number = NUMBER.fullmatch(word[0])
            if number is None:
                return None
            begin = start + word.start()
            row.append((begin, begin + len(number[1])))
        if row:
            rows.append(row)
    if any(len(row) > 1 for row in rows):
        return rows
    return None


def reject_doubtful_zero(legend: Legend, cells: Iterable[object]) -> None:
    """Raise PuzzleError if 0 can be a digit: another mark is a blank, and the last digit is absent.

    Other programs count the digits from 0, in hexadecimal or in lists with -1 for a blank.
    """
    if not legend.in_lists:
        return
    marks = set(cells)
    if not marks.isdisjoint(legend.last_marks) or marks.isdisjoint({"0", 0}):
        return
    last = max(legend.characters)
    found = {str(mark).upper() for mark in marks}
    blanks = {*map(str, legend.in_lists), *legend.open_marks, "NONE"}
    has_both = "0" in found and not found.isdisjoint(blanks - {"0"})
    if has_both and legend.characters[last] not in found:
        reason = f"another mark is a blank and {last} is absent"
        problem = f"0 can be a blank or a digit, because {reason}"
        remedy = f"use one blank mark and the digits from 1: {legend.described}"
        raise ambiguous(problem, remedy)
