"""ARC tasks in files, as the published folders hold them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_tasks(root: Path, tasks: Mapping[str, object]) -> Path:
    """Write a file for each task, by its path without the ending."""
    for name, task in tasks.items():
        file = root / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(task))
    return root


def random_pairs(rng: np.random.Generator, count: int, side: int = 5) -> list[dict[str, object]]:
    """Return pairs of grids with random sides up to `side`."""
    return [{"input": _grid(rng, side), "output": _grid(rng, side)} for _ in range(count)]


def _grid(rng: np.random.Generator, side: int) -> list[list[int]]:
    shape = rng.integers(1, side + 1, size=2)
    return rng.integers(10, size=shape).tolist()
