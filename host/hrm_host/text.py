"""Escape untrusted text for a terminal: it may hold commands or change the writing direction."""

import re

COMMANDING = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: ESC begins a command
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the writing direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # surrogate halves, which UTF-8 cannot hold
    "]"
)


def is_printable(text: str) -> bool:
    """Whether a terminal shows this text unchanged in one line."""
    return COMMANDING.search(text) is None


def printable(text: str) -> str:
    """The text in one line; `ESC` becomes the four characters `\\x1b`."""
    return COMMANDING.sub(lambda found: ascii(found[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """The text as `printable` shows it, but with its own line breaks."""
    return "\n".join(map(printable, text.split("\n")))
