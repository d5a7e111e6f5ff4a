"""The machine as the doctor sees it: files below a root, answers of commands, free space. Nothing is ever changed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Level = Literal["ok", "warn", "fail"]
GIB = 1 << 30
TIMEOUT_S = 15


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at; `remedy` is the command or the step that mends it, empty where all is well."""

    name: str
    level: Level
    text: str
    remedy: str = ""


def answer_of(words: Sequence[str]) -> str | None:
    """What a command prints; None where it is missing, fails or hangs."""
    try:
        done = subprocess.run(words, capture_output=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Where to look; a test gives a directory and answers of its own."""

    root: Path = Path("/")
    work: Path = field(default_factory=Path.cwd)
    ask: Callable[[Sequence[str]], str | None] = answer_of

    def text(self, path: str) -> str | None:
        """A file's content; None where it is missing or forbidden."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return None

    def command(self, *words: str) -> str | None:
        return self.ask(words)

    def space(self, path: str | Path) -> tuple[int, int] | None:
        """Bytes in all and bytes free of the file system that holds `path`."""
        try:
            usage = shutil.disk_usage(self.root / path)
        except OSError:
            return None
        return usage.total, usage.free
