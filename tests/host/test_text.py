"""What would command a terminal or turn its letters around is escaped; everything else stays as it is."""

import sys
import unicodedata

import pytest

from hrm_host.text import is_printable, printable, printable_lines

COMMANDING = {"Cc", "Cs", "Zl", "Zp"}  # Unicode's controls, surrogates and separators
TURNING = {
    "LRE",
    "RLE",
    "PDF",
    "LRO",
    "RLO",
    "LRI",
    "RLI",
    "FSI",
    "PDI",
}  # its classes of bidirectional controls
MARKS = "\u061c\u200e\u200f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("53..7 ist gelöst: ✓ 数独", "53..7 ist gelöst: ✓ 数独"),
        ("\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("safe\u202egnp.exe", r"safe\u202egnp.exe"),
        ("one\r\ntwo\u2028three", r"one\r\ntwo\u2028three"),
        ("\ud800", r"\ud800"),
    ],
)
def test_a_text_is_shown_in_one_line_that_commands_nothing(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert is_printable(text) == (text == shown)


def test_no_control_of_unicode_is_forgotten() -> None:
    for character in map(chr, range(sys.maxunicode + 1)):
        is_control = (
            unicodedata.category(character) in COMMANDING
            or unicodedata.bidirectional(character) in TURNING
        )
        assert is_printable(character) == (not is_control and character not in MARKS), ascii(
            character
        )


def test_lines_keep_their_own_breaks() -> None:
    assert printable_lines("12\n34\r\n\x1b") == "12\n34\\r\n\\x1b"
