"""The bundles in the package, and finding a bundle by its path or name."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hrm_edge_runtime.contract.bundle import Bundle

SHIPPED_BUNDLES = Path(__file__).parents[1] / "bundles"
DEFAULT_NAME = "sudoku"


def shipped_bundles() -> dict[str, Path]:
    """The bundles in the package by name: the default first, 7x7 before 15x15."""
    found = SHIPPED_BUNDLES.glob("*.bundle")
    return {path.stem: path for path in sorted(found, key=_place)}


def _place(path: Path) -> tuple[bool, str]:
    """Sort key of a bundle. Numbers get leading zeros, so they sort by value."""
    padded = re.sub(r"\d+", lambda digits: digits[0].zfill(3), path.name)
    return path.stem != DEFAULT_NAME, padded


def find_bundle(name: str | None = None) -> Path:
    """The directory of a bundle, from its path or its shipped name; without a name, the default."""
    shipped = shipped_bundles()
    if name is not None and Path(name).exists():
        return Path(name)
    name = name or DEFAULT_NAME
    if name not in shipped:
        from hrm_edge_runtime.contract.manifest import BundleError

        raise BundleError(
            f"{name} is neither a directory nor a shipped bundle: "
            f"give a path or one of {list(shipped)}."
        )
    return shipped[name]


def open_bundle(name: str | None = None) -> "Bundle":
    """The bundle that `find_bundle` finds."""
    from hrm_edge_runtime.contract.bundle import Bundle

    return Bundle.open(find_bundle(name))
