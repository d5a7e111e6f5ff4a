"""Sources of puzzles: files in any form, faults named by line, and sets of questions."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hrm_host.progress import unheard
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.build import DataRecipe, build
from hrm_puzzles.data.datasets import DatasetError, open_split
from hrm_puzzles.data.examples import read_examples
from hrm_puzzles.data.sources import Questions, find_questions, is_held_out_N, questions_made
from hrm_puzzles.puzzle import Example, Puzzle
from hrm_puzzles.reading.record import PuzzleRecord
from hrm_puzzles.reading.records import records_in
from hrm_puzzles.sudoku.sudoku import Sudoku

HEADER = "source,question,answer,rating"
SMALL = registry.get("sudoku-4x4")
GOOD = "made,....34122143432.,1234341221434321,7"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


SOLVED = "1234341221434321"
FAULTY_ROWS = [
    (f"made,1.3.,{SOLVED},0", "in the question '1.3.' the text has 4 cells instead of 16"),
    (f"made,1.3.34122143432.,{SOLVED}", "the row 'made,1.3.34122143432' has 3 columns"),
    (f"made,1.x.34122143432.,{SOLVED},0", "the cell at row 1, column 3 is 'x'"),
    (f"made,4.3.34122143432.,{SOLVED},0", f"the answer '{SOLVED}' does not solve the question"),
    ("," * (1 << 24), "line 4 has more than 16777216 characters"),
]


@pytest.mark.parametrize(("line", "fault"), FAULTY_ROWS)
def test_faulty_row_is_refused_with_its_line(tmp_path: Path, line: str, fault: str):
    path = written(tmp_path, HEADER, GOOD, "", line)
    with pytest.raises(DatasetError) as caught:
        read_examples(path, SMALL)
    assert "line 4: " in str(caught.value)
    assert f"{fault}; " in str(caught.value)


def found(
    source: object, puzzle: Puzzle = SMALL, count: int = 6, data: Path | None = None
) -> Questions:
    return find_questions(str(source), puzzle, count=count, data=data, progress=unheard)


def write_data(path: Path, puzzle: Puzzle, name: str | None) -> Path:
    tokens_NT = np.random.default_rng(0).integers(1, puzzle.vocab_size, (5, puzzle.seq_len))
    datasets.write_split(path, "test", tokens_NT, tokens_NT, puzzle=puzzle)
    if name is not None:
        (path / datasets.RECIPE).write_text(json.dumps({"puzzle": name}))
    return path


@pytest.mark.parametrize("name", ["sudoku", "sudoku-4x4"])
def test_a_name_makes_the_same_fresh_puzzles_of_classes_no_training_split_holds(name: str):
    asked = found(name)
    assert asked.tokens_NT.shape == (6, 16)
    assert (SMALL.check_BT(asked.tokens_NT, asked.labels_NT) == 1).all()
    assert is_held_out_N(SMALL, asked.tokens_NT, asked.labels_NT).all()
    again = questions_made(SMALL, 6)
    assert np.array_equal(again.tokens_NT, asked.tokens_NT)
    assert np.array_equal(again.labels_NT, asked.labels_NT)


def test_a_path_or_a_name_gives_the_test_split_of_its_puzzle(tmp_path: Path):
    assert len(found(write_data(tmp_path / "data", SMALL, "sudoku-4x4"))) == 5
    assert len(found(write_data(tmp_path / "published", SMALL, None), count=3)) == 3
    arc = registry.get("arc-10x10")
    data = write_data(tmp_path / "arc", arc, "arc-10x10")
    assert len(found("arc", arc, data=data)) == 5
    with pytest.raises(ValueError, match="made by people; give the path of a data set"):
        found("arc", arc)
    same_size = Sudoku(name="sudoku-x", box_rows=2, box_cols=2)
    data = write_data(tmp_path / "other", same_size, "sudoku-x")
    with pytest.raises(ValueError, match="holds sudoku-x, but the puzzle is sudoku-4x4"):
        found(data)


OPEN = "1.3.34122143432."


MAZE = registry.get("maze-8x8")
CITY = registry.get("logistics-6x6")
SUDOKU = registry.get("sudoku-6x6")
SHAPES = {
    "a million games": (SUDOKU, "quizzes,solutions", "{zeros},{a}"),
    "Sudoku-Extreme": (SUDOKU, HEADER, "made,{q},{a},{r}"),
    "Maze-Hard": (MAZE, HEADER, "made,{q},{a},{r}"),
    "spaces at both ends": (MAZE, HEADER, "made,{spaces},{a},{r}"),
    "answer first": (SUDOKU, "No.;Lösung;Start", "7;{a};{q}"),
    "tabs": (MAZE, "Puzzle\tSolution\t", "{q}\t{a}\t"),
    "questions alone": (MAZE, "puzzle", "{q}"),
    "cities": (CITY, "id,city,tour,cost", "7,{q},{a},{r}"),
    "cities alone": (CITY, "", "7,{q}"),
}


def filled(row: str, puzzle: Puzzle, example: Example) -> str:
    """A row in the shape of a well-known data set with the values of an example."""
    question = puzzle.asked(example.question, "").replace("\n", "")
    answer = puzzle.asked(example.answer, "").replace("\n", "")
    marked = {"zeros": question.replace(".", "0"), "spaces": question.replace(".", " ")}
    return row.format(q=question, a=answer, r=example.rating, **marked)


@pytest.mark.parametrize(("puzzle", "header", "row"), SHAPES.values(), ids=SHAPES)
def test_files_of_any_origin_build(puzzle: Puzzle, header: str, row: str, tmp_path: Path):
    rng = np.random.default_rng(5)
    examples = [puzzle.generate(rng, "easy") for _ in range(6)]
    lines = [filled(row, puzzle, example) for example in examples]
    file = written(tmp_path, *filter(None, [header]), *lines)
    recipe = DataRecipe(puzzle=puzzle.name, num_train=0, num_test=1, csv_train=file)
    assert build(recipe, tmp_path / "data").num_train == 6
    split = open_split(tmp_path / "data", "train", puzzle)
    inputs = [puzzle.encode(example.question).tolist() for example in examples]
    labels = [puzzle.encode(example.answer).tolist() for example in examples]
    held_out = find_questions(str(file), puzzle, count=6, progress=unheard)
    assert held_out.tokens_NT.tolist() == inputs
    assert held_out.labels_NT.tolist() == labels
    assert split.inputs(slice(None)).tolist() == inputs
    assert split.labels(slice(None)).tolist() == labels


def records_of(text: str, columns: str | None = None) -> list[PuzzleRecord]:
    lines = io.StringIO(text, newline="")
    return list(records_in(lines, [SMALL], name="x.csv", columns=columns))


NAMED = f"start,end,cost\n{OPEN},{SOLVED},7\n"


@pytest.mark.parametrize("columns", ["start,end,cost", "1,2,3", "START, 2,3"])
def test_columns_are_named_or_numbered(columns: str):
    row = PuzzleRecord(place="line 2", question=OPEN, answer=SOLVED, rating="7")
    assert records_of(NAMED, columns=columns) == [row]
    bare = NAMED.partition("\n")[2]
    if columns == "1,2,3":
        assert records_of(bare, columns=columns) == [replace(row, place="line 1")]


def test_quoted_boards_have_several_lines():
    (row,) = records_of('puzzle,solution\n"1.3.\n3412\n2143\n432.",1234341221434321\n')
    assert (row.place, row.question, row.answer) == ("line 5", "1.3.\n3412\n2143\n432.", SOLVED)


BOARD = "1.3.\n3412\n2143\n432."
WITH_COMMAS = "1,0,3,0\n3,4,1,2\n2,1,4,3\n4,3,2,0"
TEXTS = {
    "blank lines part boards": (f"{BOARD}\n\n{BOARD}\n \n\n{BOARD}", [BOARD] * 3),
    "rules part boards": (f"{BOARD}\n========\n{BOARD}\n", [BOARD] * 2),
    "one board with a gap": ("1.3.\n3412\n\n2143\n432.\n", ["1.3.\n3412\n\n2143\n432."]),
    "lines": (f"{OPEN}\n\n# a remark\n{SOLVED}\n", [OPEN, SOLVED]),
    "a board with commas": (WITH_COMMAS, [WITH_COMMAS]),
    "a list in objects": (f'{{"new": {{"grids": [{{"value": "{OPEN}"}}], "n": 1}}}}', [OPEN]),
}


@pytest.mark.parametrize(("text", "boards"), TEXTS.values(), ids=TEXTS)
def test_blank_lines_part_the_boards_of_a_text(text: str, boards: list[str]):
    assert [row.question for row in records_of(text)] == boards


def test_a_text_board_with_two_solutions_is_rejected(tmp_path: Path):
    with pytest.raises(DatasetError, match="line 2: the puzzle has more than one solution"):
        read_examples(written(tmp_path, OPEN, "." * 16), SMALL)


TWO_COLUMNS = "puzzle,solution"


def test_all_bad_rows_are_listed_and_can_be_omitted(tmp_path: Path):
    file = written(tmp_path, HEADER, GOOD, f"made,12,{SOLVED},1", GOOD, f"made,{OPEN},{OPEN},1")
    saying = r"2 rows are bad \(line 3, line 5\); correct them, or omit them with hrm-data build"
    with pytest.raises(DatasetError, match=saying):
        read_examples(file, SMALL)
    content = read_examples(file, SMALL, skip_bad=True)
    assert (len(content.rows), list(content.faults)) == (2, ["line 3", "line 5"])


def test_a_rating_that_is_no_whole_number_is_unknown(tmp_path: Path):
    said = []
    rows = [GOOD.replace(",7", rating) for rating in (",7", ",easy", ",7.2", ",")]
    content = read_examples(written(tmp_path, HEADER, *rows), SMALL, say=said.append)
    assert content.rows["rating"].tolist() == [7, 0, 0, 0]
    (sentence,) = said
    assert "2 ratings of" in sentence
    assert "the first is 'easy' in line 3" in sentence


FAULTS = [
    ("a,b\nc,d\n", None, "line 1: the columns are ['a', 'b'], and none holds a puzzle; begin"),
    (NAMED, "start,answer", "line 1: --columns start,answer: the columns are ['start', 'end'"),
    (NAMED, "1,4", "give two of these names, or numbers from 1 to 3"),
    (NAMED, "1,2,3,1", "line 1: --columns 1,2,3,1 names 4 columns; name QUESTION,ANSWER"),
    (f'{TWO_COLUMNS}\n{OPEN},"{"1" * 140_000}\n', None, "field larger than field limit (131072)"),
]


@pytest.mark.parametrize(("text", "columns", "fault"), FAULTS)
def test_a_malformed_row_names_its_line(text: str, columns: str | None, fault: str):
    with pytest.raises(DatasetError) as caught:
        records_of(text, columns=columns)
    assert fault in str(caught.value)
    assert str(caught.value).startswith("x.csv, line ")
