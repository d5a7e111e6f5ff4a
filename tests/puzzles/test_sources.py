"""Sources of puzzles: CSV files, where every fault names its line, and sets of questions."""

import json
from pathlib import Path

import numpy as np
import pytest

from hrm_host.progress import unheard
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.examples import read_examples
from hrm_puzzles.data.sources import Questions, find_questions, is_held_out_N, questions_made
from hrm_puzzles.puzzle import Puzzle
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
    ("made,1.3.34122143432.,123,0", "in the answer '123' the text has 3 cells instead of 16"),
    (f"made,1.3.34122143432.,{SOLVED}", "the row 'made,1.3.34122143432' has 3 columns"),
    (f"made,1.3.34122143432.,{SOLVED},-1", "the rating is '-1'"),
    (f"made,1.x.34122143432.,{SOLVED},0", "the cell at row 1, column 3 is 'x'"),
    (f"made,4.3.34122143432.,{SOLVED},0", f"the answer '{SOLVED}' does not solve the question"),
    ("," * (1 << 20), "line 4 has more than 1048576 characters"),
]


@pytest.mark.parametrize(("line", "fault"), FAULTY_ROWS)
def test_faulty_row_is_refused_with_its_line(tmp_path: Path, line: str, fault: str) -> None:
    path = written(tmp_path, HEADER, GOOD, "", line)
    with pytest.raises(DatasetError) as caught:
        read_examples(path, SMALL)
    assert "line 4: " in str(caught.value)
    assert f"{fault}; " in str(caught.value)


def maze_row(*, path: str = "o", rating: int = 4) -> str:
    """A 10x10 maze with an open first row. Its rows may begin and end with spaces."""
    walls = "#" * 94
    return f"made, S  G{walls} , S{path * 2}G{walls} ,{rating}"


def test_mazes_are_read_in_the_same_form_with_the_spaces_at_their_ends(tmp_path: Path) -> None:
    maze = registry.get("maze-10x10")
    rows = read_examples(written(tmp_path, HEADER, maze_row()), maze)
    assert rows["inputs"][0, :6].tolist() == [2, 3, 2, 2, 4, 1]
    assert rows["labels"][0, :6].tolist() == [2, 3, 5, 5, 4, 1]
    assert rows["inputs"][0, 99] == 2
    with pytest.raises(DatasetError, match=r"line 2: the answer .* does not solve the question"):
        read_examples(written(tmp_path, HEADER, maze_row(path=" ")), maze)


def test_puzzles_without_this_form_say_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="arc does not have a CSV form"):
        read_examples(written(tmp_path, HEADER, GOOD), registry.get("arc"))


def found(
    source: object, puzzle: Puzzle = SMALL, count: int = 6, data: Path | None = None
) -> Questions:
    return find_questions(str(source), puzzle, count=count, data=data, progress=unheard)


def write_data(path: Path, puzzle: Puzzle, name: str | None, count: int = 5) -> Path:
    tokens_NT = np.random.default_rng(0).integers(1, puzzle.vocab_size, (count, puzzle.seq_len))
    datasets.write_split(path, "test", tokens_NT, tokens_NT, puzzle=puzzle)
    if name is not None:
        (path / datasets.RECIPE).write_text(json.dumps({"puzzle": name}))
    return path


@pytest.mark.parametrize("name", ["sudoku", "sudoku-4x4"])
def test_a_name_makes_fresh_puzzles_of_the_models_own_size(name: str) -> None:
    asked = found(name)
    assert asked.tokens_NT.shape == (6, 16)
    assert (SMALL.check_BT(asked.tokens_NT, asked.labels_NT) == 1).all()


def test_made_puzzles_are_of_classes_no_training_split_holds_and_the_same_each_time() -> None:
    made = questions_made(SMALL, 12)
    tokens_NT = made.tokens_NT.astype(np.uint8)
    labels_NT = made.labels_NT.astype(np.uint8)
    assert is_held_out_N(SMALL, tokens_NT, labels_NT).all()
    assert questions_made(SMALL, 12).fingerprint() == made.fingerprint()


def test_a_path_gives_the_test_split(tmp_path: Path) -> None:
    assert len(found(write_data(tmp_path / "data", SMALL, "sudoku-4x4"))) == 5
    assert len(found(write_data(tmp_path / "published", SMALL, None), count=3)) == 3


def test_a_name_may_stand_for_a_data_set(tmp_path: Path) -> None:
    """ARC tasks are made by people, so that their name alone gives none."""
    arc = registry.get("arc-10x10")
    data = write_data(tmp_path / "arc", arc, "arc-10x10")
    assert len(found("arc", arc, data=data)) == 5
    with pytest.raises(ValueError, match="made by people; give the path of a data set"):
        found("arc", arc)


@pytest.mark.parametrize("name", ["maze", "sudoku-6x6", "nothing"])
def test_a_name_of_another_puzzle_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="the model, which is sudoku-4x4; give sudoku or the path"):
        found(name)


def test_a_data_set_of_another_puzzle_is_refused(tmp_path: Path) -> None:
    same_size = Sudoku(name="sudoku-x", box_rows=2, box_cols=2)
    data = write_data(tmp_path / "data", same_size, "sudoku-x")
    with pytest.raises(ValueError, match="holds sudoku-x, but the model is for sudoku-4x4"):
        found(data)


def test_a_fingerprint_knows_tokens_labels_and_tasks() -> None:
    asked = found("sudoku")
    others = []
    for name in ("tokens_NT", "labels_NT", "puzzle_ids_N"):
        changed = asked.at(np.arange(len(asked)))
        getattr(changed, name)[0] += 1
        others.append(changed.fingerprint())
    assert len({asked.fingerprint(), *others}) == 4
