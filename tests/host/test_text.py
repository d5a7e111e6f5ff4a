"""Text that would command a terminal or turn its letters around is escaped; the rest stays."""

import sys
import unicodedata

import pytest

from hrm_host.text import is_printable, printable, printable_lines

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
def test_a_text_is_shown_in_one_line_that_commands_nothing(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert is_printable(text) == (text == shown)


def commands(character: str) -> bool:
    if unicodedata.category(character) in CONTROLS or character in MARKS:
        return True
    return unicodedata.bidirectional(character) in BIDIRECTIONAL


def test_no_control_of_unicode_is_forgotten() -> None:
    for character in map(chr, range(sys.maxunicode + 1)):
        assert is_printable(character) != commands(character), ascii(character)


def test_lines_keep_their_own_breaks() -> None:
    assert printable_lines("12\n34\r\n\x1b") == "12\n34\\r\n\\x1b"
