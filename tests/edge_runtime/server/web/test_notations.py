"""The page reads every notation for drawing as `puzzles` reads it for solving."""

import json
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
from web_tools import Page, choose

from hrm_edge_runtime.api.served_model import board_size
from hrm_puzzles import registry
from hrm_puzzles.puzzle import PuzzleError
from hrm_puzzles.reading.forms import FORMS, MAIN

pytestmark = pytest.mark.process

READ = """async ([model, text]) => {
  const { kindOf } = await import("/web/js/kinds/index.js");
  const { valueOf } = await import("/web/js/notation.js");
  const read = kindOf(model).read(valueOf(text));
  return read && read.isSound ? read.grid : null;
}"""

LINE = "314...5..41.24...5..314....6.113.2.4"
MAZE = "#...#S..\n#.#####.\n#...#.#.\n#.#.#.#.\n#.#.....\n#.#####.\n#..G..#.\n########"
CITY = "#.##42\n#2##2#\n#C4D.C\n#.##.#\n#.##.#\n#C4C.."
VARIANTS = [
    ("sudoku-6x6", LINE.replace(".", "0")),
    ("sudoku-6x6", LINE.replace(".", " ")),
    ("sudoku-6x6", "#A somebody\n[Puzzle]\n" + "\r\n".join(textwrap.wrap(LINE, 6))),
    ("sudoku-6x6", [int(mark) for mark in LINE.replace(".", "0")]),
    ("maze-8x8", MAZE.replace("\n", "")),
    ("maze-8x8", MAZE.replace(".\n", "\n").replace(".", " ")),
    ("maze-8x8", MAZE.replace("#", "█")),
    ("maze-8x8", [list(line) for line in MAZE.split("\n")]),
    ("logistics-6x6", CITY.replace("\n", "")),
    ("arc-7x7", {"id": "a", "input": "077\n707"}),
    ("arc-7x7", {"name": "a", "input": ["077", "7 0 7"]}),
    ("arc-7x7", {"task_id": "a", "input": ["077", "707"]}),
    (
        "arc-7x7",
        {"task": "a", "train": [], "test": [{"input": [[1]]}, {"input": [[7]]}], "index": 1},
    ),
]
UNSOUND = [
    ("sudoku-6x6", "x" * 36),
    ("sudoku-6x6", [[7] * 6] * 6),
    ("maze-8x8", MAZE.replace("S", "x")),
    ("maze-8x8", {"grid": [[0] * 9] * 8, "start": [0, 5], "goal": [6, 3]}),
    ("logistics-6x6", CITY.replace("4", "3")),
    ("arc-7x7", {"task": "a", "input": [[1], [1, 2]]}),
    ("arc-7x7", {"task": "a", "input": [[1] * 8]}),
]


WALLED = "#######\nS.....#\n#####.#\nG.....#\n#######"
SERVERS_OWN = [
    "\n".join(f"    {line}" for line in WALLED.split("\n")),
    "\n".join(f"    {line}" for line in WALLED.replace(".", " ").split("\n")),
    "\n".join(" ".join(line) for line in WALLED.split("\n")),
    " S#\n  #\n G#",
]


def test_texts_of_unclear_geometry_are_left_to_the_server(page: Page) -> None:
    assert read_by_page(page, "maze-8x8", WALLED) is not None
    for text in SERVERS_OWN:
        assert read_by_page(page, "maze-8x8", text) is None, text
    trailing = WALLED.replace(".", " ").replace("#\nG", "# \nG")
    grid = read_by_page(page, "maze-8x8", trailing)
    assert grid == read_by_page(page, "maze-8x8", WALLED)


def notations() -> Iterator[tuple[str, object]]:
    """The main forms of each kind, and variants that people send."""
    for form in FORMS:
        if form.name in MAIN:
            yield form.kind, form.example
    yield from VARIANTS


def read_by_page(page: Page, name: str, notation: object) -> object:
    puzzle = registry.get(name)
    rows, cols = board_size(puzzle) or (None, None)
    model = {"kind": name, "seq_len": puzzle.seq_len, "rows": rows, "cols": cols}
    text = notation if isinstance(notation, str) else json.dumps(notation)
    return page.evaluate(READ, [model, text])


def test_page_and_puzzles_read_the_same_grid(page: Page) -> None:
    for name, notation in notations():
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
