"""Options of the command line that are more than a number."""

from __future__ import annotations

import re

import typer

UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
MAX_SLOTS = 1024


def slots_from(text: str) -> int | None:
    """A number of slots, or None for `auto`."""
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SLOTS:
        raise typer.BadParameter(f"{text!r} is neither auto nor 1 to {MAX_SLOTS}", param_hint="--slots")
    return int(text)


def bytes_from(text: str) -> int:
    """A number of bytes, as 2GiB, 512MiB, 800MB or 1000000."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]*)", text.strip())
    if matched is None or matched[2].upper() not in UNITS or not float(matched[1]):
        raise typer.BadParameter(f"{text!r} is no number of bytes: write it as 2GiB", param_hint="--memory-budget")
    return int(float(matched[1]) * UNITS[matched[2].upper()])
