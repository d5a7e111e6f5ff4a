"""`hrm-solve` over files of other people, with shipped models."""

import json
from pathlib import Path

import pytest
from csv_shapes import SHAPES, csv_of
from typer.testing import CliRunner

from hrm_edge_runtime.solve.cli import main
from hrm_puzzles.puzzle import Puzzle


@pytest.mark.parametrize(("puzzle", "header", "row"), SHAPES.values(), ids=SHAPES)
def test_a_file_of_any_origin_is_solved(
    puzzle: Puzzle, header: str, row: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(csv_of(puzzle, header, row), encoding="utf-8")
    arguments = [str(file), "--bundle", puzzle.name, "--json", "--threads", "1"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["status"] for answer in answers] == ["proven"] * 6
