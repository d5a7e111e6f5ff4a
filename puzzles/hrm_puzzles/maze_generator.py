"""Fresh mazes: three kinds of layouts, and a start and a goal at the wanted distance.

Sets of cells are bits of one integer, see `grid.board`. Paths are exact searches: they generate
and rate mazes and never answer for the model.
"""

from random import Random

import numpy as np

from hrm_puzzles.grid.board import GridShape, bits_of, cells_between, flags_from, levels_from
from hrm_puzzles.puzzle import Grid, require_difficulty

OPEN, WALL, START, GOAL, PATH = range(5)  # values in grids

DIFFICULTIES = ("easy", "medium", "hard")
# Moves. The published 30x30 set holds mazes whose shortest path is longer than this.
HARD_30X30 = 110
# An exponent: the path between far points of a random spanning tree grows as side**GROWTH.
GROWTH = 1.25
# Range of the share of walls. The published mazes use it (Searchformer).
WALL_SHARES = (0.3, 0.5)
# Range of the number of walls that a braided maze of 30x30 opens. Smaller mazes scale by area.
OPENINGS = (3, 12)
# Shares of steps that grow the newest branch of a spanning tree. 1.0 makes long corridors.
NEWEST_SHARES = (0.0, 0.5, 0.9, 1.0)


def generate(shape: GridShape, rng: np.random.Generator, difficulty: str) -> tuple[Grid, int]:
    """A maze, and the length of its shortest paths in moves."""
    wanted = lengths(shape, difficulty)
    # Python's generator is faster for many single draws.
    draw = Random(int(rng.integers(2**63)))
    while True:
        layout = draw.choice(LAYOUTS)
        free = layout(shape, draw)
        levels = levels_from(shape, free, _any_of(draw, free))
        if len(levels) <= wanted.start:
            # Start again from a cell that is far from the random one.
            levels = levels_from(shape, free, _any_of(draw, levels[-1]))
        if len(levels) <= wanted.start and layout is _random_walls:
            # Hardly any random layout of 30x30 has a path of 111 moves.
            goal = _any_of(draw, levels[-1])
            free = _lengthened(shape, draw, free, levels[0], goal, wanted.start)
            levels = levels_from(shape, free, levels[0])
        if len(levels) > wanted.start:
            stop = min(len(levels), wanted.stop)
            length = draw.randrange(wanted.start, stop)
            goal = _any_of(draw, levels[length])
            return _grid(shape, free, levels[0], goal), length


def lengths(shape: GridShape, difficulty: str) -> range:
    """The numbers of moves of a difficulty.

    "hard" starts above a limit, "medium" above half of it, and "easy" takes the rest.
    """
    require_difficulty(difficulty, DIFFICULTIES)
    across = (shape.num_cells**0.5 - 1) / (30 - 1)
    rounding = 1e-9  # keeps the 110 moves of 30x30 from becoming 109
    limit = int(HARD_30X30 * across**GROWTH + rounding)
    half = limit // 2
    if difficulty == "easy":
        return range(2, half + 1)
    if difficulty == "medium":
        return range(half + 1, limit + 1)
    return range(limit + 1, shape.num_cells + 1)


def _lengthened(
    shape: GridShape,
    draw: Random,
    free: int,
    start: int,
    goal: int,
    least: int,
) -> int:
    """Turn random cells of the shortest paths into walls until the paths are long enough.

    Returns the open cells. It stops early if every cell on the paths is needed.
    """
    needed = start | goal
    between = cells_between(shape, free, start, goal)
    while len(between) <= least:
        on_paths = sum(between)  # levels are disjoint, so the sum is their union
        spare = on_paths & ~needed
        if not spare:
            break
        blocked = _any_of(draw, spare)
        detour = cells_between(shape, free & ~blocked, start, goal)
        if detour:
            free &= ~blocked
            between = detour
        else:
            needed |= blocked
    return free


def _any_of(draw: Random, cells: int) -> int:
    bits = list(bits_of(cells))
    return 1 << draw.choice(bits)


def _grid(shape: GridShape, free: int, start: int, goal: int) -> Grid:
    grid_T = np.where(flags_from(shape, free), OPEN, WALL).astype(np.int8)
    grid_T[flags_from(shape, start)] = START
    grid_T[flags_from(shape, goal)] = GOAL
    return grid_T.reshape(shape.rows, shape.cols)


def _spanning_tree(shape: GridShape, draw: Random) -> int:
    """A layout with exactly one path between any two open cells.

    Its places are every second cell of every second row. Each maze draws how often a branch grows
    from the newest place instead of any place.
    """
    stride = shape.cols + 1
    steps = (2, -2, 2 * stride, -2 * stride)
    fresh = _places(shape, draw)
    newest_share = draw.choice(NEWEST_SHARES)
    root = draw.choice(sorted(fresh))
    fresh.discard(root)
    growing = [root]
    open_cells = 1 << root
    while growing:
        index = -1
        if draw.random() >= newest_share:
            index = draw.randrange(len(growing))
        place = growing[index]
        ways = [step for step in steps if place + step in fresh]
        if not ways:
            growing[index] = growing[-1]
            growing.pop()
            continue
        step = draw.choice(ways)
        target = place + step
        between = place + step // 2
        open_cells |= 1 << target | 1 << between
        growing.append(target)
        fresh.discard(target)
    return open_cells


def _places(shape: GridShape, draw: Random) -> set[int]:
    """The bits of every second cell, from the first line or, if that also fits, the second."""
    first_row = _first_line(shape.rows, draw)
    first_col = _first_line(shape.cols, draw)
    places: set[int] = set()
    for row in range(first_row, shape.rows, 2):
        for col in range(first_col, shape.cols, 2):
            places.add(row * (shape.cols + 1) + col)
    return places


def _first_line(length: int, draw: Random) -> int:
    if length % 2 == 0:
        return draw.randrange(2)
    return 0


def _braided(shape: GridShape, draw: Random) -> int:
    """A spanning tree with a few open walls, so that it has loops."""
    open_cells = _spanning_tree(shape, draw)
    stride = shape.cols + 1
    # Cells between two open ones, side by side or above each other.
    across = open_cells << 1 & open_cells >> 1
    along = open_cells << stride & open_cells >> stride
    candidates = (across ^ along) & ~open_cells
    walls = [1 << bit for bit in _cells(shape) if candidates >> bit & 1]
    area = shape.num_cells / (30 * 30)
    num_openings = max(1, round(area * draw.randint(*OPENINGS)))
    for wall in draw.sample(walls, min(len(walls), num_openings)):
        open_cells |= wall
    return open_cells


def _random_walls(shape: GridShape, draw: Random) -> int:
    wall_share = draw.uniform(*WALL_SHARES)
    num_open = shape.num_cells - round(shape.num_cells * wall_share)
    open_cells = 0
    for bit in draw.sample(_cells(shape), num_open):
        open_cells |= 1 << bit
    return open_cells


def _cells(shape: GridShape) -> list[int]:
    """The bits of all cells in reading order."""
    cells: list[int] = []
    for row in range(shape.rows):
        first = row * (shape.cols + 1)
        cells.extend(range(first, first + shape.cols))
    return cells


LAYOUTS = (_spanning_tree, _braided, _random_walls)
