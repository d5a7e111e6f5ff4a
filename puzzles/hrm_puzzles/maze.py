"""Mazes of 4x4 to 30x30: the answer marks a shortest path from S to G.

Text and lists are read as in `grid.notation`, and an object with start and goal apart from the grid (1 is a wall):
{"grid": [[0, 1, ...], ...], "start": [row, column], "goal": [row, column]}. Rows and columns count from 0. The answer
is the same object with "path": the cells from start to goal in walking order.
Tokens as in the published HRM data: 0 pad, 1 wall, 2 open, 3 start, 4 goal, 5 path. Sets of cells are bits of one
integer, see `grid.board`. Shapes: B batch, T cells.
"""

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid import board as grid_board
from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.puzzle import (
    Example,
    Grid,
    Hints,
    IntArray,
    Leg,
    PuzzleError,
    Route,
    require_difficulty,
)

OPEN, WALL, START, GOAL, PATH = range(5)  # values in grids
WALL_TOKEN, OPEN_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN = range(1, 6)

OBJECT_FORM = 'send {"grid": rows of 0 (open) and 1 (wall), "start": [row, column], "goal": [row, column]}'
DIFFICULTIES = ("easy", "medium", "hard")
HARD_30X30 = 110  # moves; the published 30x30 set holds mazes whose shortest path is longer
GROWTH = 1.25  # the path between far points of a random spanning tree grows as the side to the power of 5/4
WALL_SHARES = (0.3, 0.5)  # the range of the published mazes' generation (Searchformer)
OPENINGS = (3, 12)  # walls that a braided maze of 30x30 opens; smaller ones fewer by their area


@dataclass(frozen=True, kw_only=True)
class Maze(GridPuzzle):
    """Any shortest path is right. Labels mark the first (`first_path_BT`); the rating is its length in moves."""

    noun = "maze"
    wrong_marks = "the cells marked o are no shortest path"
    sides = range(4, 31)
    vocab_size = PATH_TOKEN + 1
    difficulties = DIFFICULTIES
    legend = grid_notation.Legend(
        values={"#": WALL, "█": WALL, " ": OPEN, ".": OPEN, "S": START, "G": GOAL, "o": PATH},
        characters={WALL: "#", OPEN: " ", START: "S", GOAL: "G", PATH: "o"},
        open_value=OPEN,
        pads_lines=True,
        described="# for a wall, . or a space for an open cell, S for the start and G for the goal",
    )
    marks: ClassVar = {OPEN: PATH}
    token_of_value = np.array([OPEN_TOKEN, WALL_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN], dtype=np.int32)
    value_of_token = np.array([OPEN, WALL, OPEN, START, GOAL, PATH, OPEN], dtype=np.int8)
    pictures: ClassVar = {OPEN: "  ", WALL: "██", START: "S ", GOAL: "G ", PATH: "• "}
    palette: ClassVar = {OPEN: "#ffffff", WALL: "#3b3b3b", START: "#2e9e4f", GOAL: "#d0342c", PATH: "#7db4e6"}

    def check_question(self, tokens_T: IntArray) -> None:
        """Refuse a maze without exactly one start and one goal, or without a way between them."""
        for token, name, letter in ((START_TOKEN, "start", "S"), (GOAL_TOKEN, "goal", "G")):
            cells = np.flatnonzero(tokens_T == token).tolist()
            if not cells:
                raise PuzzleError(f"there is no {name}", f"no-{name}", f"mark one open cell with {letter}")
            if len(cells) > 1:
                row, col = self.shape.cell_name(cells[1])
                problem = f"there are {len(cells)} cells {letter}, the second at row {row}, column {col}"
                raise PuzzleError(problem, f"many-{name}s", f"keep one {letter}", (row, col))
        if num_moves(self.shape, tokens_T) is None:
            raise PuzzleError("no way leads from S to G", "no-path", "open a wall between them")

    def is_right_B(self, inputs_BT: IntArray, answers_BT: IntArray) -> grid_board.BoolArray:
        """Where the answer keeps walls, start and goal, and its marked cells are one chain of the shortest length."""
        is_marked_BT = answers_BT == PATH_TOKEN
        keeps_B = ((answers_BT == inputs_BT) | ((inputs_BT == OPEN_TOKEN) & is_marked_BT)).all(axis=1)
        is_right_B = np.zeros(len(inputs_BT), dtype=np.bool_)
        kept = np.flatnonzero(keeps_B)
        for row in kept[_is_chain_B(self.shape, answers_BT[kept])].tolist():
            is_right_B[row] = num_moves(self.shape, answers_BT[row]) == is_marked_BT[row].sum() + 1
        return is_right_B

    @property
    def num_hints(self) -> int:
        return 2 + 3 * len(grid_board.NEIGHBOURS)

    def hints(self, inputs_BT: IntArray, labels_BT: IntArray) -> Hints:
        """1 is the goal; else the distance to it modulo 3, and the first of up, down, left, right that is nearer.

        Directions alone stay consistent where they are wrong: two waves that met let a cell point to one farther away.
        A wave from the goal brings the kinds; when it has come to the start, one from there marks the path.
        """
        moves_BT = self._moves_BT(inputs_BT)
        ways_BT = self._ways_BT(moves_BT)
        kinds_BT = np.where(moves_BT > 0, 2 + 3 * ways_BT + moves_BT % 3, moves_BT + 1)
        kinds_BT[inputs_BT == WALL_TOKEN] = -1
        moves_of_all_B = moves_BT.max(axis=1, where=inputs_BT == START_TOKEN, initial=0)
        marked_after_BT = 2 * moves_of_all_B[:, None] - moves_BT
        return Hints(kinds_BT, moves_BT, np.where(labels_BT == PATH_TOKEN, marked_after_BT, 0))

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[grid_board.Int32Array, grid_board.Int32Array]:
        """Of several shortest paths a turned maze marks the first, as every maze does."""
        inputs_BT, _ = super().augment_BT(rng, inputs_BT, labels_BT)
        return inputs_BT, self.first_path_BT(inputs_BT)

    def first_path_BT(self, inputs_BT: IntArray) -> grid_board.Int32Array:
        """Answers: from the start on, each move is the first of up, down, left, right that leads nearer to the goal."""
        moves_BT = self._moves_BT(inputs_BT)
        ways_BT = self._ways_BT(moves_BT)
        steps_4 = np.array([down * self.cols + right for down, right in grid_board.NEIGHBOURS])
        rows, cells = np.nonzero((inputs_BT == START_TOKEN) & (moves_BT > 1))
        labels_BT = inputs_BT.astype(np.int32)
        while len(rows):
            cells = cells + steps_4[ways_BT[rows, cells]]
            labels_BT[rows, cells] = PATH_TOKEN
            ahead = moves_BT[rows, cells] > 1
            rows, cells = rows[ahead], cells[ahead]
        return labels_BT

    def _moves_BT(self, inputs_BT: IntArray) -> grid_board.Int32Array:
        """The distance of each cell to the goal, -1 where no way leads."""
        shape = self.shape
        free, goals = (
            grid_board.bits_from(shape, cells_BT) for cells_BT in (inputs_BT != WALL_TOKEN, inputs_BT == GOAL_TOKEN)
        )
        moves_BT = np.full(inputs_BT.shape, -1, np.int32)
        for moves, level in enumerate(grid_board.levels_from(shape, free, goals)):
            moves_BT[grid_board.unpadded_BT(shape, grid_board.padded_flags(shape, level, len(inputs_BT))) == 1] = moves
        return moves_BT

    def _ways_BT(self, moves_BT: grid_board.Int32Array) -> NDArray[np.int64]:
        """The first of up, down, left, right that is one move nearer; 0 where none is."""
        board, beyond = (-1, self.rows, self.cols), 2 * self.seq_len
        around_BRC = np.pad(moves_BT.reshape(board), ((0, 0), (1, 1), (1, 1)), constant_values=beyond)
        near_4BRC = [np.roll(around_BRC, (-down, -right), axis=(1, 2)) for down, right in grid_board.NEIGHBOURS]
        is_nearer_4BRC = np.stack(near_4BRC)[:, :, 1:-1, 1:-1] == moves_BT.reshape(board) - 1
        return is_nearer_4BRC.argmax(axis=0).reshape(moves_BT.shape)

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A maze, the first of its shortest paths and the length of it in moves."""
        shape, wanted = self.shape, lengths(self.shape, difficulty)
        draw = Random(int(rng.integers(2**63)))  # many single draws, for which this is faster
        while True:
            layout = draw.choice(LAYOUTS)
            free = layout(shape, draw)
            levels = grid_board.levels_from(shape, free, _any_of(draw, free))
            if len(levels) <= wanted.start:  # from a cell far from the random one
                levels = grid_board.levels_from(shape, free, _any_of(draw, levels[-1]))
            if len(levels) <= wanted.start and layout is _random_walls:  # hardly any layout of 30x30 has 111 moves
                free = _lengthened(shape, draw, free, levels[0], _any_of(draw, levels[-1]), wanted.start)
                levels = grid_board.levels_from(shape, free, levels[0])
            if len(levels) > wanted.start:
                length = draw.randrange(wanted.start, min(len(levels), wanted.stop))
                return _example(shape, free, levels[0], _any_of(draw, levels[length]))

    def route(self, question: Grid, answer: Grid) -> Route:
        """One leg: the cells of a shortest way over the marked cells, and its moves."""
        shape, is_marked = self.shape, (question == OPEN) & (answer == PATH)
        sets = (is_marked | (question > WALL), question == START, question == GOAL)
        free, start, goal = (grid_board.bits_from(shape, is_set.reshape(1, -1)) for is_set in sets)
        way = [start]
        for level in cells_between(shape, free, start, goal)[1:]:
            near = level & grid_board.neighbours(shape, way[-1])
            way.append(near & -near)
        first, *cells = (divmod(cell.bit_length() - 1, shape.cols + 1) for cell in way)
        optimum = num_moves(shape, self.encode(question))
        assert optimum is not None, "a question without a way is refused"
        legs = [Leg(to=cells[-1], cost=len(cells), cells=cells)] if cells else []
        return Route(start=first, legs=legs, cost=len(cells) or None, optimum=optimum)

    def board_of(self, text: str) -> Grid:
        return self.read(text).grid

    def bare(self, tokens: IntArray) -> IntArray:
        return np.where(tokens == PATH_TOKEN, OPEN_TOKEN, tokens)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> grid_board.UInt64Array:
        """A maze walked backwards is the same."""
        return super().equivalence_hash_B(np.where(inputs_BT == GOAL_TOKEN, START_TOKEN, inputs_BT), labels_BT)

    def from_object(self, question: dict[object, object]) -> tuple[Grid, dict[str, object]]:
        """Further rules: `wrong-keys`, `bad-cell`, `in-wall` and `same-cell`."""
        shape = self.shape
        grid_notation.check_keys(question, ("grid", "start", "goal"), "path", OBJECT_FORM)
        described = "1 for a wall and 0 for an open cell"
        grid, rows = grid_notation.numbers_of(shape, question["grid"], (OPEN, WALL), described)
        start, goal = (grid_notation.cell_of(shape, name, question[name]) for name in ("start", "goal"))
        marked = grid_notation.cells_of(shape, "path", question.get("path", []))
        placed = [*((cell, PATH, "path") for cell in marked), (start, START, "start"), (goal, GOAL, "goal")]
        for cell, value, name in placed:
            if grid[cell] == WALL:
                raise grid_notation.error_at(cell, f"the {name} lies in a wall", "in-wall", "choose an open cell")
            grid[cell] = value
        if start == goal:
            raise grid_notation.error_at(goal, "start and goal are the same cell", "same-cell", "move one of them")
        return grid, {"grid": rows, "start": start, "goal": goal}

    def question_object(self, grid: Grid) -> dict[str, object]:
        start, goal = (np.argwhere(grid == value)[0].tolist() for value in (START, GOAL))
        return {"grid": (grid == WALL).astype(int).tolist(), "start": start, "goal": goal}

    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        """The marked cells in walking order, strays before the goal."""
        route = self.route(self.from_object({**question})[0], grid)
        way = [list(cell) for cell in (route.start, *(cell for leg in route.legs for cell in leg.cells[:-1]))]
        strays = [cell for cell in np.argwhere(grid == PATH).tolist() if cell not in way]
        return {**question, "path": [*way, *strays, list(question["goal"])]}


# Paths are exact: they generate, rate and check mazes, and never answer for the model.


def cells_between(shape: grid_board.GridShape, free: int, start: int, goal: int) -> list[int]:
    """The cells on any shortest path, by their distance from `start`; empty if there is no path."""
    levels = grid_board.levels_from(shape, free, start, goal)
    if not levels[-1] & goal:
        return []
    levels[-1] = goal
    for distance in range(len(levels) - 2, -1, -1):
        levels[distance] &= grid_board.neighbours(shape, levels[distance + 1])
    return levels


def num_moves(shape: grid_board.GridShape, tokens_T: IntArray) -> int | None:
    """Length of a shortest path, or None if there is none."""
    sets = (tokens_T != WALL_TOKEN, tokens_T == START_TOKEN, tokens_T == GOAL_TOKEN)
    free, start, goal = (grid_board.bits_from(shape, is_set_T[None]) for is_set_T in sets)
    levels = grid_board.levels_from(shape, free, start, goal)
    return len(levels) - 1 if levels[-1] & goal else None


def _is_chain_B(shape: grid_board.GridShape, answers_BT: IntArray) -> grid_board.BoolArray:
    """Where one start and one goal have one neighbour each on the path, and marked cells have two.

    Then a path leads from start to goal, and any other marks are closed rings. When the number of marks is that of a
    shortest path, there are none left for a ring.
    """
    is_start_BT, is_goal_BT = answers_BT == START_TOKEN, answers_BT == GOAL_TOKEN
    is_end_BT, is_marked_BT = is_start_BT | is_goal_BT, answers_BT == PATH_TOKEN
    has_ends_B = (is_start_BT.sum(axis=1) == 1) & (is_goal_BT.sum(axis=1) == 1)
    num_near_BT = grid_board.num_neighbours_BT(shape, is_end_BT | is_marked_BT)
    wanted_BT = is_end_BT + np.int8(2) * is_marked_BT
    return has_ends_B & ((num_near_BT == wanted_BT) | ~(is_end_BT | is_marked_BT)).all(axis=1)


def lengths(shape: grid_board.GridShape, difficulty: str) -> range:
    """The numbers of moves of a difficulty: up to half of what "hard" passes, up to that, and beyond it."""
    require_difficulty(difficulty, DIFFICULTIES)
    across = (shape.num_cells**0.5 - 1) / (30 - 1)
    limit = int(HARD_30X30 * across**GROWTH + 1e-9)  # a rounding error must not make 110 of 30x30 109
    bounds = {"easy": (2, limit // 2), "medium": (limit // 2 + 1, limit), "hard": (limit + 1, shape.num_cells)}
    least, greatest = bounds[difficulty]
    return range(least, greatest + 1)


def _lengthened(shape: grid_board.GridShape, draw: Random, free: int, start: int, goal: int, least: int) -> int:
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


def _example(shape: grid_board.GridShape, free: int, start: int, goal: int) -> Example:
    between, stride = cells_between(shape, free, start, goal), shape.cols + 1
    path = cell = start
    for level in between[1:]:  # as in `Maze.first_path_BT`
        cell = next(near for near in (cell >> stride, cell << stride, cell >> 1, cell << 1) if near & level)
        path |= cell
    question = _grid(shape, free, ((start, START), (goal, GOAL)))
    answer = _grid(shape, free, ((path, PATH), (start, START), (goal, GOAL)))
    return Example(question=question, answer=answer, rating=len(between) - 1)


def _any_of(draw: Random, cells: int) -> int:
    return 1 << draw.choice(list(grid_board.bits_of(cells)))


def _grid(shape: grid_board.GridShape, free: int, placed: tuple[tuple[int, int], ...]) -> Grid:
    grid_T = np.where(grid_board.flags_from(shape, free), OPEN, WALL).astype(np.int8)
    for cells, value in placed:
        grid_T[grid_board.flags_from(shape, cells)] = value
    return grid_T.reshape(shape.rows, shape.cols)


def _spanning_tree(shape: grid_board.GridShape, draw: Random) -> int:
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


def _braided(shape: grid_board.GridShape, draw: Random) -> int:
    open_cells = _spanning_tree(shape, draw)
    stride = shape.cols + 1
    across = open_cells << 1 & open_cells >> 1  # closed cells between two open ones, side by side or above each other
    along = open_cells << stride & open_cells >> stride
    walls = [1 << bit for bit in _cells(shape) if (across ^ along) >> bit & 1 and not open_cells >> bit & 1]
    share = shape.num_cells / 900
    for wall in draw.sample(walls, min(len(walls), max(1, round(share * draw.randint(*OPENINGS))))):
        open_cells |= wall
    return open_cells


def _random_walls(shape: grid_board.GridShape, draw: Random) -> int:
    cells = _cells(shape)
    num_open = shape.num_cells - round(shape.num_cells * draw.uniform(*WALL_SHARES))
    return sum(1 << bit for bit in draw.sample(cells, num_open))


def _cells(shape: grid_board.GridShape) -> list[int]:
    return [row * (shape.cols + 1) + col for row in range(shape.rows) for col in range(shape.cols)]


LAYOUTS = (_spanning_tree, _braided, _random_walls)
