"""Every notation is read and answered alike. Everything else is refused in one sentence."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_puzzles import registry
from hrm_puzzles.puzzle import Grid, Parsed, Puzzle, PuzzleError
from hrm_puzzles.sudoku.sudoku import Sudoku

SUDOKU = registry.get("sudoku")
QUESTION = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
ROWS = [QUESTION[start : start + 9] for start in range(0, 81, 9)]
GRID = np.array([*map(int, QUESTION.replace(".", "0"))], dtype=np.int8).reshape(9, 9)
LISTS: list[list[int]] = GRID.tolist()
FLAT: list[int] = GRID.reshape(-1).tolist()
FLAT_WITH_NULL = [digit or None for digit in FLAT]


def framed(rows: list[str], *, between: str, frame: str) -> str:
    lines = [between.join((row[:3], row[3:6], row[6:])) for row in rows]
    bands = ["\n".join(lines[start : start + 3]) for start in (0, 3, 6)]
    return f"\n{frame}\n".join(bands)


DASHED_ROWS = [row.replace(".", "-") for row in ROWS]
SPACED_ROWS = [row.replace("", " ") for row in ROWS]

NOTATIONS: dict[str, object] = {
    "dots": QUESTION,
    "zeros": QUESTION.replace(".", "0"),
    "stars": QUESTION.replace(".", "*"),
    "underscores": QUESTION.replace(".", "_"),
    "dashes": QUESTION.replace(".", "-"),
    "spaces": QUESTION.replace(".", " "),
    "with a line end": QUESTION + "\n",
    "groups": " ".join(ROWS),
    "lines": "\n".join(ROWS),
    "lines of dashes": "\n".join(ROWS).replace(".", "-"),
    "carriage returns": "\r\n".join(ROWS) + "\r\n",
    "ss": framed(ROWS, between="|", frame="-----------"),
    "ss with dashes for blanks": framed(DASHED_ROWS, between="|", frame="-----------"),
    "drawn": framed(SPACED_ROWS, between="|", frame="-------+-------+-------"),
    "drawn with lines": framed(ROWS, between="│", frame="───┼───┼───"),
    "sdk": "#A somebody\n#D 2024-01-31\n[Puzzle]\n" + "\n".join(ROWS) + "\n",
    "commas": "\n".join(",".join(row) for row in ROWS),
    "list of lines": ROWS,
    "lists of characters": [list(row) for row in ROWS],
    "lists with 0": LISTS,
    "lists with null": [FLAT_WITH_NULL[start : start + 9] for start in range(0, 81, 9)],
    "flat with 0": FLAT,
    "flat with null": FLAT_WITH_NULL,
}


def refusal(notation: object, puzzle: Puzzle = SUDOKU) -> PuzzleError:
    with pytest.raises(PuzzleError) as caught:
        puzzle.parse(notation)
    return caught.value


@pytest.mark.parametrize("name", NOTATIONS)
def test_every_notation_is_read_alike_and_written_back(name: str) -> None:
    parsed = SUDOKU.parse(NOTATIONS[name])
    assert parsed.grid.tolist() == LISTS
    assert SUDOKU.write(parsed.grid, parsed.notation) == NOTATIONS[name]


@given(
    name=st.sampled_from(sorted(NOTATIONS)),
    cells=st.lists(st.integers(0, 9), min_size=81, max_size=81),
)
@settings(deadline=None, max_examples=60)
def test_what_is_written_reads_the_same(name: str, cells: list[int]) -> None:
    assert isinstance(SUDOKU, Sudoku)
    notation = SUDOKU.parse(NOTATIONS[name]).notation
    grid: Grid = np.array(cells, dtype=np.int8).reshape(9, 9)
    written = SUDOKU.write(grid, notation)
    # Reading alone does not judge the rules, so any grid will do.
    assert (SUDOKU.read(written).grid == grid).all()


@pytest.mark.parametrize(("name", "side"), [("sudoku-4x4", 4), ("sudoku-6x6", 6)])
def test_smaller_boards_read_the_same_forms(name: str, side: int) -> None:
    puzzle = registry.get(name)
    question = puzzle.generate(np.random.default_rng(1), "easy").question
    text = "".join(str(digit or ".") for digit in question.reshape(-1).tolist())
    lines = "\n".join(text[start : start + side] for start in range(0, side * side, side))
    rows = question.tolist()
    flat = question.reshape(-1).tolist()
    for notation in (text, lines, rows, flat, puzzle.render(question)):
        parsed = puzzle.parse(notation)
        assert (parsed.grid == question).all()
        assert puzzle.write(parsed.grid, parsed.notation) == notation
    assert refusal(QUESTION, puzzle).rule == "bad-character"


def changed(cell: int, character: str) -> str:
    return QUESTION[:cell] + character + QUESTION[cell + 1 :]


REFUSALS: list[tuple[str, object, str, tuple[int, int] | None]] = [
    ("truth", True, "not-a-puzzle", None),
    ("number", 12, "not-a-puzzle", None),
    ("endless number", 10**6000, "not-a-puzzle", None),
    ("not a number", math.nan, "not-a-puzzle", None),
    ("object", {"puzzle": QUESTION}, "not-a-puzzle", None),
    ("empty text", "", "wrong-length", None),
    ("one cell short", QUESTION[:-1], "wrong-length", None),
    ("huge text", "." * 1_000_000, "wrong-length", None),
    ("huge list", [0] * 1_000_000, "wrong-length", None),
    ("eight lines", "\n".join(ROWS[:8]), "wrong-length", None),
    ("short line", "\n".join([*ROWS[:3], ROWS[3][:8], *ROWS[4:]]), "wrong-length", (4, 1)),
    ("eight rows", LISTS[:8], "wrong-length", None),
    ("short row", [*LISTS[:8], LISTS[8][:5]], "wrong-length", (9, 1)),
    ("letter", changed(2, "x"), "bad-character", (1, 3)),
    ("Arabic digit", changed(11, "٣"), "bad-character", (2, 3)),
    ("surrogate", changed(9, "\ud800"), "bad-character", (2, 1)),
    ("letter in a list of lines", [*ROWS[:8], "x" * 9], "bad-character", (9, 1)),
    ("truths", [[True] * 9] * 9, "bad-character", (1, 1)),
    ("not numbers", [math.nan] * 81, "bad-character", (1, 1)),
    ("ten", [*LISTS[:8], [0, 0, 0, 0, 8, 0, 0, 7, 10]], "bad-character", (9, 9)),
    ("nested deep", [[[[]]] * 9] * 9, "bad-character", (1, 1)),
    ("clash in a row", changed(2, "7"), "clashing-givens", (1, 5)),
    ("clash in a column", changed(45, "8"), "clashing-givens", (6, 1)),
    ("clash in a box", changed(2, "6"), "clashing-givens", (2, 1)),
    ("no solution", "12345678." + "........9" + "." * 63, "no-solution", (1, 9)),
    ("no solution, found by search", changed(2, "2"), "no-solution", None),
    ("empty board", "." * 81, "many-solutions", None),
]


@pytest.mark.parametrize(
    ("notation", "rule", "cell"),
    [case[1:] for case in REFUSALS],
    ids=[case[0] for case in REFUSALS],
)
def test_refusal_names_rule_cell_and_remedy(
    notation: object, rule: str, cell: tuple[int, int] | None
) -> None:
    error = refusal(notation)
    assert error.rule == rule
    assert rule == "many-solutions" or error.cell == cell
    assert error.remedy
    assert error.remedy in str(error)
    assert len(str(error)) < 300


def test_more_than_one_solution_names_a_cell_and_two_digits_for_it() -> None:
    error = refusal(QUESTION[:30] + "." * 51)
    assert error.rule == "many-solutions"
    assert error.cell is not None
    assert f"row {error.cell[0]}, column {error.cell[1]} can be" in str(error)


def test_question_too_hard_to_judge_is_let_through_in_bounded_time() -> None:
    endless = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."
    began = time.process_time()
    assert isinstance(SUDOKU.parse(endless), Parsed)
    assert time.process_time() - began < 1.0  # some 20 ms on an idle core
