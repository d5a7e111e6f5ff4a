"""Text of strangers: read within bounds of length and depth, and escaped for a terminal.

Files are UTF-8, or UTF-16 with a byte order mark, as PowerShell writes it. A text may hold commands
of a terminal or change the writing direction.
"""

import codecs
import json
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeGuard, cast

# levels of JSON; a puzzle has three. The limit protects code that recurses over values
MAX_DEPTH = 50
MAX_FILE_BYTES = 1 << 28  # 256 MiB: the names of ARC's million variants take a tenth of it
UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
COMMANDING = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL and C1: ESC begins a command
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the writing direction
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # surrogate halves, which UTF-8 cannot hold
    "]"
)


def text_of(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of a file; raises ValueError beyond `most_bytes` or without UTF-8."""
    with plain_file(path).open("rb") as stream:
        return text_in(stream.read, most_bytes)


def plain_file(path: Path) -> Path:
    """The path of a file or a folder.

    Raises ValueError for a pipe, a socket or a device, which may never end, and for the pointer
    that Git leaves in place of a large file.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return path
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a plain file; copy its content into one")
    with path.open("rb") as stream:
        if stream.read(40).startswith(b"version https://git-lfs."):
            raise ValueError(f"{path} is a pointer of Git LFS; get its content with git lfs pull")
    return path


def text_in(read: Callable[[int], bytes], most_bytes: int = MAX_FILE_BYTES) -> str:
    """As `text_of`, the text of an open file from its `read`."""
    content = bytearray()
    while len(content) <= most_bytes:
        piece = read(1 << 20)  # a read reserves as much memory, which `ulimit -v` counts
        if not piece:
            return content.decode(encoding_of(content))
        content += piece
    raise ValueError(f"it has more than {most_bytes} bytes")


def encoding_of(head: bytes | bytearray) -> str:
    """The encoding of a file with these first bytes: UTF-16 if its mark is there, else UTF-8."""
    if head.startswith(UTF_16_MARKS):
        return "utf-16"
    return "utf-8-sig"


def lines_of(stream: TextIO, longest: int) -> Iterator[str]:
    """The lines of a stream with their ends; raises ValueError beyond `longest` characters."""
    number = 0
    while True:
        line = stream.readline(longest + 1)
        if not line:
            return
        number += 1
        if len(line) > longest:
            raise ValueError(f"line {number} has more than {longest} characters")
        yield line


def json_from(text: str) -> Any:
    """`json.loads` that raises ValueError for a doubled name, and for depth beyond MAX_DEPTH."""
    try:
        value: object = json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = _values_inside(level)
        if not level:
            return value
    raise _too_deep()


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("an object has two values of one name")
    return fields


def object_of(file: Path, most_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """The JSON object in a file; raises OSError, or ValueError if it holds anything else."""
    value = json_from(text_of(file, most_bytes))
    if not isinstance(value, dict):
        raise ValueError("it does not hold a JSON object")
    return cast("dict[str, Any]", value)


def _values_inside(level: list[object]) -> list[object]:
    inside: list[object] = []
    for value in level:
        if is_object(value):
            inside += value.values()
        elif is_list(value):
            inside += value
    return inside


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    """Whether a value is an object of JSON; a dict of Python may have other keys than names."""
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def is_list(value: object) -> TypeGuard[list[object]]:
    """Whether a value of JSON is a list."""
    return isinstance(value, list)


def are_strings(values: list[object]) -> TypeGuard[list[str]]:
    """Whether a list holds strings alone, and at least one."""
    return bool(values) and all(isinstance(value, str) for value in values)


def _too_deep() -> ValueError:
    return ValueError(f"its JSON is nested deeper than {MAX_DEPTH} levels")


def is_printable(text: str) -> bool:
    """Whether a terminal shows this text unchanged in one line."""
    return COMMANDING.search(text) is None


def printable(text: str) -> str:
    """The text in one line; `ESC` becomes the four characters `\\x1b`."""
    return COMMANDING.sub(lambda found: ascii(found[0])[1:-1], text)


def counted(count: int, noun: str) -> str:
    """A number with its noun, as "1 puzzle" and "1,200 puzzles"."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"


def printable_lines(text: str) -> str:
    """The text as `printable` shows it, but with its own line breaks."""
    return "\n".join(map(printable, text.split("\n")))
