"""A puzzle as a file holds it, and errors that name its place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import CsvForm, Framing, Grid, Puzzle, PuzzleError, sized
from hrm_puzzles.reading.values import board_in


@dataclass(frozen=True, kw_only=True)
class Record:
    """A puzzle and its place, such as "line 3".

    `rating` is the text of the file, "" without one. `fields` are further ones of a request. A
    record with a `problem` is not a puzzle; its `question` is what the file has instead.
    """

    place: str
    question: object
    answer: object | None = None
    rating: str = ""
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    problem: str = ""
    remedy: str = ""


def error_at_place(name: str, place: str, problem: str, remedy: str) -> DatasetError:
    return DatasetError(f"{name}, {place}: {problem}; {remedy}.")


def board_from(puzzle: Puzzle, value: object) -> Grid:
    """Read a question or an answer without judging it. Raises PuzzleError."""
    value = board_in(value)
    if isinstance(puzzle, CsvForm) and not isinstance(value, dict):
        return puzzle.board_of(value)
    return puzzle.parse(value).grid


def is_board(puzzles: Sequence[Puzzle], value: object) -> bool:
    """Whether one of the puzzles reads a value as one board."""
    for puzzle in puzzles:
        try:
            if isinstance(puzzle, Framing):  # boards of many sizes fit: the question must be valid
                sized(puzzle, value).parse(value)
            else:
                board_from(puzzle, value)
        except PuzzleError:
            continue
        return True
    return False
