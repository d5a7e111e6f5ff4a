"""Sudoku as people write it: one string, many lines with or without frames, nested or flat lists.

`parsed` reads every notation into digits (0 blank) and remembers the form; `written` writes the same form again.
What a grid means (clashes, solutions) is judged in `sudoku_rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sized
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np

from hrm_puzzles.grid.notation import shown
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError
from hrm_puzzles.sudoku.board import Board

BLANKS = ".0*_-"
CELLS = re.compile("[^|+=, \t\r\n\u2500-\u257f]+")  # anything but line ends and what is drawn between cells
HEADERS = ("#", "[")  # lines of the .sdk form: "#A author", "[Puzzle]"
MAX_TEXT = 4000  # characters: every known form of a 9x9 board, with room for headers


def parsed(board: Board, notation: object) -> Parsed:
    """Read any notation; raises PuzzleError with the rule `not-a-puzzle`, `wrong-length` or `bad-character`."""
    if isinstance(notation, str):
        return _from_text(board, notation)
    if isinstance(notation, list):
        return _from_list(board, cast("list[object]", notation))
    raise PuzzleError(f"{shown(notation)} is not a puzzle", "not-a-puzzle", _forms(board))


def written(grid: Grid, notation: Notation) -> object:
    """The grid in the notation of a question, as a JSON value."""
    if notation.kind == "rows":
        return [[digit or notation.blank for digit in row] for row in grid.tolist()]
    cells = grid.reshape(-1)
    if notation.kind == "flat":
        return [digit or notation.blank for digit in cells.tolist()]
    text = list(notation.template)
    for offset, character in zip(notation.cells, (cells + ord("0")).tobytes().decode(), strict=True):
        text[offset] = character if character != "0" else str(notation.blank)
    return "".join(text).split("\n") if notation.kind == "lines" else "".join(text)


def from_row(board: Board, text: str) -> Grid:
    """A question or an answer as in CSV files: one character a cell, `.` or `0` for a blank, and nothing beside."""
    if len(text) != board.num_cells:
        raise _wrong_length(board, f"there are {len(text)} characters")
    digits = _digits(text)
    if digits.max() > board.side:
        cell = int(np.argmax(digits > board.side))
        raise _bad_character(shown(text[cell]), board.cell_name(cell), f"use 1 to {board.side} and . for a blank")
    return digits.reshape(board.side, board.side)


_NO_DIGIT = 127
_DIGIT_OF_CHARACTER = np.full(256, _NO_DIGIT, dtype=np.int8)
_DIGIT_OF_CHARACTER[ord(".")] = 0
_DIGIT_OF_CHARACTER[ord("0") : ord("9") + 1] = range(10)


def _digits(text: str) -> Grid:
    """The digit of each character, `_NO_DIGIT` where it is none."""
    return _DIGIT_OF_CHARACTER[np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)]


# Lists


def _from_list(board: Board, values: list[object]) -> Parsed:
    if any(isinstance(value, list) for value in values[: board.side]):
        _expect(board, values, board.side, "the list", "rows")
        rows = [_row(board, row, cells) for row, cells in enumerate(values)]
        return _from_values(board, [cell for row in rows for cell in row], "rows")
    if len(values) == board.side and all(isinstance(value, str) for value in values):
        read = _from_text(board, "\n".join(cast("list[str]", values)))
        return replace(read, notation=replace(read.notation, kind="lines"))
    _expect(board, values, board.num_cells, "the list", "values")
    return _from_values(board, values, "flat")


def _row(board: Board, row: int, cells: object) -> list[object]:
    if not isinstance(cells, list):
        raise _wrong_length(board, f"row {row + 1} is {shown(cells)} where a list is expected", row)
    _expect(board, cast("list[object]", cells), board.side, f"row {row + 1}", "values", row)
    return cast("list[object]", cells)


def _from_values(board: Board, values: list[object], kind: str) -> Parsed:
    digits = [_digit(board, cell, value) for cell, value in enumerate(values)]
    has_null = any(value is None for value in values)
    return Parsed(grid=_grid(board, digits), notation=Notation(kind=kind, blank=None if has_null else 0))


def _digit(board: Board, cell: int, value: object) -> int:
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= board.side:  # bool is an int to isinstance, but no digit to a person
        return value
    remedy = f"use the whole numbers 1 to {board.side}, and 0 or null for a blank"
    raise _bad_character(shown(value), board.cell_name(cell), remedy)


# Text


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The cells of one line of text: their offsets in the whole text, and their characters."""

    offsets: tuple[int, ...]
    characters: str


def _from_text(board: Board, text: str) -> Parsed:
    if len(text) > MAX_TEXT:
        raise _wrong_length(board, f"the text has {len(text)} characters, more than any form of a board")
    readings = _readings(board, text)
    lines = next((lines for lines in readings if _num_cells(lines) == board.num_cells), readings[0])
    _check_characters(board, lines)
    _check_lengths(board, lines)
    characters = "".join(line.characters for line in lines)
    offsets = tuple(chain.from_iterable(line.offsets for line in lines))
    first_blank = characters.strip("123456789")[:1]
    notation = Notation(kind="text", blank=first_blank or ".", template=text, cells=offsets)
    digits = _digits(characters) % _NO_DIGIT
    return Parsed(grid=digits.reshape(board.side, board.side), notation=notation)


def _readings(board: Board, text: str) -> list[list[_Line]]:
    """The ways to understand a text, the usual one first: dashes may be frames or blanks, spaces may be blanks."""
    lines = _lines(text)
    frames_dropped = [line for line in lines if line.characters.strip("-") or len(lines) == 1]
    dashes_are_rows = [line for line in lines if line.characters.strip("-") or len(line.characters) == board.side]
    readings = [frames_dropped, dashes_are_rows]
    if len(text) == board.num_cells and not text.strip(" 123456789"):
        readings.append([_Line(offsets=tuple(range(len(text))), characters=text)])
    return readings


def _lines(text: str) -> list[_Line]:
    """The cells of each line that has any; headers are left out."""
    lines: list[_Line] = []
    start = 0
    for line in text.splitlines(keepends=True):
        if not line.lstrip().startswith(HEADERS):
            runs = [range(start + run.start(), start + run.end()) for run in CELLS.finditer(line)]
            characters = "".join(CELLS.findall(line))
            lines += [_Line(offsets=tuple(chain(*runs)), characters=characters)] if runs else []
        start += len(line)
    return lines


def _num_cells(lines: list[_Line]) -> int:
    return sum(len(line.characters) for line in lines)


def _check_characters(board: Board, lines: list[_Line]) -> None:
    allowed = BLANKS + " " + "".join(map(str, range(1, board.side + 1)))
    if not "".join(line.characters for line in lines).strip(allowed):
        return
    for cell, character in _named_cells(board, lines):
        if character not in allowed:
            remedy = f"use the digits 1 to {board.side}, and one of {' '.join(BLANKS)} for a blank"
            raise _bad_character(shown(character), cell, remedy)


def _named_cells(board: Board, lines: list[_Line]) -> Iterator[tuple[tuple[int, int], str]]:
    """(row, column) and character of each cell; without one line for each row, rows are counted off."""
    if len(lines) != board.side:
        characters = "".join(line.characters for line in lines)
        yield from ((board.cell_name(cell), character) for cell, character in enumerate(characters))
        return
    for row, line in enumerate(lines, start=1):
        yield from (((row, col), character) for col, character in enumerate(line.characters, start=1))


def _check_lengths(board: Board, lines: list[_Line]) -> None:
    if len(lines) == board.side:
        for row, line in enumerate(lines):
            _expect(board, line.characters, board.side, f"row {row + 1}", "cells", row)
    _expect(board, range(_num_cells(lines)), board.num_cells, "the text", "cells")


# Errors


def _expect(board: Board, values: Sized, count: int, subject: str, noun: str, row: int | None = None) -> None:
    if len(values) != count:
        raise _wrong_length(board, f"{subject} has {len(values)} {noun} where {count} are expected", row)


def _wrong_length(board: Board, problem: str, row: int | None = None) -> PuzzleError:
    return PuzzleError(problem, "wrong-length", _forms(board), None if row is None else (row + 1, 1))


def _bad_character(what: str, cell: tuple[int, int], remedy: str) -> PuzzleError:
    return PuzzleError(f"{what} stands at row {cell[0]}, column {cell[1]}", "bad-character", remedy, cell)


def _forms(board: Board) -> str:
    side, count = board.side, board.num_cells
    return f"send {count} characters with . for a blank, {side} lines of {side}, or {side} lists of {side} numbers"


def _grid(board: Board, digits: list[int]) -> Grid:
    return np.array(digits, dtype=np.int8).reshape(board.side, board.side)
