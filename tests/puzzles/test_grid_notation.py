"""Every notation of mazes and cities is read and answered alike."""

import re

import pytest

from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.maze import Maze
from hrm_puzzles.puzzle import PuzzleError

MAZE = Maze(name="maze-5x4", rows=5, cols=4)
MAZE_LINES = ["S  #", " ## ", " #  ", "   #", "# G "]
MAZE_MATRIX = [[0, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
MAZE_OBJECT = {"grid": MAZE_MATRIX, "start": [0, 0], "goal": [4, 2]}
CITY = Logistics(name="logistics-5x6", rows=5, cols=6)
CITY_LINES = ["D.2C#.", "..#.#.", "#.4..C", "#.....", "######"]
CITY_ANSWER = ["DotC#.", "..#o#.", "#.4ooC", "#.....", "######"]
LAST_ROWS = [[0, 1, 1, 1, 1, 1], [0] * 6]
CITY_COSTS = [[1, 1, 2, 1, 0, 1], [1, 1, 0, 1, 0, 1], [0, 1, 4, 1, 1, 1], *LAST_ROWS]
CITY_STOPS = {"depot": [0, 0], "customers": [[0, 3], [2, 5]]}
CITY_OBJECT = {"grid": CITY_COSTS, **CITY_STOPS}
CITY_TEXT = "\n".join(CITY_LINES)
CITY_ANSWER_TEXT = "\n".join(CITY_ANSWER)


def test_wrong_answer_of_an_object_names_the_marked_cells_all_the_same():
    notation = MAZE.parse(MAZE_OBJECT).notation
    stray = MAZE.board_of("".join(MAZE_LINES))
    stray[[0, 0, 4], [1, 2, 3]] = 4
    marked = [[0, 0], [0, 1], [0, 2], [4, 3], [4, 2]]
    assert MAZE.write(stray, notation) == {**MAZE_OBJECT, "path": marked}


def test_puzzle_with_several_cheapest_tours_is_accepted():
    assert CITY.parse("D....." + "......" * 3 + ".....C").grid[4, 5] == 6


OPEN_ROW = [0] * 4
ENDS_ROW = [2, 0, 0, 3]
NOT_A_CELL = 10**5000
MAZE_REJECTIONS = {
    "short line of dots": ("S..G\n....\n..\n....\n....", "wrong-size", (3, 1)),
    "row that is no list": ([ENDS_ROW, OPEN_ROW, 5, OPEN_ROW, OPEN_ROW], "wrong-size", (3, 1)),
    "strange character": ("S..G\n....\n..x.\n....\n....", "bad-character", (3, 3)),
    "truth": ([ENDS_ROW, [0, True, 0, 0], *[OPEN_ROW] * 3], "bad-character", (2, 2)),
    "no start": ("...G" + "." * 16, "no-start", None),
    "two starts": ("S..GS" + "." * 15, "many-starts", (2, 1)),
    "no way": ("S#.G##" + "." * 14, "no-path", None),
    "half a path": ("So.G" + "." * 16, "wrong-marks", None),
    "matrix that is none": ({**MAZE_OBJECT, "grid": "S"}, "wrong-size", None),
    "endless start": ({**MAZE_OBJECT, "start": [NOT_A_CELL, 0]}, "bad-cell", None),
    "goal on the start": ({**MAZE_OBJECT, "goal": [0, 0]}, "same-cell", (1, 1)),
    "start in a wall": ({**MAZE_OBJECT, "start": [0, 3]}, "in-wall", (1, 4)),
}
OUT_OF_REACH = "D.....####.......C" + "######" + "C....."
DEAR_ROAD = [[1, 3, 1, 1, 1, 1], *CITY_COSTS[1:]]
CITY_REJECTIONS = {
    "space": (CITY_TEXT.replace(".", " "), "bad-character", (1, 2)),
    "no customer": (CITY_TEXT.replace("C", "."), "no-customers", None),
    "nine customers": ("DCCCCCCCCC" + "." * 20, "too-many-customers", (2, 4)),
    "customer out of reach": (OUT_OF_REACH, "unreachable-customer", (5, 1)),
    "half a tour": (CITY_ANSWER_TEXT.replace("t", "2"), "wrong-marks", None),
    "cost of three": ({**CITY_OBJECT, "grid": DEAR_ROAD}, "bad-character", (1, 2)),
    "customer in a building": ({**CITY_OBJECT, "customers": [[1, 2]]}, "in-building", (2, 3)),
    "endless customers": ({**CITY_OBJECT, "customers": [[0, 0]] * 31}, "bad-cell", None),
}
REJECTIONS = [(MAZE, *rejection) for rejection in MAZE_REJECTIONS.values()]
REJECTIONS += [(CITY, *rejection) for rejection in CITY_REJECTIONS.values()]


@pytest.mark.parametrize(("puzzle", "notation", "rule", "cell"), REJECTIONS)
def test_rejections_name_the_rule_and_the_cell(
    puzzle: GridPuzzle, notation: object, rule: str, cell: tuple[int, int] | None
):
    with pytest.raises(PuzzleError) as caught:
        puzzle.parse(notation)
    error = caught.value
    assert (error.rule, error.cell) == (rule, cell)
    assert re.fullmatch(r".{20,260}\.", str(error))
