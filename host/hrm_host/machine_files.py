"""The machine's files below a root, which a test replaces by a tree of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Files:
    """Reads what is there; what is missing, forbidden or switched off reads as None."""

    root: Path = Path("/")

    def text(self, path: str | Path) -> str | None:
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
        except OSError:
            return None

    def number(self, path: str | Path) -> int | None:
        """A file that holds one whole number."""
        try:
            return int(self.text(path) or "")
        except ValueError:
            return None

    def paths(self, pattern: str) -> Iterator[Path]:
        """The files of a pattern in a stable order, relative to the root."""
        for path in sorted(self.root.glob(pattern)):
            yield path.relative_to(self.root)
