"""Cells in a text: their values, and the question that they make."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np

from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.puzzle import Grid, Notation, Parsed
from hrm_puzzles.reading.legend import Legend, ambiguous, bad_character
from hrm_puzzles.reading.text import lines_of

BOX_DRAWING = "".join(map(chr, range(0x2500, 0x2580)))
FRAME = re.compile(rf"[-=_*~{BOX_DRAWING}]{{2}}")
WORD = re.compile(rf"[^\s,;|!:'\"\[\](){{}}{BOX_DRAWING}]+")
NUMBER = re.compile(r"(-?\d{1,3}|nan|None|[._*-])(?:\.0*)?")  # also a whole float
MOST_UNKNOWN = 4  # unknown characters of a text that may be marks of other programs

Span = tuple[int, int]
"""The offsets of a cell in a text: its first character, and the end."""
Values = Mapping[str, int]


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


def plain_cells(shape: GridShape, text: str) -> tuple[Span, ...] | None:
    """The cells of a text of one line, or of its lines, without anything between them."""
    if len(text) == shape.num_cells and "\n" not in text:
        return _cells(1, shape.num_cells)
    step = shape.cols + 1
    is_long = len(text) == shape.rows * step - 1
    if is_long and text[shape.cols :: step] == "\n" * (shape.rows - 1):
        return _cells(shape.rows, shape.cols)
    return None


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


def values_in(legend: Legend, text: Sequence[str]) -> Values:
    """The value of each character of a text.

    A character that the legend lacks is a mark of another program if exactly one reading exists:
    a wall occurs several times, any other mark once, and the text has no usual mark for it.
    """
    marks = sorted(set(text))
    unknown = [mark for mark in marks if mark not in legend.values and not mark.isspace()]
    if not unknown or len(unknown) > MOST_UNKNOWN:
        return legend.values
    counts = Counter(text)
    known = {legend.values[mark] for mark in counts if mark in legend.values}
    choices: list[list[int]] = []
    for mark in unknown:
        choices.append(_possible(legend, mark, counts[mark], known))
    readings = [chosen for chosen in product(*choices) if len(set(chosen)) == len(chosen)]
    if len(readings) > 1:
        marks = " and ".join(map(repr, unknown))
        problem = f"the text has {marks}, which can be read in {len(readings)} ways"
        raise ambiguous(problem, f"use {legend.described}")
    if not readings:
        return legend.values
    return {**legend.values, **dict(zip(unknown, readings[0], strict=True))}


def _possible(legend: Legend, mark: str, count: int, known: set[int]) -> list[int]:
    """The values that a mark of another program can have."""
    possible: list[int] = []
    for value, marks in legend.others.items():
        is_once = value in legend.once
        if mark in marks and value not in known and is_once == (count == 1):
            possible.append(value)
    return possible


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
