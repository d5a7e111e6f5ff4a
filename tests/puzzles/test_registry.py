"""Entry points add puzzles of other packages, checked in a fresh interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import PuzzleError

GIANT = """
from hrm_puzzles.sudoku.sudoku import Sudoku

def wide():
    return Sudoku(name='sudoku-8x8', box_rows=2, box_cols=4)
"""
ENTRY_POINTS = "[hrm_edge.puzzles]\nsudoku-8x8 = giant:wide\nsudoku = giant:wide\n"
USE_IT = """
import numpy as np
from hrm_puzzles import registry
print(registry.names(), registry.get('sudoku').seq_len)
wide = registry.get('sudoku-8x8')
example = wide.generate(np.random.default_rng(0), 'medium')
inputs_1T = wide.encode(example.question)[None]
print(wide.check_BT(inputs_1T, wide.encode(example.answer)[None]))
"""


def test_built_in_puzzles_carry_the_names_they_are_found_by() -> None:
    names = registry.names()
    assert {"sudoku", "sudoku-6x6", "sudoku-4x4", "arc", "arc-10x10"} <= set(names)
    for name in names:
        assert registry.get(name).name == name


def test_mazes_and_cities_of_any_size_are_found() -> None:
    maze = registry.get("maze-12x20")
    assert maze.name == "maze-12x20"
    assert maze.seq_len == 240
    assert maze.geometry.board == (12, 20)
    assert registry.get("logistics-7x9").seq_len == 63
    assert registry.get("maze-30x30") is registry.get("maze")


def test_large_sudokus_are_found_and_not_listed() -> None:
    sudoku = registry.get("sudoku-12x12")
    assert (sudoku.name, sudoku.seq_len, sudoku.vocab_size) == ("sudoku-12x12", 144, 14)
    assert sudoku.geometry.board == (4, 3, 3, 4)
    assert registry.get("sudoku-16x16").seq_len == 256
    assert not {"sudoku-12x12", "sudoku-16x16"} & set(registry.names())


@pytest.mark.parametrize("name", ["chess", "maze-3x8", "maze-31x31", "maze-012x8", "sudoku-8x8"])
def test_an_unknown_puzzle_is_rejected_with_the_known_names(name: str) -> None:
    message = f"the puzzle '{name}' does not exist; use one of sudoku, sudoku-6x6, sudoku-4x4"
    with pytest.raises(PuzzleError, match=message) as caught:
        registry.get(name)
    assert caught.value.rule == "unknown-puzzle"


@pytest.mark.process
def test_entry_point_adds_a_puzzle_and_cannot_replace_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "giant.py").write_text(GIANT)
    info = tmp_path / "giant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: giant\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", USE_IT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    names, verdict = done.stdout.splitlines()
    assert names == f"{[*registry.names(), 'sudoku-8x8']} 81"
    assert verdict == "[1]"
