"""Text of strangers on its way to a terminal: what would command it, or change the order of its letters, is escaped."""

import re

COMMANDING = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: ESC begins a command, and line breaks begin another line
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of the writing direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # halves of surrogate pairs, which no UTF-8 can hold
    "]"
)


def is_printable(text: str) -> bool:
    """Whether a terminal shows this text in one line, as it is."""
    return COMMANDING.search(text) is None


def printable(text: str) -> str:
    """The text in one line; `ESC` becomes the four characters `\\x1b`."""
    return COMMANDING.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """The text with its own line breaks."""
    return "\n".join(map(printable, text.split("\n")))
