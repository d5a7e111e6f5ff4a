"""A file can be long, deep or nonsense, and still ends in its values or in one ValueError."""

import io
import json

import pytest

from hrm_host.reading import MAX_DEPTH, json_from, lines_of


def test_lines_are_read_up_to_their_longest_and_no_further() -> None:
    stream = io.StringIO("12\n\n1234\n12345\n")
    found = lines_of(stream, 5)
    assert [next(found) for _ in range(3)] == ["12\n", "\n", "1234\n"]
    with pytest.raises(ValueError, match="line 4 has more than 5 characters"):
        next(found)
    assert list(lines_of(io.StringIO("no end"), 6)) == ["no end"]


@pytest.mark.parametrize(
    "text", ["5", "null", '"\\ud800"', '{"a": [1, {"b": [[]]}]}', "[" * MAX_DEPTH + "]" * MAX_DEPTH]
)
def test_values_are_those_of_json(text: str) -> None:
    assert json_from(text) == json.loads(text)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize(("opens", "closes"), ["[]", ('{"a":', "}")])
def test_what_is_nested_too_deep_is_a_value_error(opens: str, closes: str, depth: int) -> None:
    with pytest.raises(ValueError, match="nested deeper than 50 levels"):
        json_from(opens * depth + "1" + closes * depth)


def test_what_is_no_json_is_a_value_error() -> None:
    for text in ("", "{", "[1,]", "9" * 5000, "\ufeff1"):
        with pytest.raises(ValueError, match=r"."):
            json_from(text)
