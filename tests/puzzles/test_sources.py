"""The CSV form of Sudoku-Extreme is read with its ratings; every fault names its line."""

from pathlib import Path

import pytest

from hrm_puzzles import registry
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.sources import read_csv

HEADER = "source,question,answer,rating"

SMALL = registry.get("sudoku-4x4")
GOOD = "made,....34122143432.,1234341221434321,7"


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_rows_are_read_as_tokens_with_their_ratings(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, "made,1.3.34122143432.,1234341221434321,12", GOOD)
    rows = read_csv(path, SMALL)
    assert rows["inputs"][0, :6].tolist() == [2, 1, 4, 1, 4, 5]
    assert rows["labels"][0, :6].tolist() == [2, 3, 4, 5, 4, 5]
    assert rows["rating"].tolist() == [12, 7]


SOLVED = "1234341221434321"
NOT_SOLVED = "the answer does not solve the question"
FAULTY_ROWS = [
    (f"made,1.3.,{SOLVED},0", "in the question the text has 4 characters"),
    ("made,1.3.34122143432.,123,0", "in the answer the text has 3 characters"),
    (f"made,1.3.34122143432.,{SOLVED}", "the row has 3 columns"),
    (f"made,1.3.34122143432.,{SOLVED},hard", "the rating is 'hard'"),
    (f"made,1.3.34122143432.,{SOLVED},-1", "the rating is '-1'"),
    (f"made,1.x.34122143432.,{SOLVED},0", "in the question the cell at row 1, column 3 is 'x'"),
    ("made,1.3.34122143432.,12343412214343.1,0", NOT_SOLVED),
    (f"made,4.3.34122143432.,{SOLVED},0", NOT_SOLVED),
    (f"made,{'1' * 140_000},{SOLVED},0", "field larger than field limit (131072)"),
    ("," * (1 << 20), "line 4 has more than 1048576 characters"),
]


@pytest.mark.parametrize(("line", "fault"), FAULTY_ROWS)
def test_faulty_row_is_refused_with_its_line(tmp_path: Path, line: str, fault: str) -> None:
    path = written(tmp_path, HEADER, GOOD, "", line)
    with pytest.raises(DatasetError) as caught:
        read_csv(path, SMALL)
    assert f"line 4: {fault}; " in str(caught.value)


def maze_row(*, path: str = "o", rating: int = 4) -> str:
    """A 10x10 maze with an open first row. Its rows may begin and end with spaces."""
    walls = "#" * 94
    return f"made, S  G{walls} , S{path * 2}G{walls} ,{rating}"


def test_mazes_are_read_in_the_same_form_with_the_spaces_at_their_ends(tmp_path: Path) -> None:
    maze = registry.get("maze-10x10")
    rows = read_csv(written(tmp_path, HEADER, maze_row()), maze)
    assert rows["inputs"][0, :6].tolist() == [2, 3, 2, 2, 4, 1]
    assert rows["labels"][0, :6].tolist() == [2, 3, 5, 5, 4, 1]
    assert rows["inputs"][0, 99] == 2
    with pytest.raises(DatasetError, match="line 2: the answer does not solve the question"):
        read_csv(written(tmp_path, HEADER, maze_row(path=" ")), maze)


def test_puzzles_without_this_form_say_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="arc does not have a CSV form"):
        read_csv(written(tmp_path, HEADER, GOOD), registry.get("arc"))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="line 1: the columns are"):
        read_csv(written(tmp_path, "quizzes,solutions", "1,2"), SMALL)
