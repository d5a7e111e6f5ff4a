"""From bytes to plain text: encodings, invisible characters, characters like ASCII, and lines."""

import re
import unicodedata
from typing import NamedTuple

INVISIBLE = ("Cf", "Mn", "Me")  # Unicode's categories: they change or join other characters
LONGEST_WRITTEN = 3  # characters that one stands for, as an ellipsis for three dots
QUOTES = "\"'`“”‘’"
HEADING = r"[\s#/;%\[]*({})\b[\s.:#\]]*\d{{0,4}}[\s.:|]*"
ANY_HEADING = re.compile(
    HEADING.format("(grid|puzzle|sudoku|maze|board|game|solution|answer)s?|no|nr") + r"|\s*=+\s*",
    re.IGNORECASE,
)
ANSWER_HEADING = re.compile(HEADING.format("solution|answer"), re.IGNORECASE)
AROUND_TEXT = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1a|^[ \t]*```\w*[ \t]*$", re.MULTILINE)
"""Colors of a terminal, the end of a DOS file, and fences of Markdown."""
AROUND_LIST = re.compile(
    r"^[ \t]*[A-Za-z][^\n='\"(){}]*=[ \t]*(?:new [^\n{]*)?(?=[\w.]*\(?[\[{(]|$)"
    r"|(?<![\w.])[A-Za-z][\w.]*\((?=[\[{(])|(?:dtype|device)=[\w'<:.]*",
    re.MULTILINE,
)
"""Names and calls before a list, as in `grid = np.array([`, and what a call has after it."""


class Line(NamedTuple):
    """A line without its end, and the offset of its first character in the text."""

    start: int
    text: str


def plain(text: str) -> str:
    """The text without invisible characters, and with ASCII for what looks or counts like it."""
    if "\x1b" in text or "\x1a" in text or "```" in text:
        text = AROUND_TEXT.sub("", text)
    if "=" in text or "(" in text:
        text = AROUND_LIST.sub("", text)
    if text.isascii():
        return text
    marks = {mark for mark in text if not mark.isascii()}
    return text.translate({ord(mark): _plain_mark(mark) for mark in marks})


def _plain_mark(mark: str) -> str:
    kind = unicodedata.category(mark)
    if kind in INVISIBLE:
        return ""
    if kind == "Zs":
        return " "
    if kind == "Pd" or mark == "−":
        return "-"
    number = unicodedata.numeric(mark, -1)
    if number in range(10):
        return str(int(number))
    written = unicodedata.normalize("NFKC", mark)
    if len(written) > LONGEST_WRITTEN:
        return mark
    return written


def lines_of(text: str) -> list[Line]:
    """The lines of a text with any line ends."""
    lines: list[Line] = []
    start = 0
    for line, with_end in zip(text.splitlines(), text.splitlines(keepends=True), strict=True):
        lines.append(Line(start, line))
        start += len(with_end)
    return lines


def is_heading(line: str) -> bool:
    """Whether a line is a heading such as "Grid 01", or parts boards as ===== does."""
    return ANY_HEADING.fullmatch(line) is not None
