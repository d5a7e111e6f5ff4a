"""Files of any content end in values or one ValueError, and text that would command is escaped."""

import io
import json
import sys
import unicodedata
from pathlib import Path

import pytest

from hrm_host.reading import (
    MAX_DEPTH,
    is_printable,
    json_from,
    lines_of,
    plain_file,
    printable,
    printable_lines,
    text_in,
)


def test_lines_are_read_up_to_their_longest_and_no_further():
    stream = io.StringIO("12\n\n1234\n12345\n")
    found = lines_of(stream, 5)
    assert [next(found) for _ in range(3)] == ["12\n", "\n", "1234\n"]
    with pytest.raises(ValueError, match="line 4 has more than 5 characters"):
        next(found)
    assert list(lines_of(io.StringIO("no end"), 6)) == ["no end"]


def test_a_text_of_powershell_is_read():
    assert text_in(io.BytesIO("né\n".encode("utf-16")).read) == "né\n"


def test_a_pointer_of_git_is_named(tmp_path: Path):
    file = tmp_path / "train.csv"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 109123456\n")
    with pytest.raises(ValueError, match=r"train.csv is a pointer of Git LFS; .* git lfs pull"):
        plain_file(file)


def test_a_text_is_read_in_pieces_up_to_its_bound():
    sizes: list[int] = []
    stream = io.BytesIO(b"x" * (3 << 20))

    def read(size: int) -> bytes:
        sizes.append(size)
        return stream.read(size)

    assert len(text_in(read)) == 3 << 20
    assert max(sizes) <= 1 << 20
    with pytest.raises(ValueError, match="more than 5 bytes"):
        text_in(io.BytesIO(b"123456").read, 5)


@pytest.mark.parametrize(
    "text", ["5", "null", '"\\ud800"', '{"a": [1, {"b": [[]]}]}', "[" * MAX_DEPTH + "]" * MAX_DEPTH]
)
def test_values_are_those_of_json(text: str):
    assert json_from(text) == json.loads(text)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
@pytest.mark.parametrize(("opens", "closes"), ["[]", ('{"a":', "}")])
def test_what_is_nested_too_deep_is_a_value_error(opens: str, closes: str, depth: int):
    with pytest.raises(ValueError, match="nested deeper than 50 levels"):
        json_from(opens * depth + "1" + closes * depth)


def test_what_is_no_json_is_a_value_error():
    for text in ("", "{", "[1,]", "9" * 5000, "\ufeff1", '{"a": 1, "b": 2, "a": 1}'):
        with pytest.raises(ValueError, match=r"."):
            json_from(text)


CONTROLS = {"Cc", "Cs", "Zl", "Zp"}  # Unicode's controls, surrogates and separators
BIDIRECTIONAL = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u061c\u200e\u200f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("53..7 ist gelöst: ✓ 数独", "53..7 ist gelöst: ✓ 数独"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("safe\u202egnp.exe", r"safe\u202egnp.exe"),
        ("one\r\ntwo\u2028three", r"one\r\ntwo\u2028three"),
    ],
)
def test_a_text_is_shown_in_one_line_that_commands_nothing(text: str, shown: str):
    assert printable(text) == shown
    assert is_printable(text) == (text == shown)


def commands(character: str) -> bool:
    if unicodedata.category(character) in CONTROLS or character in MARKS:
        return True
    return unicodedata.bidirectional(character) in BIDIRECTIONAL


def test_no_control_of_unicode_is_forgotten():
    for character in map(chr, range(sys.maxunicode + 1)):
        assert is_printable(character) != commands(character), ascii(character)


def test_lines_keep_their_own_breaks():
    assert printable_lines("12\n34\r\n\x1b") == "12\n34\\r\n\\x1b"
