"""Shortest paths through a maze, exactly: they generate, rate and check mazes, and never answer for the model.

Sets of cells are bits of one integer, see `grid_bits`.
"""

from __future__ import annotations

from hrm_puzzles.grid.bits import levels_from, neighbours
from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.grid.integer_bits import bits_of


def num_moves(shape: GridShape, free: int, start: int, goal: int) -> int | None:
    """Length of a shortest path, or None where there is none."""
    levels = levels_from(shape, free, start, goal)
    return len(levels) - 1 if levels[-1] & goal else None


def cells_between(shape: GridShape, free: int, start: int, goal: int) -> list[int]:
    """The cells on any shortest path, by their distance from `start`; empty where there is no path."""
    levels = levels_from(shape, free, start, goal)
    if not levels[-1] & goal:
        return []
    levels[-1] = goal
    for distance in range(len(levels) - 2, -1, -1):
        levels[distance] &= neighbours(shape, levels[distance + 1])
    return levels


def shortest_path(shape: GridShape, free: int, start: int, goal: int) -> list[int]:
    """The bits of a path from start to goal; of several the one that goes up, else down, else left, else right.

    The published form of our maze data breaks ties so at every step, beginning at the start. Empty: there is no path.
    """
    path: list[int] = []
    cell, stride = start, shape.cols + 1
    for level in cells_between(shape, free, start, goal):
        if path:
            steps = (cell >> stride, cell << stride, cell >> 1, cell << 1)
            cell = next(step for step in steps if step & level)
        path.append(cell)
    return path


def num_shortest_paths(shape: GridShape, free: int, start: int, goal: int) -> int:
    """How many right answers a maze has."""
    counts = {start: 1}
    for level in cells_between(shape, free, start, goal)[1:]:
        reached = {1 << bit: neighbours(shape, 1 << bit) for bit in bits_of(level)}
        counts = {cell: sum(n for prior, n in counts.items() if prior & near) for cell, near in reached.items()}
    return counts.get(goal, 0)
