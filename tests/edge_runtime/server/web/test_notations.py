"""The page reads every notation for drawing as `puzzles` reads it for solving."""

import json
import textwrap

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
    ("sudoku-6x6", LINE.replace(".", " ")),
    ("sudoku-6x6", "#A somebody\n[Puzzle]\n" + "\r\n".join(textwrap.wrap(LINE, 6))),
    ("maze-8x8", MAZE.replace(".\n", "\n").replace(".", " ")),
    ("logistics-6x6", CITY.replace("\n", "")),
    ("arc-7x7", {"id": "a", "input": "077\n707"}),
    ("arc-7x7", {"name": "a", "input": ["077", "7 0 7"]}),
    (
        "arc-7x7",
        {"task": "a", "train": [], "test": [{"input": [[1]]}, {"input": [[7]]}], "index": 1},
    ),
]
"""What the page draws beside the forms of the table."""
UNSOUND = [
    ("sudoku-6x6", "x" * 36),
    ("sudoku-6x6", [[7] * 6] * 6),
    ("maze-8x8", MAZE.replace("S", "x")),
    ("maze-8x8", {"grid": [[0] * 9] * 8, "start": [0, 5], "goal": [6, 3]}),
    ("logistics-6x6", CITY.replace("4", "3")),
    ("arc-7x7", {"task": "a", "input": [[1], [1, 2]]}),
    ("arc-7x7", {"task": "a", "input": [[1] * 8]}),
]


DRAWN = (
    *MAIN,
    "zeros for blanks",
    "spaces for open cells",
    "a blank at the end of a line",
    "blocks",
    "an object with start and end",
)
"""Forms that the page draws itself; it may leave others to the server."""


def test_the_page_reads_each_form_as_puzzles_does_or_leaves_it_to_the_server(page: Page):
    for form in FORMS:
        if form.is_file or form.rejected:
            continue
        found = read_by_page(page, form.kind, form.example)
        if found is not None or form.name in DRAWN:
            assert found == registry.get(form.kind).parse(form.example).grid.tolist(), form


def read_by_page(page: Page, name: str, notation: object) -> object:
    puzzle = registry.get(name)
    rows, cols = board_size(puzzle) or (None, None)
    model = {"kind": name, "seq_len": puzzle.seq_len, "rows": rows, "cols": cols}
    text = notation if isinstance(notation, str) else json.dumps(notation)
    return page.evaluate(READ, [model, text])


def test_page_and_puzzles_read_the_same_grid(page: Page):
    for name, notation in VARIANTS:
        expected = registry.get(name).parse(notation).grid
        assert read_by_page(page, name, notation) == expected.tolist(), notation


def test_what_puzzles_refuse_for_its_form_the_page_does_not_draw_as_sound(page: Page):
    for name, notation in UNSOUND:
        with pytest.raises(PuzzleError):
            registry.get(name).parse(notation)
        assert read_by_page(page, name, notation) is None, notation


def test_answers_with_marks_and_the_text_of_a_board_are_read_back(page: Page):
    for name in ("maze-8x8", "logistics-6x6"):
        answer = registry.get(name).generate(np.random.default_rng(3), "easy").answer.tolist()
        assert read_by_page(page, name, answer) == answer
        choose(page, name)
        text = page.evaluate("document.querySelector('#text').value")
        assert registry.get(name).parse(text).grid.tolist() == read_by_page(page, name, text)
