"""Mazes of 4x4 to 30x30: the answer marks a shortest path from S to G.

Text and lists are read as in `grid.notation`. A JSON object holds start and goal apart from the
grid, in which 1 is a wall:

    {"grid": [[0, 1, ...], ...], "start": [row, column], "goal" or "end": [row, column]}

Rows and columns count from 0. The answer is the same object with "path": the cells from start to
goal in walking order.
Tokens are those of the published HRM data: 0 pad, 1 wall, 2 open, 3 start, 4 goal, 5 path.
Sets of cells are bits of one integer, see `grid.board`. Shapes: B batch, T cells.

A worked example, the maze "S G" of 1 x 3 cells:

    cell                        S    open  G
    `_moves_BT`                 2    1     0     moves to the goal
    `_ways_BT`                  3    3     0     right is number 3 of `NEIGHBORS`; 0 at the goal
    `first_path_BT`             3    5     4     start, path, goal
    `hints`, kinds_BT           13   12    1     2 + 3 * way + moves % 3; 1 at the goal
    `hints`, after_BT           2    1     0     the wave from the goal takes 2 cycles to S
    `hints`, answer_after_BT    0    3     0     then the path is marked from S on
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hrm_puzzles import maze_generator
from hrm_puzzles.grid.board import (
    NEIGHBORS,
    GridShape,
    bits_from,
    cells_between,
    levels_from,
    neighbors,
    num_neighbors_BT,
    padded_flags,
    unpadded_BT,
)
from hrm_puzzles.grid.notation import cell_of, cells_of, check_keys, numbers_of
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.maze_generator import GOAL, OPEN, PATH, START, WALL
from hrm_puzzles.puzzle import (
    BoolArray,
    Example,
    Grid,
    Hints,
    Int32Array,
    Int64Array,
    IntArray,
    Leg,
    PuzzleError,
    Route,
    UInt64Array,
)
from hrm_puzzles.reading.legend import Legend

WALL_TOKEN, OPEN_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN = range(1, 6)

OBJECT_FORM = (
    'send {"grid": rows of 0 (open) and 1 (wall), "start": [row, column], "goal": [row, column]}'
)


@dataclass(frozen=True, kw_only=True)
class Maze(GridPuzzle):
    """Any shortest path is right. Labels mark the first one, see `first_path_BT`.

    The rating is the length of the path in moves.
    """

    noun = "maze"
    wrong_marks = "the cells marked o are not a shortest path"
    sides = range(4, 31)
    vocab_size = PATH_TOKEN + 1
    difficulties = maze_generator.DIFFICULTIES
    legend = Legend(
        values={"#": WALL, "█": WALL, " ": OPEN, ".": OPEN, "S": START, "G": GOAL, "o": PATH},
        characters={WALL: "#", OPEN: " ", START: "S", GOAL: "G", PATH: "o"},
        open_value=OPEN,
        described="# for a wall, . or a space for an open cell, S for the start and G for the goal",
        others={WALL: "Xx*1@%W■▓⬛", OPEN: "0_·⬜", START: "s@AE", GOAL: "gEeXxBFfTt"},
        once=(START, GOAL),
    )
    marks: ClassVar = {OPEN: PATH}
    wall = WALL
    wall_noun = "wall"
    stops = (START, GOAL)
    keys = ("grid", "start")
    token_of_value = np.array(
        [OPEN_TOKEN, WALL_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN], dtype=np.int32
    )
    value_of_token = np.array([OPEN, WALL, OPEN, START, GOAL, PATH, OPEN], dtype=np.int8)
    pictures: ClassVar = {OPEN: "  ", WALL: "██", START: "S ", GOAL: "G ", PATH: "• "}

    def check_question(self, tokens_T: IntArray) -> None:
        """Require exactly one start, exactly one goal, and a path between them."""
        self.require_one(tokens_T, START_TOKEN, "start", "S")
        self.require_one(tokens_T, GOAL_TOKEN, "goal", "G")
        if num_moves(self.shape, tokens_T) is None:
            problem = "S and G are not connected"
            raise PuzzleError(problem, "no-path", "open a wall between them")

    def is_right_B(self, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
        """Whether the marked cells are a chain of the shortest length and nothing else changed."""
        is_marked_BT = answers_BT == PATH_TOKEN
        is_newly_marked_BT = (inputs_BT == OPEN_TOKEN) & is_marked_BT
        keeps_B = ((answers_BT == inputs_BT) | is_newly_marked_BT).all(axis=1)
        is_right_B = np.zeros(len(inputs_BT), dtype=np.bool_)
        kept = np.flatnonzero(keeps_B)
        chains = kept[_is_chain_B(self.shape, answers_BT[kept])]
        for row in chains.tolist():
            num_marked = is_marked_BT[row].sum()
            is_right_B[row] = num_moves(self.shape, answers_BT[row]) == num_marked + 1
        return is_right_B

    @property
    def num_hints(self) -> int:
        return 2 + 3 * len(NEIGHBORS)

    def hints(self, inputs_BT: IntArray, labels_BT: IntArray) -> Hints:
        """The direction and distance from each cell to the goal, and when a cell can know them.

        Kind 1 is the goal. Every other kind joins the distance modulo 3 and the first of up, down,
        left and right that leads nearer. The distance exposes errors that directions alone hide:
        if two waves meet, a cell could point to a cell that is farther away.
        A wave from the goal brings the kinds. When it reaches the start, a second wave marks the
        path from there.
        """
        moves_BT = self._moves_BT(inputs_BT)
        ways_BT = self._ways_BT(moves_BT)
        kinds_BT = np.where(moves_BT > 0, 2 + 3 * ways_BT + moves_BT % 3, moves_BT + 1)
        kinds_BT[inputs_BT == WALL_TOKEN] = -1
        start_moves_B = moves_BT.max(axis=1, where=inputs_BT == START_TOKEN, initial=0)
        marked_after_BT = 2 * start_moves_B[:, None] - moves_BT
        answer_after_BT = np.where(labels_BT == PATH_TOKEN, marked_after_BT, 0)
        return Hints(kinds_BT, moves_BT, answer_after_BT)

    def augment_BT(
        self,
        rng: np.random.Generator,
        inputs_BT: IntArray,
        labels_BT: IntArray,
    ) -> tuple[Int32Array, Int32Array]:
        """Turn the questions and mark the first shortest path of each again."""
        inputs_BT, _ = super().augment_BT(rng, inputs_BT, labels_BT)
        return inputs_BT, self.first_path_BT(inputs_BT)

    def first_path_BT(self, inputs_BT: IntArray) -> Int32Array:
        """Mark the first shortest path of each question.

        From the start, each move takes the first of up, down, left and right that leads nearer.
        """
        moves_BT = self._moves_BT(inputs_BT)
        ways_BT = self._ways_BT(moves_BT)
        steps_4 = np.array([down * self.cols + right for down, right in NEIGHBORS])
        labels_BT = inputs_BT.astype(np.int32)
        # All rows walk together. A row leaves when its next move enters the goal.
        rows, cells = np.nonzero((inputs_BT == START_TOKEN) & (moves_BT > 1))
        while len(rows):
            cells = cells + steps_4[ways_BT[rows, cells]]
            labels_BT[rows, cells] = PATH_TOKEN
            is_ahead = moves_BT[rows, cells] > 1
            rows = rows[is_ahead]
            cells = cells[is_ahead]
        return labels_BT

    def _moves_BT(self, inputs_BT: IntArray) -> Int32Array:
        """The moves from each cell to the goal; -1 if the goal is out of reach."""
        shape = self.shape
        free = bits_from(shape, inputs_BT != WALL_TOKEN)
        goals = bits_from(shape, inputs_BT == GOAL_TOKEN)
        moves_BT = np.full(inputs_BT.shape, -1, np.int32)
        for moves, level in enumerate(levels_from(shape, free, goals)):
            padded = padded_flags(shape, level, len(inputs_BT))
            moves_BT[unpadded_BT(shape, padded) == 1] = moves
        return moves_BT

    def _ways_BT(self, moves_BT: Int32Array) -> Int64Array:
        """The first of up, down, left and right that is one move nearer; 0 if none is."""
        beyond = 2 * self.seq_len  # larger than any distance on the board
        moves_BRC = moves_BT.reshape(-1, self.rows, self.cols)
        around_BRC = np.pad(moves_BRC, ((0, 0), (1, 1), (1, 1)), constant_values=beyond)
        near_4BRC: list[Int32Array] = []
        for down, right in NEIGHBORS:
            near_4BRC.append(np.roll(around_BRC, (-down, -right), axis=(1, 2)))
        is_nearer_4BRC = np.stack(near_4BRC)[:, :, 1:-1, 1:-1] == moves_BRC - 1
        return is_nearer_4BRC.argmax(axis=0).reshape(moves_BT.shape)

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        question, rating = maze_generator.generate(self.shape, rng, difficulty)
        return Example(question=question, answer=self.label_of(question), rating=rating)

    def label_of(self, question: Grid) -> Grid:
        tokens_T = self.encode(question)
        self.check_question(tokens_T)
        return self.decode(self.first_path_BT(tokens_T[None])[0])

    def route(self, question: Grid, answer: Grid) -> Route:
        """One leg: the cells of a shortest path over the marked cells, and its moves."""
        shape = self.shape
        optimum = num_moves(shape, self.encode(question))
        assert optimum is not None, "parse rejects a question without a path"
        start, *cells = self._walked(question, answer)
        if not cells:
            return Route(start=start, legs=[], cost=None, optimum=optimum)
        leg = Leg(to=cells[-1], cost=len(cells), cells=cells)
        return Route(start=start, legs=[leg], cost=leg.cost, optimum=optimum)

    def _walked(self, question: Grid, answer: Grid) -> list[tuple[int, int]]:
        """The start and then the cells of a shortest path over the marked cells, if one exists."""
        shape = self.shape
        is_marked = (question == OPEN) & (answer == PATH)
        is_free = is_marked | (question > WALL)
        free = bits_from(shape, is_free.reshape(1, -1))
        start = bits_from(shape, (question == START).reshape(1, -1))
        goal = bits_from(shape, (question == GOAL).reshape(1, -1))
        path = [start]
        for level in cells_between(shape, free, start, goal)[1:]:
            near = level & neighbors(shape, path[-1])
            path.append(near & -near)
        stride = shape.cols + 1
        return [divmod(cell.bit_length() - 1, stride) for cell in path]

    def bare(self, tokens: IntArray) -> IntArray:
        return np.where(tokens == PATH_TOKEN, OPEN_TOKEN, tokens)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        """Treat start and goal alike: a maze walked backwards is the same maze."""
        inputs_BT = np.where(inputs_BT == GOAL_TOKEN, START_TOKEN, inputs_BT)
        return super().equivalence_hash_B(inputs_BT, labels_BT)

    def from_object(self, question: dict[str, object]) -> tuple[Grid, dict[str, object]]:
        """Read a JSON object.

        Raises PuzzleError with the rule `wrong-keys`, `bad-cell`, `in-wall` or `same-cell`.
        """
        shape = self.shape
        goal_key = "end" if "end" in question else "goal"
        check_keys(question, ("grid", "start", goal_key), "path", OBJECT_FORM)
        described = "1 for a wall and 0 for an open cell"
        grid, rows = numbers_of(shape, question["grid"], (OPEN, WALL), described)
        start = cell_of(shape, "start", question["start"])
        goal = cell_of(shape, goal_key, question[goal_key])
        path = cells_of(shape, "path", question.get("path", []))
        self.place(grid, path, PATH, "path")
        self.place(grid, [start], START, "start")
        self.place(grid, [goal], GOAL, "goal")
        return grid, {"grid": rows, "start": start, goal_key: goal}

    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        """Add the marked cells in walking order. Marks off the path come just before the goal."""
        question_grid, _ = self.from_object({**question})
        route = self.route(question_grid, grid)
        path = [list(route.start)]
        for leg in route.legs:
            path.extend(list(cell) for cell in leg.cells[:-1])
        strays = [cell for cell in np.argwhere(grid == PATH).tolist() if cell not in path]
        goal = question["goal"] if "goal" in question else question["end"]
        return {**question, "path": [*path, *strays, list(goal)]}


def num_moves(shape: GridShape, tokens_T: IntArray) -> int | None:
    """Length of a shortest path in moves; None without a path.

    The search is exact. It rates and checks mazes and never answers for the model.
    """
    tokens_1T = tokens_T[None]
    free = bits_from(shape, tokens_1T != WALL_TOKEN)
    start = bits_from(shape, tokens_1T == START_TOKEN)
    goal = bits_from(shape, tokens_1T == GOAL_TOKEN)
    levels = levels_from(shape, free, start, goal)
    if not levels[-1] & goal:
        return None
    return len(levels) - 1


def _is_chain_B(shape: GridShape, answers_BT: IntArray) -> BoolArray:
    """Whether start and goal have one neighbor on the path, and each marked cell has two.

    Then a path connects start and goal, and all other marks are closed rings. If the number of
    marks also equals that of a shortest path, no mark is left for a ring.
    """
    is_start_BT = answers_BT == START_TOKEN
    is_goal_BT = answers_BT == GOAL_TOKEN
    is_end_BT = is_start_BT | is_goal_BT
    is_marked_BT = answers_BT == PATH_TOKEN
    is_on_path_BT = is_end_BT | is_marked_BT
    has_ends_B = (is_start_BT.sum(axis=1) == 1) & (is_goal_BT.sum(axis=1) == 1)
    num_near_BT = num_neighbors_BT(shape, is_on_path_BT)
    wanted_BT = is_end_BT + np.int8(2) * is_marked_BT
    is_linked_BT = (num_near_BT == wanted_BT) | ~is_on_path_BT
    return has_ends_B & is_linked_BT.all(axis=1)
