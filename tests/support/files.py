"""The repository's files, JSON files that a test changes, and lines of JSON."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@contextmanager
def edited(file: Path) -> Iterator[Any]:
    """Give the content of a JSON file, and write it back as the test leaves it."""
    content = json.loads(file.read_text())
    yield content
    file.write_text(json.dumps(content))


def lines_in(text: str | bytes) -> list[Any]:
    """Return the values of a text with one JSON value in each line."""
    return list(map(json.loads, text.splitlines()))
