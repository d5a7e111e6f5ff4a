"""From bytes to plain text: encodings, invisible characters, wide characters and lines."""

import codecs
import re
from typing import NamedTuple

UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
INVISIBLE = (0x00AD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF)
SPACES = (0x00A0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)
FULL_WIDTH = range(0xFF01, 0xFF5F)  # the wide forms of ! to ~
WIDE_BY = 0xFEE0  # the distance of a wide form from its ASCII character

PLAIN: dict[int, str | None] = {
    **dict.fromkeys(INVISIBLE),
    **dict.fromkeys(SPACES, " "),
    **{code: chr(code - WIDE_BY) for code in FULL_WIDTH},
}
HEADING = re.compile(
    r"\s*(grid|puzzle|sudoku|maze|board|game|no|nr)\b[\s.:#]*\d*[\s.:]*", re.IGNORECASE
)
AROUND_TEXT = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1a|^[ \t]*```\w*[ \t]*$", re.MULTILINE)
"""Colors of a terminal, the end of a DOS file, and fences of Markdown."""
_AROUND_MARKS = ("\x1b", "\x1a", "```")
_CHANGED = re.compile("[" + "".join(map(chr, PLAIN)) + "]")


class Line(NamedTuple):
    """A line without its end, and the offset of its first character in the text."""

    start: int
    text: str


def encoding_of(head: bytes) -> str:
    """The encoding of a file with these first bytes: UTF-16 if its mark is there, else UTF-8."""
    if head.startswith(UTF_16_MARKS):
        return "utf-16"
    return "utf-8-sig"


def plain(text: str) -> str:
    """The text without invisible characters, and with ASCII for wide characters and spaces."""
    if any(mark in text for mark in _AROUND_MARKS):
        text = AROUND_TEXT.sub("", text)
    if text.isascii() or _CHANGED.search(text) is None:
        return text
    return text.translate(PLAIN)


def lines_of(text: str) -> list[Line]:
    """The lines of a text with any line ends."""
    lines: list[Line] = []
    start = 0
    for line, with_end in zip(text.splitlines(), text.splitlines(keepends=True), strict=True):
        lines.append(Line(start, line))
        start += len(with_end)
    return lines


def is_heading(line: str) -> bool:
    """Whether a line is a heading such as "Grid 01"."""
    return HEADING.fullmatch(line) is not None
