"""Every notation is read and answered alike. Everything else is rejected in one sentence."""

import math
import textwrap
import time

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import Parsed, Puzzle, PuzzleError

SUDOKU = registry.get("sudoku")
QUESTION = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
ROWS = textwrap.wrap(QUESTION, 9)
LINES = "\n".join(ROWS)
DIGITS = np.array(list(QUESTION.replace(".", "0")), dtype=np.int8)
FLAT = DIGITS.tolist()
LISTS = DIGITS.reshape(9, 9).tolist()
NOTATIONS = {
    "underscores": QUESTION.replace(".", "_"),
    "spaces": QUESTION.replace(".", " "),
    "lines of dashes": LINES.replace(".", "-"),
    "slashes between rows": "/".join(ROWS),
    "a YAML list": "puzzle:\n" + "\n".join(f'  - "{row}"' for row in ROWS),
    "a YAML list of lists": "\n".join(f"- {row}" for row in LISTS),
    "a YAML block": "puzzle: |\n" + textwrap.indent(LINES, "  "),
}


def rejection(notation: object, puzzle: Puzzle = SUDOKU) -> PuzzleError:
    with pytest.raises(PuzzleError) as caught:
        puzzle.parse(notation)
    return caught.value


@pytest.mark.parametrize("name", NOTATIONS)
def test_every_notation_is_read_alike_and_written_back(name: str):
    parsed = SUDOKU.parse(NOTATIONS[name])
    assert parsed.grid.tolist() == LISTS
    assert SUDOKU.write(parsed.grid, parsed.notation) == NOTATIONS[name]


@pytest.mark.parametrize(("side", "last"), [(12, "C"), (16, "G")])
def test_digits_of_a_large_board_from_ten_on_are_letters(side: int, last: str):
    puzzle = registry.get(f"sudoku-{side}x{side}")
    example = puzzle.generate(np.random.default_rng(5), "easy")
    line = puzzle.asked(example.question, "")
    assert isinstance(line, str)
    assert max(line) == last
    rows = example.question.tolist()
    flat = example.question.reshape(-1).tolist()
    lines = textwrap.wrap(line, side)
    for form in (line, line.lower(), "\n".join(lines), lines, rows, flat):
        parsed = puzzle.parse(form)
        assert parsed.grid.tolist() == rows
        assert puzzle.write(parsed.grid, parsed.notation) == form
    framed = puzzle.render(example.question)
    assert puzzle.parse(framed).grid.tolist() == rows
    beyond = rejection(line.replace(".", chr(ord(last) + 1), 1), puzzle)
    assert beyond.rule == "bad-character"
    assert f"A to {last} for 10 to {side}" in beyond.remedy


def test_a_line_of_dashes_may_be_a_row_of_blanks():
    parsed = registry.get("sudoku-4x4").parse("1234\n----\n2143\n4321")
    assert parsed.grid[1].tolist() == [0, 0, 0, 0]


def test_line_ends_that_a_shell_left_as_two_characters_are_line_ends():
    assert SUDOKU.parse("\\n".join(ROWS)).grid.tolist() == LISTS


def changed(cell: int, character: str) -> str:
    return QUESTION[:cell] + character + QUESTION[cell + 1 :]


REJECTIONS = {
    "truth": (True, "not-a-puzzle", None),
    "endless number": (10**6000, "not-a-puzzle", None),
    "not a number": (math.nan, "not-a-puzzle", None),
    "huge text": ("." * 1_000_000, "wrong-length", None),
    "short line": ("\n".join([ROWS[0], "1", *ROWS[2:]]), "wrong-length", (2, 1)),
    "eight rows": (LISTS[:8], "wrong-length", None),
    "letter": (changed(2, "x"), "bad-character", (1, 3)),
    "surrogate": (changed(9, "\ud800"), "bad-character", (2, 1)),
    "ten": ([*FLAT[:80], 10], "bad-character", (9, 9)),
    "nested deep": ([[[[]]] * 9] * 9, "bad-character", (1, 1)),
    "clash in a row": (changed(2, "7"), "clashing-givens", (1, 5)),
    "clash in a box": (changed(2, "6"), "clashing-givens", (2, 1)),
    "no solution": ("12345678." + "........9" + "." * 63, "no-solution", (1, 9)),
    "no solution, found by search": (changed(2, "2"), "no-solution", None),
}


@pytest.mark.parametrize("name", REJECTIONS)
def test_rejection_names_rule_cell_and_remedy(name: str):
    notation, rule, cell = REJECTIONS[name]
    error = rejection(notation)
    assert (error.rule, error.cell) == (rule, cell)
    assert error.remedy
    assert error.remedy in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize("question", ["." * 81, QUESTION[:30] + "." * 51])
def test_more_than_one_solution_names_a_cell_and_two_digits_for_it(question: str):
    error = rejection(question)
    assert error.rule == "many-solutions"
    row, column = error.cell
    assert f"row {row}, column {column} can be" in str(error)


def test_question_too_hard_to_judge_is_let_through_in_bounded_time():
    endless = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."
    began = time.process_time()
    assert isinstance(SUDOKU.parse(endless), Parsed)
    assert time.process_time() - began < 1.0  # some 20 ms on an idle core
