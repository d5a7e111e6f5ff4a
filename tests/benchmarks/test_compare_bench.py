"""Families of models beside each other: about as many parameters, and one table of all."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hrm_benchmarks.cli import app
from hrm_benchmarks.desktop import compare
from hrm_puzzles import registry


@pytest.mark.parametrize("puzzle", ["sudoku-4x4", "sudoku-6x6", "logistics-6x6"])
def test_the_families_have_about_as_many_parameters(puzzle: str) -> None:
    counts = [compare._num_parameters(compare.config_of(arch, registry.get(puzzle), 150_000)) for arch in compare.ARCHS]
    assert counts == [pytest.approx(150_000, rel=0.15)] * len(compare.ARCHS)


def test_a_table_and_a_picture_name_every_family(tmp_path: Path) -> None:
    options = ["--puzzle", "sudoku-4x4", "--seed", "3", "--seed", "4", "--cpu-s", "0", "--puzzles", "8", "4"]
    ended = CliRunner().invoke(app, ["compare", *options, "--parameters", "30000", "--out", str(tmp_path), "--json"])
    assert ended.exit_code == 0, ended.output
    runs = json.loads(ended.stdout)["runs"]
    assert [run["arch"] for run in runs] == list(compare.ARCHS)
    assert all(len(run["exact"]) == len(run["cells"]) == 2 for run in runs)
    assert json.loads((tmp_path / "compare.json").read_text()) == runs
    assert all(f"| sudoku-4x4 | {arch} |" in (tmp_path / "compare.md").read_text() for arch in compare.ARCHS)
    assert (tmp_path / "compare.png").stat().st_size > 1000
