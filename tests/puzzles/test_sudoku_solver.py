"""The solver counts solutions exactly, with bounded work, and its ratings follow their definition."""

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, Grid, PuzzleError
from hrm_puzzles.sudoku.board import SudokuBoard
from hrm_puzzles.sudoku.solver import rating, solve
from hrm_puzzles.sudoku.sudoku import Sudoku

BOARD_9 = SudokuBoard(box_rows=3, box_cols=3)
BOARD_6 = SudokuBoard(box_rows=2, box_cols=3)
BOARD_4 = SudokuBoard(box_rows=2, box_cols=2)
BOARDS = [BOARD_4, BOARD_6, BOARD_9]
NAMES = ["sudoku-4x4", "sudoku-6x6", "sudoku"]
CASES: list[tuple[str, str]] = []
for board_name in NAMES:
    for level in registry.get(board_name).difficulties:
        if level != "extreme":  # takes far too long
            CASES.append((board_name, level))

# Questions of this project. Another implementation of the same definition counted their ratings.
RATED = [
    (".....856.....9...43..4.5....76..4..91.9.7.3...........5..24..7...3..1....9...7..5", 0),
    ("8....3.6..6.......9..8...25....5...2..1..4....2.1...3..37..9.8....54.9......3....", 11),
    ("5....9....7...8..4...3..8...32..69...1.......4.......86..1...3...3...7...4..5.26.", 36),
    ("4..1.73....9..6.2.6........2....4.....5.834.........5.......7.6..42....35...3...1", 81),
    ("..59..8......3...51........51...7..8.....4.3...6.....2.5..76....9..4..7...41..3..", 147),
]


def cells_of(text: str) -> list[int]:
    return [int(character) for character in text.replace(".", "0")]


def grid_of(text: str) -> Grid:
    return np.array(cells_of(text), dtype=np.int8).reshape(9, 9)


def peers_of(board: SudokuBoard) -> list[set[int]]:
    peers: list[set[int]] = [set() for _ in range(board.num_cells)]
    for unit in board.units_US.tolist():
        for cell in unit:
            peers[cell] |= set(unit) - {cell}
    return peers


def plain_count(board: SudokuBoard, cells: list[int], limit: int = 2) -> int:
    """Solutions up to a limit, by trying digits in the cell with the fewest."""
    options: dict[int, set[int]] = {}
    for cell, peers in enumerate(peers_of(board)):
        if not cells[cell]:
            seen = {cells[peer] for peer in peers}
            options[cell] = set(range(1, board.side + 1)) - seen
    if not options:
        return 1
    tightest = min(options, key=lambda cell: len(options[cell]))
    count = 0
    for digit in options[tightest]:
        filled = cells.copy()
        filled[tightest] = digit
        count += plain_count(board, filled, limit - count)
        if count >= limit:
            break
    return count


@pytest.mark.parametrize(("question", "expected"), RATED)
def test_rating_equals_that_of_another_implementation(question: str, expected: int) -> None:
    assert rating(BOARD_9, grid_of(question)) == expected


def has_clash(board: SudokuBoard, cells: list[int]) -> bool:
    for unit in board.units_US.tolist():
        digits = [cells[cell] for cell in unit if cells[cell]]
        if len(set(digits)) < len(digits):
            return True
    return False


@pytest.mark.parametrize("board", BOARDS[:2], ids=lambda board: f"{board.side}x{board.side}")
def test_number_of_solutions_is_that_of_plain_trying(board: SudokuBoard) -> None:
    rng = np.random.default_rng(7)
    counts: set[int] = set()
    for _ in range(60):
        digits = rng.integers(1, board.side + 1, board.num_cells)
        is_given = rng.random(board.num_cells) < 0.25
        cells = (digits * is_given).astype(np.int8)
        grid = cells.reshape(board.side, board.side)
        found = len(solve(board, grid, max_solutions=2).grids)
        if has_clash(board, cells.tolist()):
            assert found == 0
        else:
            assert found == plain_count(board, cells.tolist())
        counts.add(found)
    assert counts >= {0, 2}


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_generated_questions_have_one_solution_and_it_is_the_label(
    name: str, difficulty: str
) -> None:
    puzzle = registry.get(name)
    assert isinstance(puzzle, Sudoku)
    rng = np.random.default_rng(11)
    for _ in range(2):
        example = puzzle.generate(rng, difficulty)
        question_1T = puzzle.encode(example.question)[None]
        answer_1T = puzzle.encode(example.answer)[None]
        assert puzzle.check_BT(question_1T, answer_1T).tolist() == [RIGHT]
        assert plain_count(puzzle, example.question.reshape(-1).tolist()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_given_of_a_minimal_question_is_needed(name: str) -> None:
    puzzle = registry.get(name)
    question = puzzle.generate(np.random.default_rng(2), "minimal").question
    for cell in np.flatnonzero(question):
        fewer = question.copy()
        fewer.reshape(-1)[cell] = 0
        with pytest.raises(PuzzleError, match="more than one solution"):
            puzzle.parse(fewer.tolist())


def test_difficulties_have_their_givens_and_ratings() -> None:
    puzzle = registry.get("sudoku")
    rng = np.random.default_rng(4)
    for _ in range(4):
        easy = puzzle.generate(rng, "easy")
        assert (np.count_nonzero(easy.question), easy.rating) == (40, 0)
    for _ in range(4):
        medium = puzzle.generate(rng, "medium")
        assert np.count_nonzero(medium.question) == 30
    for _ in range(4):
        hard = puzzle.generate(rng, "hard")
        assert np.count_nonzero(hard.question) < 30
        assert hard.rating >= 1
