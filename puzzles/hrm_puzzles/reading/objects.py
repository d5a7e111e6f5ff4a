"""Puzzles in JSON: objects in a list or one after the other, lists of boards, and ARC tasks."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from hrm_host.reading import json_from
from hrm_puzzles.puzzle import Puzzle
from hrm_puzzles.reading.record import (
    ANSWER_KEYS,
    STOP_KEYS,
    Record,
    is_board,
    question_key,
    value_of,
)

NOT_JSON = "the text is not JSON"
WRITE_OBJECTS = 'write {"puzzle": ..., "solution": ...} in a list, or one in each line'
REQUEST_KEY = "puzzle"  # an object with this key may be a request, whose other fields count
NAME_KEYS = ("task", "id", "name")  # keys with the name of an ARC task
BETWEEN_VALUES = re.compile(r"[\s,]*")
MAX_TRIED = 10  # elements of a list that are tried as boards

_DECODER = json.JSONDecoder()

Fields = dict[str, object]


def is_json(line: str) -> bool:
    """Whether a line is a whole list or object."""
    return not isinstance(value_of(line.strip()), str)


def records_of_lines(
    lines: Iterable[str], puzzles: Sequence[Puzzle], name: str
) -> Iterator[Record]:
    """The puzzles of values in a line each. A malformed line costs only itself."""
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            yield from _records_at(f"line {number}", value_of(text), puzzles, name)


def records_of_text(text: str, puzzles: Sequence[Puzzle], name: str) -> list[Record] | None:
    """The puzzles of values in any layout; None if the text does not begin with a value."""
    values = list(_values_in(text))
    if isinstance(values[0], str):
        return None
    records: list[Record] = []
    for number, value in enumerate(values, start=1):
        records += _records_at(f"object {number}", value, puzzles, name)
    return records


def _values_in(text: str) -> Iterator[object]:
    """The values of a text, one after the other; the rest of the text if it is not JSON."""
    place = 0
    while True:
        place = _end_of(BETWEEN_VALUES, text, place)
        if place == len(text):
            return
        try:
            _, end = _DECODER.raw_decode(text, place)
            yield json_from(text[place:end])
        except (ValueError, RecursionError):
            yield text[place:]
            return
        place = end


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    match = pattern.match(text, place)
    assert match is not None, "the pattern matches an empty text"
    return match.end()


def _records_at(
    place: str, value: object, puzzles: Sequence[Puzzle], name: str
) -> Iterator[Record]:
    """The puzzles of a value: itself, its elements, or the questions of its tasks."""
    if isinstance(value, str):
        yield Record(place=place, question=value, problem=NOT_JSON, remedy=WRITE_OBJECTS)
    elif isinstance(value, dict):
        yield from _records_of_object(place, cast("Fields", value), puzzles, name)
    elif isinstance(value, list) and _holds_many(cast("list[object]", value), puzzles):
        for number, element in enumerate(cast("list[object]", value), start=1):
            yield from _records_of_element(f"object {number}", element, puzzles, name)
    elif value != []:
        yield Record(place=place, question=value)


def _holds_many(values: list[object], puzzles: Sequence[Puzzle]) -> bool:
    """Whether a list holds objects or boards, and is not a board itself."""
    if any(isinstance(value, dict) for value in values):
        return True
    if is_board(puzzles, values):
        return False
    firsts: list[object] = []
    for value in values[:MAX_TRIED]:
        firsts += [value, *_pair_in(value)]
    return any(is_board(puzzles, first) for first in firsts)


def _pair_in(value: object) -> list[object]:
    """The two elements of a list of two."""
    if isinstance(value, list) and len(cast("list[object]", value)) == 2:
        return cast("list[object]", value)
    return []


def _records_of_element(
    place: str, value: object, puzzles: Sequence[Puzzle], name: str
) -> Iterator[Record]:
    pair = _pair_in(value)
    if isinstance(value, dict):
        yield from _records_of_object(place, cast("Fields", value), puzzles, name)
    elif pair and is_board(puzzles, pair[0]):
        yield Record(place=place, question=pair[0], answer=pair[1])
    else:
        yield Record(place=place, question=value)


def _records_of_object(
    place: str, fields: Fields, puzzles: Sequence[Puzzle], name: str
) -> Iterator[Record]:
    key = question_key(fields)
    if key is not None:
        yield from _records_of_question(place, fields, key, puzzles)
    elif _is_task(fields):
        yield from _records_of_task(place, fields, Path(name).stem)
    elif fields and all(_is_task(value) for value in fields.values()):
        for task, value in fields.items():
            yield from _records_of_task(f"task {task[:40]}", cast("Fields", value), task)
    elif _inner_objects(fields):
        for number, inner in enumerate(_inner_objects(fields), start=1):
            yield from _records_of_object(f"object {number}", inner, puzzles, name)
    else:
        yield Record(place=place, question=fields)


def _inner_objects(fields: Fields) -> list[Fields]:
    """The objects with questions under any names, or in the list under the only name."""
    inner = list(fields.values())
    if len(inner) == 1 and isinstance(inner[0], list):
        inner = cast("list[object]", inner[0])
    objects = [cast("Fields", value) for value in inner if isinstance(value, dict)]
    are_questions = [question_key(one) or not one.keys().isdisjoint(STOP_KEYS) for one in objects]
    if len(objects) == len(inner) and all(are_questions):
        return objects
    return []


def _records_of_question(
    place: str, fields: Fields, key: str, puzzles: Sequence[Puzzle]
) -> Iterator[Record]:
    """A question with its answer, or columns of questions and answers."""
    question = fields[key]
    answer = None
    for answer_key in ANSWER_KEYS:
        answer = fields.get(answer_key, answer)
    if isinstance(question, list) and _holds_many(cast("list[object]", question), puzzles):
        questions = cast("list[object]", question)
        answers: list[object | None] = [None] * len(questions)
        if isinstance(answer, list):
            answers[: len(answer)] = cast("list[object]", answer)
        for number, (asked, said) in enumerate(zip(questions, answers, strict=False), start=1):
            yield Record(place=f"object {number}", question=asked, answer=said)
        return
    rest: Fields = {}
    if key == REQUEST_KEY:
        rest = {name: value for name, value in fields.items() if name not in ANSWER_KEYS}
        del rest[key]
    rating = rest.pop("rating", fields.get("rating", ""))
    yield Record(place=place, question=question, answer=answer, rating=str(rating), fields=rest)


def _is_task(value: object) -> bool:
    """Whether a value is a whole ARC task. A question may name a test pair with `index`."""
    if not isinstance(value, dict):
        return False
    keys = cast("Fields", value).keys()
    return {"train", "test"} <= keys and "index" not in keys


def _records_of_task(place: str, fields: Fields, name: str) -> Iterator[Record]:
    """The test questions of a whole task, which has this name unless it names itself."""
    for key in NAME_KEYS:
        name = str(fields.get(key) or name)
    tests = fields["test"]
    if not isinstance(tests, list):
        yield Record(place=place, question=fields)
        return
    for pair in cast("list[object]", tests):
        values = cast("Fields", pair) if isinstance(pair, dict) else {}
        question = {"task": name, "input": values.get("input")}
        yield Record(place=place, question=question, answer=values.get("output") or None)
