"""The characters of a puzzle, the size of its board, and errors that quote a value.

Shapes: R rows, C columns.
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Protocol, runtime_checkable

from hrm_host.reading import is_list, is_object
from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.puzzle import Grid, PuzzleError

MAX_TEXT = 4000  # characters; every form of a board is shorter, including headers
MAX_SHOWN = 20  # characters of a string that an error quotes
MAX_SHOWN_KEYS = 6
MOST_UNKNOWN = 4  # unknown characters of a text that may be marks of other programs
MAX_SHOWN_NUMBER = 10**9  # an error does not quote larger integers

Cell = tuple[int, int]
Values = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The characters of a puzzle.

    `values` has every character that is read, `characters` the one that is written for each value.
    Lists may also hold the values themselves, and null for an open cell. An open cell is written
    with the character that the question uses for it. `described` explains the characters in errors.
    `others` has the marks of other programs for a value; one counts if the text lacks the value.
    The values in `once` are those of a single cell.
    `in_lists` has further values that lists and tables may hold.
    """

    values: Mapping[str, int]
    characters: Mapping[int, str]
    open_value: int
    described: str
    others: Mapping[int, str] = field(default_factory=dict[int, str])
    once: tuple[int, ...] = ()
    in_lists: Mapping[int | str, int] = field(default_factory=dict[int | str, int])

    @cached_property
    def open_marks(self) -> frozenset[str]:
        """The characters of an open cell."""
        marks = self.values.items()
        return frozenset(mark for mark, value in marks if value == self.open_value)

    @cached_property
    def row_marks(self) -> frozenset[str]:
        """The characters that a line of a board may hold."""
        return frozenset(self.values).union(*self.others.values())

    @cached_property
    def of_tokens(self) -> Mapping[str, int]:
        """The value of each number as text, and of each character."""
        extras = {str(extra): value for extra, value in self.in_lists.items()}
        return {**{str(value): value for value in self.characters}, **extras, **self.values}

    @cached_property
    def last_marks(self) -> frozenset[object]:
        """How the greatest value is written: as a number, its digits, or its character."""
        last = max(self.characters)
        return frozenset((last, str(last), self.characters[last]))

    @cached_property
    def of_scalars(self) -> Mapping[object, int]:
        """The value of each number, also as text, of each character, and of null."""
        numbers = {value: value for value in self.characters}
        return {**self.of_tokens, **numbers, **self.in_lists, None: self.open_value}


@runtime_checkable
class Lettered(Protocol):
    """A puzzle with a legend, whose boards files hold and the web page draws as symbols."""

    @property
    def legend(self) -> Legend: ...

    def board_of(self, board: Any) -> Grid:
        """Read a question or an answer without judging it: text or lists. Raises PuzzleError."""
        ...


@dataclass(frozen=True, kw_only=True)
class BoardSize:
    """The required size of a board, and the rule and the remedy of errors about it."""

    shape: GridShape
    rule: str
    forms: str

    def error(self, problem: str) -> PuzzleError:
        return PuzzleError(problem, self.rule, self.forms)

    def error_in_row(self, problem: str, row: int) -> PuzzleError:
        """An error about a row, counted from 0. It points to the row's first cell."""
        return PuzzleError(problem, self.rule, self.forms, (row + 1, 1))

    def require(self, values: Sized, count: int, subject: str, noun: str) -> None:
        if len(values) != count:
            raise self.error(_wrong_count(values, count, subject, noun))

    def require_row(self, values: Sized, noun: str, row: int) -> None:
        """Require one value per column in a row, counted from 0."""
        if len(values) != self.shape.cols:
            problem = _wrong_count(values, self.shape.cols, f"row {row + 1}", noun)
            raise self.error_in_row(problem, row)

    def rows_of(self, values: object) -> list[list[object]]:
        """Require a list of R lists of C values each."""
        if not is_list(values):
            raise self.error(f"a list of rows is expected, but the value is {shown(values)}")
        self.require(values, self.shape.rows, "the list", "rows")
        rows: list[list[object]] = []
        for number, row in enumerate(values):
            if not is_list(row):
                problem = f"row {number + 1} is {shown(row)} instead of a list"
                raise self.error_in_row(problem, number)
            self.require_row(row, "values", number)
            rows.append(row)
        return rows


def _wrong_count(values: Sized, count: int, subject: str, noun: str) -> str:
    return f"{subject} has {len(values)} {noun} instead of {count}"


def size_of(shape: GridShape) -> BoardSize:
    lines = f"{shape.rows} lines of {shape.cols} characters"
    text = f"{shape.num_cells} characters at once"
    lists = f"{shape.rows} lists of {shape.cols}"
    forms = f"send {lines}, {text} or {lists}"
    return BoardSize(shape=shape, rule="wrong-size", forms=forms)


def bad_character(cell: Cell, value: object, described: str) -> PuzzleError:
    """An error about the value of the cell at (row, column) from 1."""
    row, col = cell
    problem = f"the cell at row {row}, column {col} is {shown(value)}"
    return PuzzleError(problem, "bad-character", f"use {described}", cell)


def shown(value: object) -> str:
    """A short form of any value, for error messages."""
    if isinstance(value, str):
        return ascii(value[:MAX_SHOWN])
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(value)
    if isinstance(value, int) and abs(value) < MAX_SHOWN_NUMBER:
        return str(value)
    if is_object(value):
        keys = ", ".join(map(shown, list(value)[:MAX_SHOWN_KEYS]))
        return f"an object with the keys {keys or 'none'}"
    return f"a value of type {type(value).__name__}"


def ambiguous(problem: str, remedy: str) -> PuzzleError:
    """An error about a text that can be read in two ways."""
    return PuzzleError(problem, "ambiguous", remedy)


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
