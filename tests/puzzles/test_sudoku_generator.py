"""Generated questions have one solution, the stated difficulty, and follow from the seed."""

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, PuzzleError
from hrm_puzzles.sudoku.sudoku import Sudoku

NAMES = ["sudoku-4x4", "sudoku-6x6", "sudoku"]
CASES = [
    (name, difficulty) for name in NAMES for difficulty in registry.get(name).difficulties if difficulty != "extreme"
]


def num_solutions(puzzle: Sudoku, question: np.ndarray, limit: int = 2) -> int:
    """Independent of the solver: fill the tightest open cell, and look only at rows, columns and boxes."""
    grid = question.reshape(-1).tolist()
    sees_TT = (puzzle.geometry.groups_GT[:, :, None] == puzzle.geometry.groups_GT[:, None, :]).any(axis=0)
    seen = [np.flatnonzero(row).tolist() for row in sees_TT]

    def count(left: int) -> int:
        tightest, options = -1, set(range(100))
        for cell, digit in enumerate(grid):
            if not digit:
                free = set(range(1, puzzle.board.side + 1)) - {grid[other] for other in seen[cell]}
                if len(free) < len(options):
                    tightest, options = cell, free
        if tightest < 0:
            return 1
        found = 0
        for digit in options:
            grid[tightest] = digit
            found += count(left - found)
            if found >= left:
                break
        grid[tightest] = 0
        return found

    return count(limit)


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_generated_questions_have_one_solution_and_it_is_the_label(name: str, difficulty: str) -> None:
    puzzle, rng = registry.get(name), np.random.default_rng(11)
    assert isinstance(puzzle, Sudoku)
    for _ in range(2):
        example = puzzle.generate(rng, difficulty)
        question_T, answer_T = puzzle.encode(example.question), puzzle.encode(example.answer)
        assert puzzle.check_BT(question_T[None], answer_T[None]).tolist() == [RIGHT]
        assert num_solutions(puzzle, example.question) == 1


@pytest.mark.parametrize("name", NAMES)
def test_no_given_of_a_minimal_question_can_be_spared(name: str) -> None:
    puzzle = registry.get(name)
    question = puzzle.generate(np.random.default_rng(2), "minimal").question
    for cell in np.argwhere(question > 0):
        fewer = question.copy()
        fewer[tuple(cell)] = 0
        with pytest.raises(PuzzleError, match="more than one solution"):
            puzzle.parse(fewer.tolist())


def test_difficulties_are_what_they_say() -> None:
    puzzle, rng = registry.get("sudoku"), np.random.default_rng(4)
    made = {name: [puzzle.generate(rng, name) for _ in range(4)] for name in ("easy", "medium", "hard")}
    givens = {name: {int((example.question > 0).sum()) for example in some} for name, some in made.items()}
    assert (givens["easy"], givens["medium"]) == ({40}, {30})
    assert max(givens["hard"]) < 30
    assert {example.rating for example in made["easy"]} == {0}
    assert min(example.rating for example in made["hard"]) >= 1
