"""Smaller boards in a frame: the same questions, the same verdicts."""

import numpy as np
import pytest
from puzzle_tools import open_maze

from hrm_puzzles import registry
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.puzzle import RIGHT, PuzzleError, sized

MAZE = registry.get("maze")
CITY = registry.get("logistics")
SIZES = [(rows, cols) for rows in range(5, 31) for cols in range(5, 31)]


def framed_in(outer: GridPuzzle, rows: int, cols: int, rng: np.random.Generator) -> None:
    """Check some answers, right and wrong, on the board inside and on the framed one."""
    family, _, _ = outer.name.partition("-")
    inner = registry.get(f"{family}-{rows}x{cols}")
    example = inner.generate(rng, str(rng.choice(["easy", "medium"])))
    question = inner.asked(example.question, "")
    assert outer.framed(question) == inner == sized(outer, question)
    grid = inner.parse(question).grid
    assert (grid == example.question).all()
    inputs_T = outer.encode(grid)
    assert len(inputs_T) == outer.seq_len
    outer.check_question(inputs_T)
    answers = answers_near(example.answer, rng)
    alone_BT = np.stack([inner.encode(answer) for answer in answers])
    inside_BT = np.stack([outer.encode(answer) for answer in answers])
    verdict_B = inner.check_BT(np.resize(inner.encode(grid), alone_BT.shape), alone_BT)
    assert verdict_B[0] == RIGHT
    framed_B = outer.check_BT(np.resize(inputs_T, inside_BT.shape), inside_BT)
    assert (framed_B == verdict_B).all()
    for answer, inside_T in zip(answers, inside_BT, strict=True):
        assert (outer.decode(inside_T)[:rows, :cols] == answer).all()


def answers_near(answer: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """The answer, and answers with one or two exchanged cells."""
    answers = [answer]
    for count in (2, 2, 3):
        changed = answer.reshape(-1).copy()
        cells = rng.choice(changed.size, count, replace=False)
        changed[cells] = np.roll(changed[cells], 1)
        answers.append(changed.reshape(answer.shape))
    return answers


def test_a_frame_changes_no_verdict():
    """On 675 mazes, one of every size from 5x5 that is smaller than the board, and on cities."""
    rng = np.random.default_rng(29)
    for rows, cols in SIZES[:-1]:
        framed_in(MAZE, rows, cols, rng)
        if max(rows, cols) <= 10 and rows * cols < 100:
            framed_in(CITY, rows, cols, rng)


SQUARE = {"grid": [[0] * 15] * 15, "start": [0, 0], "goal": [4, 4]}


@pytest.mark.parametrize(
    ("board", "question", "remedy"),
    [
        ("maze-8x8", open_maze(12, 9), "--board 12x9"),
        ("maze", open_maze(40, 8), "send at most 30 rows of 30 cells"),
        ("maze-14x14", SQUARE, "--board 15x15"),
    ],
)
def test_a_larger_board_is_refused_with_a_remedy(board: str, question: object, remedy: str):
    with pytest.raises(PuzzleError) as refused:
        registry.get(board).framed(question)
    assert refused.value.rule == "too-large"
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    "question", ["1" * 25, [[1] * 9] * 9, "S" * 7, open_maze(3, 3), open_maze(30, 30), 5, None, []]
)
def test_what_is_not_a_smaller_maze_is_not_framed(question: object):
    assert MAZE.framed(question) is None
