"""The page reads every notation for drawing as `puzzles` reads it for solving."""

import json

import numpy as np
import pytest
from web_tools import Page, choose

from hrm_puzzles import registry
from hrm_puzzles.puzzle import PuzzleError

pytestmark = pytest.mark.process

READ = """async ([model, text]) => {
  const { kindOf } = await import("/web/js/kinds/index.js");
  const { valueOf } = await import("/web/js/notation.js");
  const read = kindOf(model).read(valueOf(text));
  return read && read.isSound ? read.grid : null;
}"""

LINE = "314...5..41.24...5..314....6.113.2.4"
ROWS = ["314...", "5..41.", "24...5", "..314.", "...6.1", "13.2.4"]
FRAMED = "\n".join(
    [
        "314|...",
        "5..|41.",
        "---+---",
        "24.|..5",
        "..3|14.",
        "---+---",
        "...|6.1",
        "13.|2.4",
    ]
)
NUMBERS = [[int(mark) for mark in row.replace(".", "0")] for row in ROWS]
FLAT_NUMBERS = [int(mark) or None for mark in LINE.replace(".", "0")]
MAZE_LINES = [
    "#...#S..",
    "#.#####.",
    "#...#.#.",
    "#.#.#.#.",
    "#.#.....",
    "#.#####.",
    "#..G..#.",
    "########",
]
MAZE = "\n".join(MAZE_LINES)
MAZE_GRID = [[".#SG".index(mark) for mark in line] for line in MAZE_LINES]
WALLS = [[int(mark == "#") for mark in line] for line in MAZE_LINES]
CITY_LINES = ["#.##42", "#2##2#", "#C4D.C", "#.##.#", "#.##.#", "#C4C.."]
CITY = "\n".join(CITY_LINES)
COST_OF_MARK = {"#": 0, ".": 1, "2": 2, "4": 4, "C": 1, "D": 1}
ROADS = [[COST_OF_MARK[mark] for mark in line] for line in CITY_LINES]
CUSTOMERS = [[2, 1], [2, 5], [5, 1], [5, 3]]
GRID = [[0, 7, 7], [7, 0, 7]]

NOTATIONS: list[tuple[str, object]] = [
    ("sudoku-6x6", LINE),
    ("sudoku-6x6", LINE.replace(".", "0")),
    ("sudoku-6x6", LINE.replace(".", "*")),
    ("sudoku-6x6", LINE.replace(".", " ")),
    ("sudoku-6x6", "\r\n".join(ROWS)),
    ("sudoku-6x6", FRAMED),
    ("sudoku-6x6", "#A somebody\n[Puzzle]\n" + "\n".join(ROWS)),
    ("sudoku-6x6", "\n".join(" ".join(row) for row in ROWS)),
    ("sudoku-6x6", ROWS),
    ("sudoku-6x6", NUMBERS),
    ("sudoku-6x6", FLAT_NUMBERS),
    ("maze-8x8", MAZE),
    ("maze-8x8", f"\n{MAZE}\n"),
    ("maze-8x8", "".join(MAZE_LINES)),
    ("maze-8x8", "\n".join(line.replace(".", " ").rstrip() for line in MAZE_LINES)),
    ("maze-8x8", MAZE.replace("#", "█")),
    ("maze-8x8", MAZE_LINES),
    ("maze-8x8", [list(line) for line in MAZE_LINES]),
    ("maze-8x8", MAZE_GRID),
    ("maze-8x8", {"grid": WALLS, "start": [0, 5], "goal": [6, 3]}),
    ("logistics-6x6", CITY),
    ("logistics-6x6", "".join(CITY_LINES)),
    ("logistics-6x6", CITY_LINES),
    ("logistics-6x6", {"grid": ROADS, "depot": [2, 3], "customers": CUSTOMERS}),
    ("arc-7x7", {"task": "a", "input": GRID}),
    ("arc-7x7", {"id": "a", "input": "077\n707"}),
    ("arc-7x7", {"name": "a", "input": ["077", "7 0 7"]}),
    (
        "arc-7x7",
        {"task": "a", "train": [], "test": [{"input": [[1]]}, {"input": GRID}], "index": 1},
    ),
]
UNSOUND: list[tuple[str, object]] = [
    ("sudoku-6x6", "x" * 36),
    ("sudoku-6x6", LINE[:-1]),
    ("sudoku-6x6", [[7] * 6] * 6),
    ("sudoku-6x6", ""),
    ("sudoku-6x6", []),
    ("sudoku-6x6", {"grid": NUMBERS}),
    ("sudoku-6x6", [[[]] * 6] * 6),
    ("maze-8x8", MAZE.replace("S", "x")),
    ("maze-8x8", MAZE[:-1]),
    ("maze-8x8", {"grid": WALLS[:7], "start": [0, 5], "goal": [6, 3]}),
    ("logistics-6x6", CITY.replace("4", "3")),
    ("logistics-6x6", CITY + "##"),
    ("arc-7x7", {"task": "a", "input": [[10]]}),
    ("arc-7x7", {"task": "a", "input": [[1], [1, 2]]}),
    ("arc-7x7", {"task": "a"}),
    ("arc-7x7", {"task": "a", "input": [[1] * 8]}),
]


def read_by_page(page: Page, name: str, notation: object) -> object:
    puzzle = registry.get(name)
    model = {"kind": name, "seq_len": puzzle.seq_len}
    text = notation if isinstance(notation, str) else json.dumps(notation)
    return page.evaluate(READ, [model, text])


def test_page_and_puzzles_read_the_same_grid(page: Page) -> None:
    for name, notation in NOTATIONS:
        expected = registry.get(name).parse(notation).grid
        assert read_by_page(page, name, notation) == expected.tolist(), notation


def test_what_puzzles_refuse_for_its_form_the_page_does_not_draw_as_sound(page: Page) -> None:
    for name, notation in UNSOUND:
        with pytest.raises(PuzzleError):
            registry.get(name).parse(notation)
        assert read_by_page(page, name, notation) is None, notation


def test_answers_with_marks_and_the_text_of_a_board_are_read_back(page: Page) -> None:
    for name in ("maze-8x8", "logistics-6x6"):
        answer = registry.get(name).generate(np.random.default_rng(3), "easy").answer.tolist()
        assert read_by_page(page, name, answer) == answer
        choose(page, name)
        text = page.evaluate("document.querySelector('#text').value")
        assert registry.get(name).parse(text).grid.tolist() == read_by_page(page, name, text)
