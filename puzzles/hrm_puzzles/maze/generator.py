"""Fresh mazes with exactly one shortest path, at a stated length of it.

Start and goal are put into a random layout as far apart as the difficulty asks. Where several paths are shortest,
random cells that only the others use become walls, until one is left: its length stays what it was.
"""

from __future__ import annotations

from random import Random

import numpy as np

from hrm_puzzles.grid.bits import flags_from, levels_from, neighbours
from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.grid.integer_bits import bits_of
from hrm_puzzles.maze.board import GOAL, OPEN, PATH, START, WALL
from hrm_puzzles.maze.layouts import LAYOUTS, random_walls
from hrm_puzzles.maze.solver import cells_between
from hrm_puzzles.puzzle import Example, Grid, PuzzleError

DIFFICULTIES = ("easy", "medium", "hard")
HARD_30X30 = 110  # moves; the published 30x30 set holds mazes whose shortest path is longer
GROWTH = 1.25  # the path between far points of a random spanning tree grows as the side to the power of 5/4


def lengths(shape: GridShape, difficulty: str) -> range:
    """The numbers of moves of a difficulty: up to half of what "hard" passes, up to that, and beyond it."""
    if difficulty not in DIFFICULTIES:
        known = ", ".join(DIFFICULTIES)
        raise PuzzleError(f"there is no difficulty {difficulty[:40]!r}", "unknown-difficulty", f"use one of {known}")
    across = (shape.num_cells**0.5 - 1) / (30 - 1)
    limit = int(HARD_30X30 * across**GROWTH + 1e-9)  # a rounding error must not make 110 of 30x30 109
    bounds = {"easy": (2, limit // 2), "medium": (limit // 2 + 1, limit), "hard": (limit + 1, shape.num_cells)}
    least, greatest = bounds[difficulty]
    return range(least, greatest + 1)


def generate(shape: GridShape, rng: np.random.Generator, difficulty: str) -> Example:
    """A maze, its only shortest path and the length of it in moves."""
    wanted = lengths(shape, difficulty)
    draw = Random(int(rng.integers(2**63)))  # many single draws, for which this is faster
    while True:
        layout = draw.choice(LAYOUTS)
        free = layout(shape, draw)
        levels = _levels(shape, draw, free, wanted.start)
        if len(levels) <= wanted.start and layout is random_walls:  # hardly any layout of 30x30 has 111 moves
            free = _lengthened(shape, draw, free, levels[0], _any_of(draw, levels[-1]), wanted.start)
            levels = levels_from(shape, free, levels[0])
        if len(levels) > wanted.start:
            length = draw.randrange(wanted.start, min(len(levels), wanted.stop))
            return _example(shape, draw, free, levels[0], _any_of(draw, levels[length]))


def _levels(shape: GridShape, draw: Random, free: int, least: int) -> list[int]:
    """The distances from a random start; from a cell far from there, where no distance is as great as it must be."""
    levels = levels_from(shape, free, _any_of(draw, free))
    return levels if len(levels) > least else levels_from(shape, free, _any_of(draw, levels[-1]))


def _lengthened(shape: GridShape, draw: Random, free: int, start: int, goal: int, least: int) -> int:
    """The open cells after random cells of shortest paths became walls, until they are as long as wanted or stuck."""
    needed, between = start | goal, cells_between(shape, free, start, goal)
    while len(between) <= least and (spare := _union(between) & ~needed):
        blocked = _any_of(draw, spare)
        detour = cells_between(shape, free & ~blocked, start, goal)
        if detour:
            free, between = free & ~blocked, detour
        else:
            needed |= blocked
    return free


def _example(shape: GridShape, draw: Random, free: int, start: int, goal: int) -> Example:
    between = cells_between(shape, free, start, goal)
    path = _a_path(shape, draw, between)
    while others := _union(between) & ~path:
        free &= ~_any_of(draw, others)
        between = cells_between(shape, free, start, goal)
    question = _grid(shape, free, ((start, START), (goal, GOAL)))
    answer = _grid(shape, free, ((path, PATH), (start, START), (goal, GOAL)))
    return Example(question=question, answer=answer, rating=len(between) - 1)


def _a_path(shape: GridShape, draw: Random, between: list[int]) -> int:
    """A random shortest path, its ends included."""
    path = cell = between[0]
    for level in between[1:]:
        cell = _any_of(draw, level & neighbours(shape, cell))
        path |= cell
    return path


def _any_of(draw: Random, cells: int) -> int:
    return 1 << draw.choice(list(bits_of(cells)))


def _union(sets: list[int]) -> int:
    return sum(sets)  # the levels of a search have no cell in common


def _grid(shape: GridShape, free: int, placed: tuple[tuple[int, int], ...]) -> Grid:
    grid_T = np.where(flags_from(shape, free), OPEN, WALL).astype(np.int8)
    for cells, value in placed:
        grid_T[flags_from(shape, cells)] = value
    return grid_T.reshape(shape.rows, shape.cols)
