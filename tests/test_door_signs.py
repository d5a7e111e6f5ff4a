"""The README of a room names only what the room holds."""

import re
import tokenize

import pytest
from files import ROOT, text_of

ROOMS = ["host", "puzzles", "model", "train", "export", "calibration", "edge_runtime", "benchmarks"]
ROOMS += ["docker", "tools"]
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
A_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
A_PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*/?")


def signs_of(room: str) -> list[str]:
    """Names and paths in a room's README that can only belong to code or files."""
    text = (ROOT / room / "README.md").read_text(encoding="utf-8")
    found = []
    for sign in CODE.findall(FENCE.sub("", text)):
        is_special = any(mark in sign for mark in "._/") or sign != sign.lower()
        if is_special and A_PATH.fullmatch(sign):
            found.append(sign)
    return found


def words_of(room: str) -> set[str]:
    """Modules, and the names and whole strings of a room's code."""
    found = set()
    for path in (ROOT / room).rglob("*.py"):
        found.add(path.stem)
        with path.open("rb") as file:
            found.update(token.string.strip("\"'") for token in tokenize.tokenize(file.readline))
    return found


def is_file(room: str, sign: str) -> bool:
    """Whether a file or folder has that path in the room or in the tree."""
    path = sign.rstrip("/")
    return any(True for _ in (ROOT / room).rglob(path)) or any(True for _ in ROOT.glob(path))


def is_word(words: set[str], sign: str) -> bool:
    name = sign.rstrip("/")
    is_name = A_NAME.fullmatch(name) and words.issuperset(name.split("."))
    return name in words or bool(is_name)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_holds_what_its_sign_names(room: str):
    words = words_of(room)
    words.update(re.findall(r'"([\w.]+)"', text_of("pyproject.toml")))
    missing = []
    for sign in signs_of(room):
        if not is_file(room, sign) and not is_word(words, sign):
            missing.append(sign)
    assert missing == []
