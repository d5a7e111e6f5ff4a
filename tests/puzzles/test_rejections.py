"""What is no puzzle is rejected by rule and cell, in one sentence with a remedy."""

import math
import re
import textwrap

import pytest

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.maze import Maze
from hrm_puzzles.puzzle import Puzzle, PuzzleError
from hrm_puzzles.sudoku.sudoku import WELL_KNOWN

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
SUDOKU = registry.get("sudoku")
ROWS = textwrap.wrap(WELL_KNOWN, 9)
GRID = SUDOKU.parse(WELL_KNOWN).grid


def changed(cell: int, character: str) -> str:
    return WELL_KNOWN[:cell] + character + WELL_KNOWN[cell + 1 :]


SUDOKU_REJECTIONS = {
    "truth": (True, "not-a-puzzle", None),
    "endless number": (10**6000, "not-a-puzzle", None),
    "not a number": (math.nan, "not-a-puzzle", None),
    "huge text": ("." * 1_000_000, "wrong-length", None),
    "short line": ("\n".join([ROWS[0], "1", *ROWS[2:]]), "wrong-length", (2, 1)),
    "eight rows": (GRID.tolist()[:8], "wrong-length", None),
    "letter": (changed(2, "x"), "bad-character", (1, 3)),
    "surrogate": (changed(9, "\ud800"), "bad-character", (2, 1)),
    "ten": ([*GRID.reshape(-1).tolist()[:80], 10], "bad-character", (9, 9)),
    "nested deep": ([[[[]]] * 9] * 9, "bad-character", (1, 1)),
    "clash in a row": (changed(2, "7"), "clashing-givens", (1, 5)),
    "clash in a box": (changed(2, "6"), "clashing-givens", (2, 1)),
    "no solution": ("12345678." + "........9" + "." * 63, "no-solution", (1, 9)),
    "no solution, found by search": (changed(2, "2"), "no-solution", None),
}
ARC = registry.get("arc-10x10")
ARC_REJECTIONS = {
    "a word": ("hello", "not-a-puzzle", None),
    "a list": ([[1, 2]], "no-task", None),
    "no input": ({"task": "x", "test": [{}]}, "no-input", None),
    "an index that is true": (
        {"task": "x", "test": [{"input": [[1]]}], "index": True},
        "no-such-index",
        None,
    ),
    "a row that is no list": ({"task": "x", "input": [[1], 2]}, "not-a-grid", (2, 1)),
    "an empty row": ({"task": "x", "input": [[]]}, "empty", None),
    "a short row": ({"task": "x", "input": [[1, 2], [3]]}, "wrong-length", (2, 2)),
    "truth": ({"task": "x", "input": [[1, True]]}, "bad-color", (1, 2)),
    "eleven columns": ({"task": "x", "input": [[0] * 11]}, "too-large", (1, 11)),
}
TABLES = (
    (MAZE, MAZE_REJECTIONS),
    (CITY, CITY_REJECTIONS),
    (SUDOKU, SUDOKU_REJECTIONS),
    (ARC, ARC_REJECTIONS),
)
REJECTIONS = {}
for kind, table in TABLES:
    for name, rejection in table.items():
        REJECTIONS[f"{kind.name}, {name}"] = (kind, *rejection)


@pytest.mark.parametrize(
    ("puzzle", "notation", "rule", "cell"), REJECTIONS.values(), ids=REJECTIONS
)
def test_rejections_name_the_rule_the_cell_and_a_remedy(
    puzzle: Puzzle, notation: object, rule: str, cell: tuple[int, int] | None
):
    with pytest.raises(PuzzleError) as caught:
        puzzle.parse(notation)
    error = caught.value
    assert (error.rule, error.cell) == (rule, cell)
    assert error.remedy
    assert error.remedy in str(error)
    assert re.fullmatch(r".{20,260}\.", str(error))
