"""Fresh mazes with exactly one shortest path of a stated length.

Start and goal are put into a random layout as far apart as the difficulty asks. Where several paths are shortest,
random cells that only the others use become walls until one path is left; its length does not change.
A layout is the set of open cells as bits of one integer, see `grid.board`: a spanning tree, the same with a few walls
opened, or walls thrown at random. Trees are drawn on every second row and column; a side of even length keeps one line
of wall, on a random side.
"""

from random import Random

import numpy as np

from hrm_puzzles.grid.board import GridShape, bits_of, flags_from, levels_from, neighbours
from hrm_puzzles.maze.paths import GOAL, OPEN, PATH, START, WALL, cells_between
from hrm_puzzles.puzzle import Example, Grid, require_difficulty

DIFFICULTIES = ("easy", "medium", "hard")
HARD_30X30 = 110  # moves; the published 30x30 set holds mazes whose shortest path is longer
GROWTH = 1.25  # the path between far points of a random spanning tree grows as the side to the power of 5/4
WALL_SHARES = (0.3, 0.5)  # the range of the published mazes' generation (Searchformer)
OPENINGS = (3, 12)  # walls that a braided maze of 30x30 opens; smaller ones fewer by their area


def lengths(shape: GridShape, difficulty: str) -> range:
    """The numbers of moves of a difficulty: up to half of what "hard" passes, up to that, and beyond it."""
    require_difficulty(difficulty, DIFFICULTIES)
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
        levels = levels_from(shape, free, _any_of(draw, free))
        if len(levels) <= wanted.start:  # from a cell far from the random one
            levels = levels_from(shape, free, _any_of(draw, levels[-1]))
        if len(levels) <= wanted.start and layout is _random_walls:  # hardly any layout of 30x30 has 111 moves
            free = _lengthened(shape, draw, free, levels[0], _any_of(draw, levels[-1]), wanted.start)
            levels = levels_from(shape, free, levels[0])
        if len(levels) > wanted.start:
            length = draw.randrange(wanted.start, min(len(levels), wanted.stop))
            return _example(shape, draw, free, levels[0], _any_of(draw, levels[length]))


def _lengthened(shape: GridShape, draw: Random, free: int, start: int, goal: int, least: int) -> int:
    """The open cells after random cells of shortest paths became walls, until these are long enough or stuck."""
    needed, between = start | goal, cells_between(shape, free, start, goal)
    while len(between) <= least and (spare := sum(between) & ~needed):  # levels have no cell in common
        blocked = _any_of(draw, spare)
        detour = cells_between(shape, free & ~blocked, start, goal)
        if detour:
            free, between = free & ~blocked, detour
        else:
            needed |= blocked
    return free


def _example(shape: GridShape, draw: Random, free: int, start: int, goal: int) -> Example:
    between = cells_between(shape, free, start, goal)
    path = cell = start
    for level in between[1:]:  # a random one of the shortest paths
        cell = _any_of(draw, level & neighbours(shape, cell))
        path |= cell
    while others := sum(between) & ~path:
        free &= ~_any_of(draw, others)
        between = cells_between(shape, free, start, goal)
    question = _grid(shape, free, ((start, START), (goal, GOAL)))
    answer = _grid(shape, free, ((path, PATH), (start, START), (goal, GOAL)))
    return Example(question=question, answer=answer, rating=len(between) - 1)


def _any_of(draw: Random, cells: int) -> int:
    return 1 << draw.choice(list(bits_of(cells)))


def _grid(shape: GridShape, free: int, placed: tuple[tuple[int, int], ...]) -> Grid:
    grid_T = np.where(flags_from(shape, free), OPEN, WALL).astype(np.int8)
    for cells, value in placed:
        grid_T[flags_from(shape, cells)] = value
    return grid_T.reshape(shape.rows, shape.cols)


# Layouts


def _spanning_tree(shape: GridShape, draw: Random) -> int:
    """One way between any two open cells. Branches grow from the newest place or from any, at a drawn rate."""
    steps = (2, -2, 2 * (shape.cols + 1), -2 * (shape.cols + 1))
    # The places: every second cell, starting at the first line or, where that fits too, the second.
    first_row, first_col = (draw.randrange(2) if length % 2 == 0 else 0 for length in (shape.rows, shape.cols))
    rows, cols = range(first_row, shape.rows, 2), range(first_col, shape.cols, 2)
    fresh = {row * (shape.cols + 1) + col for row in rows for col in cols}
    newest_share = draw.choice((0.0, 0.5, 0.9, 1.0))
    growing = [draw.choice(sorted(fresh))]
    fresh.discard(growing[0])
    open_cells = 1 << growing[0]
    while growing:
        index = -1 if draw.random() < newest_share else draw.randrange(len(growing))
        place = growing[index]
        ways = [step for step in steps if place + step in fresh]
        if not ways:
            growing[index] = growing[-1]
            growing.pop()
            continue
        step = draw.choice(ways)
        open_cells |= 1 << place + step | 1 << place + step // 2
        growing.append(place + step)
        fresh.discard(place + step)
    return open_cells


def _braided(shape: GridShape, draw: Random) -> int:
    """A spanning tree with some of the walls between its places opened, which makes rings."""
    open_cells = _spanning_tree(shape, draw)
    stride = shape.cols + 1
    across = open_cells << 1 & open_cells >> 1  # closed cells between two open ones, side by side or above each other
    along = open_cells << stride & open_cells >> stride
    walls = [1 << bit for bit in _cells(shape) if (across ^ along) >> bit & 1 and not open_cells >> bit & 1]
    share = shape.num_cells / 900
    for wall in draw.sample(walls, min(len(walls), max(1, round(share * draw.randint(*OPENINGS))))):
        open_cells |= wall
    return open_cells


def _random_walls(shape: GridShape, draw: Random) -> int:
    cells = _cells(shape)
    num_open = shape.num_cells - round(shape.num_cells * draw.uniform(*WALL_SHARES))
    return sum(1 << bit for bit in draw.sample(cells, num_open))


def _cells(shape: GridShape) -> list[int]:
    return [row * (shape.cols + 1) + col for row in range(shape.rows) for col in range(shape.cols)]


LAYOUTS = (_spanning_tree, _braided, _random_walls)
