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
ROWS = [LINE[start : start + 6] for start in range(0, 36, 6)]
BANDS = [
    "\n".join(f"{row[:3]}|{row[3:]}" for row in ROWS[start : start + 2]) for start in (0, 2, 4)
]
FRAMED = "\n---+---\n".join(BANDS)
NUMBERS = [[int(mark) if mark.isdigit() else 0 for mark in row] for row in ROWS]
MAZE = "#...#S..\n#.#####.\n#...#.#.\n#.#.#.#.\n#.#.....\n#.#####.\n#..G..#.\n########"
MAZE_GRID = [[{"#": 1, ".": 0, "S": 2, "G": 3}[mark] for mark in line] for line in MAZE.split("\n")]
BARE_MAZE = [[int(value == 1) for value in row] for row in MAZE_GRID]
CITY = "#.##42\n#2##2#\n#C4D.C\n#.##.#\n#.##.#\n#C4C.."
ROADS = [
    [{"#": 0, ".": 1, "2": 2, "4": 4, "C": 1, "D": 1}[mark] for mark in line]
    for line in CITY.split("\n")
]
CUSTOMERS = [[2, 1], [2, 5], [5, 1], [5, 3]]
GRID = [[0, 7, 7], [7, 0, 7]]

NOTATIONS: dict[str, list[object]] = {
    "sudoku-6x6": [
        LINE,
        LINE.replace(".", "0"),
        LINE.replace(".", "*"),
        LINE.replace(".", "-"),
        LINE.replace(".", " "),
        "\n".join(ROWS),
        "\r\n".join(ROWS),
        FRAMED,
        "#A somebody\n[Puzzle]\n" + "\n".join(ROWS),
        "\n".join(" ".join(row) for row in ROWS),
        ROWS,
        NUMBERS,
        [value or None for row in NUMBERS for value in row],
    ],
    "maze-8x8": [
        MAZE,
        MAZE + "\n",
        "\n" + MAZE,
        MAZE.replace("\n", ""),
        MAZE.replace(".", " "),
        "\n".join(line.rstrip() for line in MAZE.replace(".", " ").split("\n")),
        MAZE.replace("#", "█"),
        MAZE.split("\n"),
        [list(line) for line in MAZE.split("\n")],
        MAZE_GRID,
        {"grid": BARE_MAZE, "start": [0, 5], "goal": [6, 3]},
    ],
    "logistics-6x6": [
        CITY,
        CITY.replace("\n", ""),
        CITY.split("\n"),
        {"grid": ROADS, "depot": [2, 3], "customers": CUSTOMERS},
    ],
    "arc-7x7": [
        {"task": "a", "input": GRID},
        {"id": "a", "input": "077\n707"},
        {"name": "a", "input": ["077", "7 0 7"]},
        {"task": "a", "train": [], "test": [{"input": [[1]]}, {"input": GRID}], "index": 1},
    ],
}
UNSOUND: dict[str, list[object]] = {
    "sudoku-6x6": [
        "x" * 36,
        LINE[:-1],
        ROWS[:5],
        [[7] * 6] * 6,
        "",
        [],
        [[1]],
        {"grid": NUMBERS},
        [[[]] * 6] * 6,
    ],
    "maze-8x8": [
        MAZE.replace("S", "x"),
        MAZE[:-1],
        "",
        [],
        {"grid": BARE_MAZE[:7], "start": [0, 5], "goal": [6, 3]},
    ],
    "logistics-6x6": [CITY.replace("4", "3"), CITY + "##", {"grid": MAZE_GRID}],
    "arc-7x7": [
        {"task": "a", "input": [[10]]},
        {"task": "a", "input": [[1], [1, 2]]},
        {"task": "a"},
        {"task": "a", "input": [[1] * 8]},
    ],
}


def read_by_page(page: Page, name: str, notation: object) -> object:
    puzzle = registry.get(name)
    model = {"kind": name, "seq_len": puzzle.seq_len}
    text = notation if isinstance(notation, str) else json.dumps(notation)
    return page.evaluate(READ, [model, text])


def test_page_and_puzzles_read_the_same_grid(page: Page) -> None:
    for name, notation in pairs(NOTATIONS):
        expected = registry.get(name).parse(notation).grid
        assert read_by_page(page, name, notation) == expected.tolist(), notation


def test_what_puzzles_refuse_for_its_form_the_page_does_not_draw_as_sound(page: Page) -> None:
    for name, notation in pairs(UNSOUND):
        with pytest.raises(PuzzleError):
            registry.get(name).parse(notation)
        assert read_by_page(page, name, notation) is None, notation


def pairs(notations: dict[str, list[object]]) -> list[tuple[str, object]]:
    return [(name, notation) for name, group in notations.items() for notation in group]


def test_answers_with_marks_are_read_back(page: Page) -> None:
    for name in ("maze-8x8", "logistics-6x6"):
        puzzle = registry.get(name)
        example = puzzle.generate(np.random.default_rng(3), "easy")
        assert read_by_page(page, name, example.answer.tolist()) == example.answer.tolist()


def test_text_shown_for_a_board_is_read_back_by_puzzles(page: Page) -> None:
    for model in ("sudoku-6x6", "maze-8x8", "logistics-6x6"):
        choose(page, model)
        text = page.evaluate("document.querySelector('#text').value")
        assert registry.get(model).parse(text).grid.tolist() == read_by_page(page, model, text)
