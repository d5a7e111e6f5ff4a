"""Every notation of a maze is read and answered alike; everything else is refused in one sentence with its rule."""

import json
import pickle
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_puzzles.maze.maze import Maze
from hrm_puzzles.puzzle import PuzzleError

MAZE = Maze(name="maze-5x4", rows=5, cols=4)
DOTS = ["S..#", ".##.", ".#..", "...#", "#.G."]
LINES = ["S  #", " ## ", " #  ", "   #", "# G "]
ANSWER = ["S  #", "o## ", "o#  ", "ooo#", "# G "]
MATRIX = [[0, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
ANSWER_NUMBERS = [[2, 0, 0, 1], [4, 1, 1, 0], [4, 1, 0, 0], [4, 4, 4, 1], [1, 0, 3, 0]]
NUMBERS = [[2, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 3, 0]]
OBJECT: dict[str, object] = {"grid": MATRIX, "start": [0, 0], "goal": [4, 2]}
WALK = [[0, 0], [1, 0], [2, 0], [3, 0], [3, 1], [3, 2], [4, 2]]

NOTATIONS: dict[str, tuple[object, object]] = {
    "lines": ("\n".join(LINES), "\n".join(ANSWER)),
    "dots": ("\n".join(LINES).replace(" ", "."), "\n".join(ANSWER).replace(" ", ".")),
    "blocks": ("\n".join(LINES).replace("#", "█"), "\n".join(ANSWER).replace("#", "█")),
    "carriage returns": ("\r\n".join(LINES) + "\r\n", "\n".join(ANSWER)),
    "quoted block": ("\n" + "\n".join(LINES) + "\n", "\n".join(ANSWER)),
    "cut ends": ("\n".join(line.rstrip() for line in LINES), "\n".join(ANSWER)),
    "one string": ("".join(LINES), "".join(ANSWER)),
    "one string with a line end": ("".join(LINES) + "\n", "".join(ANSWER)),
    "list of lines": (LINES, ANSWER),
    "list of cut lines": ([line.rstrip() for line in LINES], ANSWER),
    "rows": ([list(line) for line in LINES], [list(line) for line in ANSWER]),
    "rows of dots": ([list(line) for line in DOTS], [list(line.replace(" ", ".")) for line in ANSWER]),
    "numbers": (NUMBERS, ANSWER_NUMBERS),
    "object": (OBJECT, {**OBJECT, "path": WALK}),
}


def refusal(notation: object, maze: Maze = MAZE) -> PuzzleError:
    with pytest.raises(PuzzleError) as caught:
        maze.parse(notation)
    return caught.value


@pytest.mark.parametrize("name", NOTATIONS)
def test_every_notation_is_read_alike_and_answered_in_kind(name: str) -> None:
    asked, expected = NOTATIONS[name]
    parsed = MAZE.parse(asked)
    assert parsed.grid.tolist() == NUMBERS
    answer = MAZE.board_of("".join(ANSWER))
    assert MAZE.write(answer, parsed.notation) == expected
    assert json.loads(json.dumps(MAZE.write(parsed.grid, parsed.notation))) is not None


@pytest.mark.parametrize("name", NOTATIONS)
def test_answer_can_be_read_back(name: str) -> None:
    assert (MAZE.parse(NOTATIONS[name][1]).grid == MAZE.board_of("".join(ANSWER))).all()


def test_wrong_answer_of_an_object_names_the_marked_cells_all_the_same() -> None:
    notation = MAZE.parse(OBJECT).notation
    stray = MAZE.board_of("".join(LINES))
    stray[0, 1], stray[0, 2], stray[4, 3] = 4, 4, 4
    assert MAZE.write(stray, notation) == {**OBJECT, "path": [[0, 0], [0, 1], [0, 2], [4, 3], [4, 2]]}


def test_boards_of_csv_files_keep_their_outer_spaces() -> None:
    text = " #  S  G    #  #    "
    assert MAZE.board_of(text).reshape(-1)[:5].tolist() == [0, 1, 0, 0, 2]
    with pytest.raises(PuzzleError, match="the text has 16 characters where 20 are expected"):
        MAZE.board_of(text.rstrip())


REFUSALS: dict[str, tuple[object, str, tuple[int, int] | None]] = {
    "number": (7, "not-a-puzzle", None),
    "nothing": ("", "wrong-size", None),
    "short line of dots": ("S..G\n....\n..\n....\n....", "wrong-size", (3, 1)),
    "long line": ("S..G\n.....\n....\n....\n....", "wrong-size", (2, 1)),
    "missing line": ("S..G\n....\n....\n....", "wrong-size", None),
    "endless text": ("." * 5000, "wrong-size", None),
    "short list": ([[0] * 4] * 4, "wrong-size", None),
    "short row": ([[2, 0, 0, 3], [0] * 4, [0] * 3, [0] * 4, [0] * 4], "wrong-size", (3, 1)),
    "row that is no list": ([[2, 0, 0, 3], [0] * 4, 5, [0] * 4, [0] * 4], "wrong-size", (3, 1)),
    "strange character": ("S..G\n....\n..x.\n....\n....", "bad-character", (3, 3)),
    "strange number": ([[2, 0, 0, 3], [0, 9, 0, 0], [0] * 4, [0] * 4, [0] * 4], "bad-character", (2, 2)),
    "truth": ([[2, 0, 0, 3], [0, True, 0, 0], [0] * 4, [0] * 4, [0] * 4], "bad-character", (2, 2)),
    "no start": ("...G" + "." * 16, "no-start", None),
    "no goal": ("S..." + "." * 16, "no-goal", None),
    "two starts": ("S..GS" + "." * 15, "many-starts", (2, 1)),
    "two goals": ("S..GG" + "." * 15, "many-goals", (2, 1)),
    "no way": ("S#.G##" + "." * 14, "no-path", None),
    "half a path": ("So.G" + "." * 16, "wrong-marks", None),
    "no goal key": ({"grid": MATRIX, "start": [0, 0]}, "wrong-keys", None),
    "strange key": ({**OBJECT, "end": [4, 2]}, "wrong-keys", None),
    "matrix of letters": ({**OBJECT, "grid": [list(line) for line in LINES]}, "bad-character", (1, 1)),
    "matrix of one row": ({**OBJECT, "grid": MATRIX[0]}, "wrong-size", None),
    "matrix that is none": ({**OBJECT, "grid": "S"}, "wrong-size", None),
    "start outside": ({**OBJECT, "start": [5, 0]}, "bad-cell", None),
    "start of digits without end": ({**OBJECT, "start": [10**5000, 0]}, "bad-cell", None),
    "start that is no cell": ({**OBJECT, "start": "S"}, "bad-cell", None),
    "start in a wall": ({**OBJECT, "start": [0, 3]}, "in-wall", (1, 4)),
    "path in a wall": ({**OBJECT, "path": [[0, 3]]}, "in-wall", (1, 4)),
    "path of numbers": ({**OBJECT, "path": [3]}, "bad-cell", None),
    "path that is none": ({**OBJECT, "path": 3}, "bad-cell", None),
    "goal on the start": ({**OBJECT, "goal": [0, 0]}, "same-cell", (1, 1)),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_rule_and_the_cell(name: str) -> None:
    notation, rule, cell = REFUSALS[name]
    error = refusal(notation)
    assert (error.rule, error.cell) == (rule, cell)
    assert re.fullmatch(r".{20,260}\.", str(error))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_message_says_value_expectation_and_remedy() -> None:
    assert str(refusal("S..G\n....\n..x.\n....\n....")) == (
        "'x' stands at row 3, column 3; use # for a wall, . or a space for an open cell, S for the start and G for the "
        "goal."
    )
    assert str(refusal("S..G")) == (
        "the text has 4 characters where 20 are expected; send 5 lines of 4 characters, 20 characters at once, or 5 "
        "lists of 4."
    )


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(alphabet="# SGo.x\n", max_size=30)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6), st.dictionaries(st.sampled_from(["grid", "start", "goal", "path", "x"]), inner)
    ),
    max_leaves=12,
)


@given(notation=values)
@settings(deadline=None, max_examples=40)
def test_whatever_is_sent_is_read_or_refused(notation: object) -> None:
    with suppress(PuzzleError):
        assert MAZE.parse(notation).grid.shape == (5, 4)


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=20)
def test_generated_mazes_survive_every_notation(seed: int) -> None:
    example = MAZE.generate(np.random.default_rng(seed), "medium")
    lines = ["".join(" #SG"[value] for value in row) for row in example.question.tolist()]
    for notation in ("\n".join(lines), lines, [list(line) for line in lines], example.question.tolist()):
        parsed = MAZE.parse(notation)
        assert (parsed.grid == example.question).all()
        assert MAZE.write(parsed.grid, parsed.notation) == notation
        assert (MAZE.parse(MAZE.write(example.answer, parsed.notation)).grid == example.answer).all()
