"""The bundles in the package, and finding a bundle by its path or name."""

import re
from pathlib import Path

from hrm_edge_runtime.contract.manifest import BundleError

SHIPPED_BUNDLES = Path(__file__).parents[1] / "bundles"
DEFAULT_NAME = "sudoku"


def shipped_bundles() -> dict[str, Path]:
    """The bundles in the package by name: the default first, 7x7 before 15x15."""
    found = SHIPPED_BUNDLES.glob("*.bundle")
    by_size = {path: re.sub(r"\d+", lambda digits: digits[0].zfill(3), path.name) for path in found}
    paths = sorted(by_size, key=lambda path: (path.stem != DEFAULT_NAME, by_size[path]))
    return {path.stem: path for path in paths}


def find_bundle(name: str | None = None) -> Path:
    """The directory of a bundle given by path or shipped name; without a name, the shipped default."""
    shipped = shipped_bundles()
    if name is not None and Path(name).exists():
        return Path(name)
    name = name or DEFAULT_NAME
    if name not in shipped:
        raise BundleError(
            f"{name} is neither a directory nor a shipped bundle: give a path or one of {list(shipped)}."
        )
    return shipped[name]
