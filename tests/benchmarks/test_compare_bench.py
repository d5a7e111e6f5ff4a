"""Families of models beside each other: about as many parameters, and one table of all."""

import json
from pathlib import Path

import pytest
from bench_tools import figures_of

from hrm_benchmarks.desktop.compare import ARCHS, config_of, num_parameters
from hrm_puzzles import registry


@pytest.mark.parametrize("name", ["sudoku-4x4", "sudoku-6x6", "logistics-6x6"])
def test_the_families_have_about_as_many_parameters(name: str) -> None:
    puzzle = registry.get(name)
    for arch in ARCHS:
        config = config_of(arch, puzzle, 150_000)
        assert num_parameters(config) == pytest.approx(150_000, rel=0.15), arch


def test_a_table_and_a_picture_name_every_family(tmp_path: Path) -> None:
    sizes = "--puzzle sudoku-4x4 --puzzles 8 4 --parameters 30000 --cpu-s 0"
    figures = figures_of(f"compare {sizes} --seed 3 --seed 4 --out {tmp_path}")
    runs = figures["runs"]
    for run, arch in zip(runs, ARCHS, strict=True):
        assert run["arch"] == arch
        assert len(run["exact"]) == 2
        assert len(run["cells"]) == 2
    saved = json.loads((tmp_path / "compare.json").read_text())
    assert saved == runs
    table = (tmp_path / "compare.md").read_text()
    for arch in ARCHS:
        assert f"| sudoku-4x4 | {arch} |" in table
    assert (tmp_path / "compare.png").stat().st_size > 1000
