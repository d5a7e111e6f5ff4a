"""One thing looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`remedy` is the command or the step that mends it, empty where all is well."""

    name: str
    level: Level
    text: str
    remedy: str = ""
