"""A puzzle as a file or a request holds it: its board, its place, and the keys of JSON objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from hrm_host.reading import json_from
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Grid, Puzzle, PuzzleError, Routed, sized
from hrm_puzzles.reading.legend import Lettered

QUESTION_KEYS = ("puzzle", "puzzles", "question", "questions", "quiz", "quizzes")
ANSWER_KEYS = ("solution", "solutions", "answer", "answers")
GRID_KEYS = (
    "grid",
    "board",
    "sudoku",
    "maze",
    "city",
)  # keys of a question if the object names no stops
STOP_KEYS = ("start", "depot", "task")  # keys of an object that is a question itself


def board_in(notation: object) -> object:
    """The board of a JSON text, or of an object with a question and perhaps its answer."""
    if isinstance(notation, str):
        notation = value_of(notation)
    if isinstance(notation, dict):
        fields = cast("dict[str, object]", notation)
        key = question_key(fields)
        if key is not None and fields.keys() <= {key, *ANSWER_KEYS}:
            return board_in(fields[key])
    return notation


def value_of(text: str) -> object:
    """The list or object of a JSON text; the text itself if it is not JSON."""
    if text.lstrip("\ufeff \t\r\n")[:1] not in ("[", "{"):
        return text
    try:
        return json_from(text.lstrip("\ufeff"))
    except ValueError:
        return text


def question_key(fields: Mapping[str, object]) -> str | None:
    """The key of the question; None if the object is a question itself."""
    for key in QUESTION_KEYS:
        if key in fields:
            return key
    if fields.keys() & set(STOP_KEYS):
        return None
    for key in GRID_KEYS:
        if key in fields:
            return key
    return None


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
    if isinstance(puzzle, Lettered) and not isinstance(value, dict):
        return puzzle.board_of(value)
    return puzzle.parse(value).grid


def is_board(puzzles: Sequence[Puzzle], value: object) -> bool:
    """Whether one of the puzzles reads a value as one board."""
    for puzzle in puzzles:
        try:
            if isinstance(puzzle, Routed):  # boards of many sizes fit: the question must be valid
                sized(puzzle, value).parse(value)
            else:
                board_from(puzzle, value)
        except PuzzleError:
            continue
        return True
    return False
