"""JSON values that hold boards: the keys that programs use, and values inside of texts."""

from collections.abc import Mapping
from typing import cast

from hrm_host.reading import json_from

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
