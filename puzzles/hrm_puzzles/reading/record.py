"""Puzzles in JSON: one board, objects in a list or one after the other, columns, ARC tasks."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hrm_host.reading import is_list, is_object, json_from
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Grid, Puzzle, PuzzleError, Routed, sized
from hrm_puzzles.reading.legend import Lettered
from hrm_puzzles.reading.text import plain

QUESTION_KEYS = ("puzzle", "puzzles", "question", "questions", "quiz", "quizzes")
ANSWER_KEYS = ("solution", "solutions", "answer", "answers")
# Keys of a question if the object names no stops.
GRID_KEYS = ("grid", "board", "sudoku", "maze", "city", "value")
STOP_KEYS = ("start", "depot", "task")  # keys of an object that is a question itself
NAME_KEYS = ("task", "task_id", "id", "name")  # keys with the name of an ARC task
REQUEST_KEY = "puzzle"  # an object with this key may be a request, whose other fields count
WRITE_OBJECTS = 'write {"puzzle": ..., "solution": ...} in a list, or one in each line'
COMMENT = re.compile(r"^[ \t]*//.*$", re.MULTILINE)  # between the lines of JSON
LAST_COMMA = re.compile(r",(?=\s*[\]}])")  # of a list in Python or JavaScript
BETWEEN_VALUES = re.compile(r"[\s,;)]*")
SHORTEST = 16  # characters of the smallest board
MAX_TRIED = 10  # elements of a list, or lines, that are tried as boards

_DECODER = json.JSONDecoder()

Fields = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class PuzzleRecord:
    """A puzzle of a file or a request, and its place, such as "line 3".

    `rating` is the text of the file, "" without one. `fields` are further ones of a request. A
    record with a `problem` is not a puzzle; its `question` is what the file has instead.
    """

    place: str
    question: object
    answer: object | None = None
    rating: str = ""
    fields: Fields = field(default_factory=dict[str, object])
    problem: str = ""
    remedy: str = ""


def error_at_place(name: str, place: str, problem: str, remedy: str) -> DatasetError:
    return DatasetError(f"{name}, {place}: {problem}; {remedy}.")


def board_in(notation: object) -> object:
    """The board of a JSON text, or of an object with a question and perhaps its answer."""
    if isinstance(notation, str):
        notation = value_of(notation)
        if isinstance(notation, str):
            return notation.replace("\\n", "\n")  # as typed in a shell
    if is_object(notation):
        key = question_key(notation)
        if key is not None and _by_name(notation).keys() <= {key.lower(), *ANSWER_KEYS}:
            return board_in(notation[key])
    return notation


def value_of(text: str) -> object:
    """The list or object of a text in JSON, or as Python writes it; the text itself otherwise."""
    if text.isascii() and "[" not in text and "{" not in text:
        return text
    bare = COMMENT.sub("", plain(text)).strip(" \t\r\n,;)")
    if not bare.startswith(("[", "{")):
        return text
    of_python = bare.replace("'", '"').replace("None", "null")
    for written in (bare, LAST_COMMA.sub("", of_python)):
        with contextlib.suppress(ValueError):
            return json_from(written)
    return text


def question_key(fields: Fields) -> str | None:
    """The key of the question; None if the object is a question itself."""
    names = {key.lower(): key for key in fields}
    known = (*QUESTION_KEYS, *GRID_KEYS)
    if fields.keys() & set(STOP_KEYS):
        known = QUESTION_KEYS
    return next((names[name] for name in known if name in names), None)


def _by_name(fields: Fields) -> Fields:
    """The fields by their names in small letters."""
    return {key.lower(): value for key, value in fields.items()}


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


def is_json(line: str) -> bool:
    """Whether a line is a whole list or object."""
    return not isinstance(value_of(line.strip()), str)


def records_of_lines(
    lines: Iterable[str], puzzles: Sequence[Puzzle], name: str
) -> Iterator[PuzzleRecord]:
    """The puzzles of values in a line each. A malformed line costs only itself."""
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield from _records_at(f"line {number}", value_of(text), puzzles, name)


def records_of_text(text: str, puzzles: Sequence[Puzzle], name: str) -> list[PuzzleRecord] | None:
    """The puzzles of values in any layout; None if the text does not begin with a value."""
    values = list(_values_in(COMMENT.sub("", text)))
    if isinstance(values[0], str):
        return None
    records: list[PuzzleRecord] = []
    for number, value in enumerate(values, start=1):
        records += _records_at(f"object {number}", value, puzzles, name)
    return records


def _values_in(text: str) -> Iterator[object]:
    """The values of a text, one after the other; the rest of the text if it is not JSON."""
    place = 0
    while True:
        between = BETWEEN_VALUES.match(text, place)
        assert between is not None, "the pattern matches an empty text"
        place = between.end()
        if place == len(text):
            return
        try:
            _, end = _DECODER.raw_decode(text, place)
            yield json_from(text[place:end])
        except (ValueError, RecursionError):
            yield value_of(text[place:])
            return
        place = end


def _records_at(
    place: str, value: object, puzzles: Sequence[Puzzle], name: str
) -> Iterator[PuzzleRecord]:
    """The puzzles of a value: itself, its elements, or the questions of its tasks."""
    if isinstance(value, str):
        problem = "the text is not JSON, or an object has two values of one name"
        yield PuzzleRecord(place=place, question=value, problem=problem, remedy=WRITE_OBJECTS)
    elif is_object(value):
        yield from _records_of_object(place, value, puzzles, name)
    elif is_list(value) and _holds_many(value, puzzles):
        for number, element in enumerate(value, start=1):
            yield from _records_of_element(f"object {number}", element, puzzles, name)
    elif value != []:
        yield PuzzleRecord(place=place, question=value)


def _holds_many(values: list[object], puzzles: Sequence[Puzzle]) -> bool:
    """Whether a list holds objects or boards, and is not a board itself."""
    if any(map(is_object, values)):
        return True
    if is_board(puzzles, values):
        return False
    firsts: list[object] = []
    for value in values[:MAX_TRIED]:
        firsts += [value, *_pair_in(value)]
    return any(is_board(puzzles, first) for first in firsts)


def _pair_in(value: object) -> list[object]:
    """The two elements of a list of two."""
    if is_list(value) and len(value) == 2:
        return value
    return []


def _records_of_element(
    place: str, value: object, puzzles: Sequence[Puzzle], name: str
) -> Iterator[PuzzleRecord]:
    pair = _pair_in(value)
    if is_object(value):
        yield from _records_of_object(place, value, puzzles, name)
    elif pair and is_board(puzzles, pair[0]):
        yield PuzzleRecord(place=place, question=pair[0], answer=pair[1])
    else:
        yield PuzzleRecord(place=place, question=value)


def _records_of_object(
    place: str, fields: Fields, puzzles: Sequence[Puzzle], name: str
) -> Iterator[PuzzleRecord]:
    key = question_key(fields)
    inner = _inner_objects(fields)
    if key is not None:
        yield from _records_of_question(place, fields, key, puzzles)
    elif _is_task(fields):
        yield from _records_of_task(place, fields, Path(name).stem)
    elif fields and all(map(_is_task, fields.values())):
        for task, value in fields.items():
            if is_object(value):
                yield from _records_of_task(f"task {task[:40]}", value, task)
    elif inner:
        for number, one in enumerate(inner, start=1):
            yield from _records_of_object(f"object {number}", one, puzzles, name)
    else:
        yield PuzzleRecord(place=place, question=fields)


def _inner_objects(fields: Fields) -> list[Fields]:
    """The objects with questions under any names, or in the only list or object of `fields`.

    Beside that one may be short values, such as a count.
    """
    inner = list(fields.values())
    large = [value for value in inner if len(str(value)) >= SHORTEST]
    if len(large) == 1:
        inner = large
    if len(inner) == 1 and is_list(inner[0]):
        inner = inner[0]
    objects: list[Fields] = []
    for one in inner:
        if not is_object(one):
            return []
        if question_key(one) is None and one.keys().isdisjoint(STOP_KEYS):
            return _inner_objects(one) if len(inner) == 1 else []
        objects.append(one)
    return objects


def _records_of_question(
    place: str, fields: Fields, key: str, puzzles: Sequence[Puzzle]
) -> Iterator[PuzzleRecord]:
    """A question with its answer, or columns of questions and answers."""
    question = _column(fields[key])
    answer = None
    for answer_key in ANSWER_KEYS:
        answer = _column(_by_name(fields).get(answer_key, answer))
    if is_list(question) and _holds_many(question, puzzles):
        answers: list[object] = [None] * len(question)
        if is_list(answer):
            answers[: len(answer)] = answer
        for number, (asked, said) in enumerate(zip(question, answers, strict=False), start=1):
            yield PuzzleRecord(place=f"object {number}", question=asked, answer=said)
        return
    rest: dict[str, object] = {}
    if key == REQUEST_KEY:
        rest = {name: value for name, value in fields.items() if name not in ANSWER_KEYS}
        del rest[key]
    rating = rest.pop("rating", fields.get("rating", ""))
    yield PuzzleRecord(
        place=place, question=question, answer=answer, rating=str(rating), fields=rest
    )


def _column(value: object) -> object:
    """The values of a column that pandas writes as an object of row numbers; else the value."""
    if is_object(value) and value and all(map(str.isdigit, value)):
        return list(value.values())
    return value


def _is_task(value: object) -> bool:
    """Whether a value is a whole ARC task. A question may name a test pair with `index`."""
    if not is_object(value):
        return False
    return {"train", "test"} <= value.keys() and "index" not in value


def _records_of_task(place: str, fields: Fields, name: str) -> Iterator[PuzzleRecord]:
    """The test questions of a whole task, which has this name unless it names itself."""
    for key in NAME_KEYS:
        name = str(fields.get(key) or name)
    tests = fields["test"]
    if not is_list(tests):
        yield PuzzleRecord(place=place, question=fields)
        return
    for pair in tests:
        values = pair if is_object(pair) else {}
        question = {"task": name, "input": values.get("input")}
        yield PuzzleRecord(place=place, question=question, answer=values.get("output") or None)
