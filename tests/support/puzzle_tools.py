"""Cells of a grid, boards and their answers, and ARC tasks in folders as they are published."""

import json
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle

Cell = tuple[int, int]


def cells_where(is_set: NDArray[np.bool_]) -> list[Cell]:
    rows, cols = np.nonzero(is_set)
    return list(zip(rows.tolist(), cols.tolist(), strict=True))


def subsets(cells: list[Cell]) -> list[frozenset[Cell]]:
    found = []
    for size in range(len(cells) + 1):
        found.extend(map(frozenset, combinations(cells, size)))
    return found


def open_maze(rows: int, cols: int) -> str:
    """Return a maze without walls, from one corner to the other."""
    lines = ["." * cols] * rows
    lines[0] = "S" + lines[0][1:]
    lines[-1] = lines[-1][:-1] + "G"
    return "\n".join(lines)


def question_of(kind: str, difficulty: str = "easy") -> str:
    puzzle = registry.get(kind)
    return str(puzzle.asked(puzzle.generate(np.random.default_rng(3), difficulty).question, ""))


def solved_boards(puzzle: Puzzle, count: int) -> list[dict[str, object]]:
    """Return questions with their answers, as the page exports them."""
    rng = np.random.default_rng(3)
    boards = []
    for _ in range(count):
        example = puzzle.generate(rng, "easy")
        question = puzzle.asked(example.question, "")
        boards.append({"puzzle": question, "solution": puzzle.asked(example.answer, "")})
    return boards


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
