"""One reader for every file and text: nothing on a board is dropped, moved or guessed."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from puzzle_tools import solved_boards

from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build, import_file
from hrm_puzzles.data.datasets import DatasetError, open_split
from hrm_puzzles.data.examples import read_examples
from hrm_puzzles.data.inspection import inspect
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.puzzle import Grid, PuzzleError
from hrm_puzzles.reading.records import records_at

MAZE = registry.get("maze")
SMALL = registry.get("maze-8x8")
TWO_SHAPES = {
    "an open first column": " S#\n  #\n G#",
    "an open last column": "#S  \n#   \n#G  ",
    "an open last row": "#####\n#S G#\n     ",
    "spaces between spaces": "\n".join(" ".join(line) for line in ("###", "S G", "###")),
}


@pytest.mark.parametrize("text", TWO_SHAPES.values(), ids=TWO_SHAPES)
def test_a_maze_that_shows_two_shapes_is_rejected(text: str):
    with pytest.raises(PuzzleError) as rejected:
        MAZE.framed(text)
    assert rejected.value.rule == "ambiguous"
    assert rejected.value.remedy == "write . for open cells"


@pytest.mark.parametrize("kind", registry.names())
@pytest.mark.parametrize("text", ["", "\n", " \n \n", "\t\n\t\t\n", "\ufeff\u200b", "|\n|", "[\n]"])
def test_a_text_without_cells_is_rejected(kind: str, text: str):
    with pytest.raises(PuzzleError):
        registry.get(kind).parse(text)


@pytest.mark.parametrize(
    "piece", ["\n", " \n", "1\n", "\t", "-", "E", "EX@*", "nan ", "[", "+-", "a.", "S=", "=\t"]
)
def test_a_text_of_the_greatest_length_is_judged_in_bounded_time(piece: str):
    text = piece * (4000 // len(piece))
    began = time.process_time()
    for kind in ("sudoku", "maze", "logistics"):
        with pytest.raises(PuzzleError):
            registry.get(kind).parse(text)
    assert time.process_time() - began < 0.5  # at most 30 ms each on an idle core


def one_line_mazes(count: int) -> list[str]:
    """Mazes in a line each; every second line begins with "# " like a remark."""
    rng = np.random.default_rng(7)
    mazes = []
    while len(mazes) < count:
        question = SMALL.generate(rng, "medium").question
        line = SMALL.asked(question, "").replace("\n", "").replace(".", " ")
        if len(mazes) % 2 or line.startswith("# "):
            mazes.append(line)
    return mazes


def test_a_maze_that_begins_like_a_remark_is_read(tmp_path: Path):
    file = tmp_path / "mazes.txt"
    mazes = one_line_mazes(200)
    remarked = ["# 200 mazes, made for a test", *mazes[:100], "", "# more", *mazes[100:]]
    file.write_text("\n".join(remarked))
    assert [record.question for record in records_at(file, [SMALL])] == mazes
    assert len(read_examples(file, SMALL).rows) == 200


CLOSED = "######\n#S.G.#\n#....#\n######"
ONE_LINE = "".join(["#" * 8, "#S....G#", *["#......#"] * 5, "#" * 8])
PARTED = {
    "a line each": (ONE_LINE, "\n"),
    "blank lines": (CLOSED, "\n\n"),
    "remarks": (CLOSED, "\n# the next\n"),
    "numbers": (CLOSED, "\n# 2\n"),
    "slashes": (CLOSED, "\n//2\n"),
    "headings": (CLOSED, "\nMaze 2\n"),
}


@pytest.mark.parametrize(("board", "between"), PARTED.values(), ids=PARTED)
def test_no_row_with_a_wrong_mark_is_lost_as_a_remark(board: str, between: str, tmp_path: Path):
    boards = [board, "#?" + board[2:], board[:-1] + "Q", board]
    file = tmp_path / "boards.txt"
    file.write_text(between.join(boards))
    kind = SMALL if board == ONE_LINE else MAZE
    for kinds in ([kind], [SMALL, kind, registry.get("arc-7x7"), registry.get("sudoku")]):
        assert [record.question for record in records_at(file, kinds)] == boards


def test_no_array_after_the_first_of_a_file_is_lost(tmp_path: Path):
    with (tmp_path / "two.npy").open("wb") as file:
        for _ in range(2):
            np.save(file, np.ones((9, 9), int))
    with pytest.raises(DatasetError, match=r"\(9, 9\) has 648 bytes, but its file has 1424"):
        list(records_at(tmp_path / "two.npy", [registry.get("sudoku")]))


def test_a_zero_that_can_be_a_digit_is_one_sentence():
    large = registry.get("sudoku-16x16")
    example = large.generate(np.random.default_rng(1), "easy")
    to_hexadecimal = str.maketrans("123456789ABCDEFG", "0123456789ABCDEF")
    text = large.asked(example.question, "").translate(to_hexadecimal)
    lines = [text[start : start + 16] for start in range(0, 256, 16)]
    numbers = (example.question - 1).tolist()
    nulls = [[None if value < 0 else value for value in row] for row in numbers]
    for board in (text, text.lower(), "\n".join(lines), lines, numbers, nulls):
        with pytest.raises(PuzzleError, match="0 can be a blank or a digit"):
            large.parse(board)
        with pytest.raises(PuzzleError, match="0 can be a blank or a digit"):
            large.board_of(board)


FOUR = registry.get("sudoku-4x4")
TWO_SOLUTIONS = "1234" + "34..21..43.."  # the last two columns can be exchanged
ANSWER = "1234341221434321"


def test_ambiguous_questions_of_a_file_are_counted(tmp_path: Path):
    file = tmp_path / "rows.csv"
    rows = [f"{TWO_SOLUTIONS},{ANSWER}", f"1.3.34122143432.,{ANSWER}"]
    file.write_text("\n".join(["question,answer", *rows]))
    said = []
    recipe = DataRecipe(puzzle="sudoku-4x4", num_train=0, num_test=2, csv_train=file)
    build(recipe, tmp_path / "built", say=said.append)
    import_file(file, FOUR, tmp_path / "imported", split="train", say=said.append)
    sentence = f"questions of {file} with more than one solution: 1; remove them."
    assert said == [sentence, sentence]
    report = inspect(tmp_path / "built")
    assert report.faults == ["train has 1 question with more than one solution."]


def page_export(path: Path, count: int) -> Path:
    path.write_text("\n".join(map(json.dumps, solved_boards(SMALL, count))))
    return path


def test_a_file_that_fills_one_split_is_rejected_with_a_command_that_works(tmp_path: Path):
    file = page_export(tmp_path / "maze-8x8.ndjson", 1)
    out = tmp_path / "data"
    with pytest.raises(DatasetError, match="the test split would be empty") as refused:
        import_file(file, SMALL, out)
    assert f"hrm-data build maze-8x8 --csv-train {file} --test 200" in str(refused.value)
    recipe = DataRecipe(puzzle="maze-8x8", num_train=0, num_test=4, csv_train=file)
    build(recipe, out)
    assert inspect(out).faults == []


def test_a_missing_split_is_a_fault_and_says_so_in_training(tmp_path: Path):
    out = tmp_path / "data"
    import_file(page_export(tmp_path / "x.ndjson", 3), SMALL, out, split="train")
    assert inspect(out).faults == ["the split test is missing, and hrm-train needs both."]
    with pytest.raises(DatasetError, match=r"has no test split: .*dataset.json is absent"):
        open_split(out, "test", SMALL)


CITY = registry.get("logistics-6x6")
UNSOLVED = {
    "an object": lambda boards: json.dumps(boards[0]),
    "a list": json.dumps,
    "lines": lambda boards: "\n".join(map(json.dumps, boards)),
    "under names": lambda boards: json.dumps(dict(enumerate(boards))),
    "under one name": lambda boards: json.dumps({"boards": boards}),
    "as questions": lambda boards: json.dumps([{"puzzle": board} for board in boards]),
}


def object_of(kind: GridPuzzle, grid: Grid) -> dict[str, object]:
    """A question as a JSON object with its stops apart from the grid."""
    first, second = (np.argwhere(grid == stop).tolist() for stop in kind.stops)
    if kind is CITY:
        costs = np.where(grid > 4, 1, grid).tolist()
        return {"grid": costs, "depot": first[0], "customers": second}
    walls = (grid == kind.wall).astype(int).tolist()
    return {"grid": walls, "start": first[0], "goal": second[0]}


@pytest.mark.parametrize("form", UNSOLVED.values(), ids=UNSOLVED)
@pytest.mark.parametrize("kind", [SMALL, CITY], ids=lambda kind: kind.name)
@pytest.mark.parametrize("answered", [False, True])
def test_objects_without_a_solution_are_labelled_by_the_exact_solver(
    tmp_path: Path, form: Callable[[list[object]], str], kind: GridPuzzle, answered: bool
):
    """Marks of an answer in the object are no part of the question."""
    examples = [kind.generate(np.random.default_rng(seed), "easy") for seed in range(3)]
    boards = []
    for example in examples:
        board = object_of(kind, example.question)
        boards.append(kind.object_of(board, example.answer) if answered else board)
    file = tmp_path / "boards.json"
    file.write_text(form(boards))
    rows = read_examples(file, kind).rows
    assert len(rows) in (1, 3)
    for row, example in zip(rows, examples, strict=False):
        assert row["inputs"].tolist() == kind.encode(example.question).tolist()
        assert row["labels"].tolist() == kind.encode(example.answer).tolist()
