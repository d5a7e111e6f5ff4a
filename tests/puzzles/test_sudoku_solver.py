"""The solver counts solutions exactly, works within its allowance, and rates as its definition says.

Generated questions have one solution, the stated difficulty, and follow from the seed.
"""

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, PuzzleError
from hrm_puzzles.sudoku.board import SudokuBoard
from hrm_puzzles.sudoku.generator import generate
from hrm_puzzles.sudoku.solver import rating, solve
from hrm_puzzles.sudoku.sudoku import Sudoku

BOARD_9 = SudokuBoard(box_rows=3, box_cols=3)
BOARDS = [SudokuBoard(box_rows=2, box_cols=2), SudokuBoard(box_rows=2, box_cols=3), BOARD_9]
NAMES = ["sudoku-4x4", "sudoku-6x6", "sudoku"]
CASES = [
    (name, difficulty) for name in NAMES for difficulty in registry.get(name).difficulties if difficulty != "extreme"
]

# Questions made for this project; their ratings were counted by another implementation of the same definition.
RATED = [
    (".....856.....9...43..4.5....76..4..91.9.7.3...........5..24..7...3..1....9...7..5", 0),
    ("..7928........74.....6......6..15..431.....2...8.....16.5.............95.94....17", 2),
    ("8....3.6..6.......9..8...25....5...2..1..4....2.1...3..37..9.8....54.9......3....", 11),
    ("5....9....7...8..4...3..8...32..69...1.......4.......86..1...3...3...7...4..5.26.", 36),
    ("4..1.73....9..6.2.6........2....4.....5.834.........5.......7.6..42....35...3...1", 81),
    ("..59..8......3...51........51...7..8.....4.3...6.....2.5..76....9..4..7...41..3..", 147),
    (".......7......5..248........327..5.9.....268......1.3...19.7..55...8..1..7...4.6.", 0),
    ("34.....8.....9.5...7.1........74...6.....1..412.9....36..4.........3..127......9.", 1),
    ("..28......5..7.2..37...1......6..1.5.......3..8.....94..9..4..61....3.4...5..9..2", 3),
    ("..1..7..63.....8...7...1..296....2.5732.........8.....69..3.....2..49.6.....6.59.", 10),
]


def cells_of(text: str) -> list[int]:
    return [0 if character == "." else int(character) for character in text]


def peers_of(board: SudokuBoard) -> list[set[int]]:
    same_GTT = board.groups_GT[:, :, None] == board.groups_GT[:, None, :]
    return [set(np.flatnonzero(row).tolist()) - {cell} for cell, row in enumerate(same_GTT.any(axis=0))]


def plain_count(board: SudokuBoard, cells: list[int], limit: int = 2) -> int:
    """Solutions up to a limit, by trying digits in the tightest cell and nothing else."""
    options = {
        cell: set(range(1, board.side + 1)) - {cells[peer] for peer in peers}
        for cell, peers in enumerate(peers_of(board))
        if not cells[cell]
    }
    if not options:
        return 1
    cell = min(options, key=lambda open_cell: len(options[open_cell]))
    count = 0
    for digit in options[cell]:
        count += plain_count(board, [*cells[:cell], digit, *cells[cell + 1 :]], limit - count)
        if count >= limit:
            break
    return count


class PlainRating:
    """The definition of the rating, step by step on sets of candidates."""

    def __init__(self, board: SudokuBoard) -> None:
        self.board, self.peers, self.backtracks = board, peers_of(board), 0

    def solves(self, options: list[set[int]]) -> bool:
        if not self.propagates(options):
            return False
        open_cells = [cell for cell, digits in enumerate(options) if len(digits) > 1]
        if not open_cells:
            return True
        cell = min(open_cells, key=lambda open_cell: len(options[open_cell]))
        for digit in sorted(options[cell]):
            if self.solves([{digit} if at == cell else set(digits) for at, digits in enumerate(options)]):
                return True
            self.backtracks += 1
        return False

    def propagates(self, options: list[set[int]]) -> bool:
        before = None
        while before != options:
            before = [set(digits) for digits in options]
            for cell, digits in enumerate(options):
                if len(digits) == 1:
                    for peer in self.peers[cell]:
                        options[peer] -= digits
            for unit in self.board.units_US.tolist():
                for digit in range(1, self.board.side + 1):
                    places = [cell for cell in unit if digit in options[cell]]
                    if not places:
                        return False
                    if len(places) == 1:
                        options[places[0]] &= {digit}
            if not all(options):
                return False
        return True


@pytest.mark.parametrize(("question", "expected"), RATED)
def test_rating_equals_that_of_another_implementation(question: str, expected: int) -> None:
    assert rating(BOARD_9, np.array(cells_of(question))) == expected


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: f"{board.side}x{board.side}")
def test_rating_equals_its_definition_spelled_out(board: SudokuBoard) -> None:
    rng = np.random.default_rng(5)
    for _ in range(4):
        question = generate(board, rng, "minimal").question
        plain = PlainRating(board)
        digits = set(range(1, board.side + 1))
        assert plain.solves([{given} if given else set(digits) for given in question.reshape(-1).tolist()])
        assert rating(board, question) == plain.backtracks


@pytest.mark.parametrize("board", BOARDS[:2], ids=lambda board: f"{board.side}x{board.side}")
def test_number_of_solutions_is_that_of_plain_trying(board: SudokuBoard) -> None:
    rng = np.random.default_rng(7)
    counts: set[int] = set()
    for _ in range(60):
        cells = rng.integers(1, board.side + 1, board.num_cells) * (rng.random(board.num_cells) < 0.25)
        rows = cells.astype(np.int8).reshape(board.side, board.side)
        is_clashing = any(np.bincount(cells[unit])[1:].max(initial=0) > 1 for unit in board.units_US)
        found = len(solve(board, rows, max_solutions=2).grids)
        assert found == (0 if is_clashing else plain_count(board, cells.tolist()))
        counts.add(found)
    assert counts >= {0, 2}


def test_search_stops_at_its_allowance_and_says_so() -> None:
    grid = np.array(cells_of(RATED[5][0]))
    outcome = solve(BOARD_9, grid, max_solutions=1, max_tries=20)
    assert (outcome.is_complete, outcome.grids) == (False, ())
    assert solve(BOARD_9, grid, max_solutions=1).is_complete


def test_question_that_plain_reasoning_cannot_end_is_given_up() -> None:
    endless = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."
    outcome = solve(BOARD_9, np.array(cells_of(endless)), max_tries=300)
    assert not outcome.is_complete
    assert outcome.backtracks <= 300


@pytest.mark.parametrize(("name", "difficulty"), CASES)
def test_generated_questions_have_one_solution_and_it_is_the_label(name: str, difficulty: str) -> None:
    puzzle, rng = registry.get(name), np.random.default_rng(11)
    assert isinstance(puzzle, Sudoku)
    for _ in range(2):
        example = puzzle.generate(rng, difficulty)
        question_T, answer_T = puzzle.encode(example.question), puzzle.encode(example.answer)
        assert puzzle.check_BT(question_T[None], answer_T[None]).tolist() == [RIGHT]
        assert plain_count(puzzle, example.question.reshape(-1).tolist()) == 1


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
