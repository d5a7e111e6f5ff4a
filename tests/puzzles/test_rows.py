"""Files of other people: any header, no header, and boards between blank lines."""

import io
from pathlib import Path

import pytest
from csv_shapes import SHAPES, csv_of, made

from hrm_host.progress import unheard
from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build
from hrm_puzzles.data.datasets import DatasetError, open_split
from hrm_puzzles.data.examples import read_examples
from hrm_puzzles.data.rows import Row, rows_in
from hrm_puzzles.data.sources import find_questions
from hrm_puzzles.puzzle import Puzzle

SMALL = registry.get("sudoku-4x4")
SOLVED = "1234341221434321"
OPEN = "1.3.34122143432."


each_shape = pytest.mark.parametrize(("puzzle", "header", "row"), SHAPES.values(), ids=SHAPES)


@each_shape
def test_a_file_of_any_origin_builds_the_puzzles_that_made_it(
    puzzle: Puzzle, header: str, row: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(csv_of(puzzle, header, row), encoding="utf-8")
    recipe = DataRecipe(puzzle=puzzle.name, num_train=0, num_test=1, csv_train=str(file))
    assert build(recipe, tmp_path / "data").num_train == 6
    split = open_split(tmp_path / "data", "train")
    inputs = [puzzle.encode(example.question).tolist() for example in made(puzzle)]
    labels = [puzzle.encode(example.answer).tolist() for example in made(puzzle)]
    held_out = find_questions(str(file), puzzle, count=6, progress=unheard)
    assert held_out.tokens_NT.tolist() == inputs
    assert held_out.labels_NT.tolist() == labels
    assert split.inputs(slice(None)).tolist() == inputs
    assert split.labels(slice(None)).tolist() == labels


def rows_of(text: str, puzzle: Puzzle = SMALL, columns: str | None = None) -> list[Row]:
    lines = io.StringIO(text, newline="")
    return list(rows_in(lines, [puzzle], name="x.csv", columns=columns))


NAMED = f"start,end,cost\n{OPEN},{SOLVED},7\n"


@pytest.mark.parametrize("columns", ["start,end,cost", "1,2,3", "START, 2,3"])
def test_columns_are_named_or_numbered(columns: str) -> None:
    assert rows_of(NAMED, columns=columns) == [Row(2, OPEN, SOLVED, 7)]
    bare = NAMED.partition("\n")[2]
    if columns == "1,2,3":
        assert rows_of(bare, columns=columns) == [Row(1, OPEN, SOLVED, 7)]


def test_quoted_boards_have_several_lines() -> None:
    (row,) = rows_of('puzzle,solution\n"1.3.\n3412\n2143\n432.",1234341221434321\n')
    assert row == Row(5, "1.3.\n3412\n2143\n432.", SOLVED)


BOARD = "1.3.\n3412\n2143\n432."
WITH_COMMAS = "1,0,3,0\n3,4,1,2\n2,1,4,3\n4,3,2,0"
TEXTS = {
    "blank lines part boards": (f"{BOARD}\n\n{BOARD}\n \n\n{BOARD}", [BOARD] * 3),
    "remarks": (f"# the first\n\n{BOARD}\n\n# the second\n\n{BOARD}\n", [BOARD] * 2),
    "a wrong board": (f"1.3.\n3412\n\n{BOARD}\n", ["1.3.\n3412", BOARD]),
    "one board with a gap": ("1.3.\n3412\n\n2143\n432.\n", ["1.3.\n3412\n\n2143\n432."]),
    "lines": (f"{OPEN}\n\n# a remark\n{SOLVED}\n", [OPEN, SOLVED]),
    "a board with commas": (WITH_COMMAS, [WITH_COMMAS]),
}


@pytest.mark.parametrize(("text", "boards"), TEXTS.values(), ids=TEXTS)
def test_blank_lines_part_the_boards_of_a_text(text: str, boards: list[str]) -> None:
    assert [row.question for row in rows_of(text)] == boards


def test_text_boards_are_labelled_by_the_exact_solver(tmp_path: Path) -> None:
    file = tmp_path / "boards.txt"
    file.write_text(f"{BOARD}\n\n{BOARD}\n", encoding="utf-8")
    rows = read_examples(file, SMALL)
    assert rows["labels"].tolist() == [SMALL.encode(SMALL.parse(SOLVED).grid).tolist()] * 2


HEADER = "puzzle,solution"
FAULTS = [
    (f"{HEADER}\n{OPEN}\n", None, f"line 2: the row '{OPEN}' has 1 columns; write at least 2"),
    ("a,b\nc,d\n", None, "line 1: the columns are ['a', 'b'], and none holds a puzzle; begin"),
    (NAMED, "start,answer", "line 1: --columns start,answer: the columns are ['start', 'end'"),
    (NAMED, "1,4", "give two of these names, or numbers from 1 to 3"),
    (NAMED, "1,2,3,1", "line 1: --columns 1,2,3,1 names 4 columns; name QUESTION,ANSWER"),
    (f"start,end,cost\n{OPEN},{SOLVED},hard", "1,2,3", "line 2: the rating is 'hard'; write a"),
    (f'{HEADER}\n{OPEN},"{"1" * 140_000}\n', None, "field larger than field limit (131072)"),
]


@pytest.mark.parametrize(("text", "columns", "fault"), FAULTS)
def test_a_malformed_row_names_its_line_its_value_and_a_remedy(
    text: str, columns: str | None, fault: str
) -> None:
    with pytest.raises(DatasetError) as caught:
        rows_of(text, columns=columns)
    assert fault in str(caught.value)
    assert str(caught.value).startswith("x.csv, line ")


def test_a_question_without_a_right_answer_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "boards.txt"
    file.write_text(f"{OPEN}\n{'.' * 16}\n", encoding="utf-8")
    with pytest.raises(DatasetError, match="line 2: the puzzle has more than one solution"):
        read_examples(file, SMALL)
