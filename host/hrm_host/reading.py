"""What people's files are read with: lines of bounded length, and JSON that is not nested without end."""

import json
from collections.abc import Iterator
from typing import Any, TextIO, cast

MAX_DEPTH = 50  # levels of JSON; a puzzle has three, and what writes or compares values may recurse


def lines_of(stream: TextIO, longest: int) -> Iterator[str]:
    """The lines of a stream with their ends; raises ValueError for one of more than `longest` characters."""
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        if len(line) > longest:
            raise ValueError(f"line {number} has more than {longest} characters")
        yield line


def json_from(text: str) -> Any:
    """`json.loads`, with a ValueError for what is nested deeper than MAX_DEPTH."""
    try:
        value: object = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = _values_inside(level)
        if not level:
            return value
    raise _too_deep()


def _values_inside(level: list[object]) -> list[object]:
    inside: list[object] = []
    for value in level:
        if isinstance(value, dict):
            inside += cast("dict[str, object]", value).values()
        elif isinstance(value, list):
            inside += cast("list[object]", value)
    return inside


def _too_deep() -> ValueError:
    return ValueError(f"its JSON is nested deeper than {MAX_DEPTH} levels")
