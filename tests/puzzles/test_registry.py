"""Entry points add puzzles of other packages, checked in a fresh interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import PuzzleError


def test_built_in_puzzles_carry_the_names_they_are_found_by() -> None:
    assert {"sudoku", "sudoku-6x6", "sudoku-4x4", "arc", "arc-10x10"} <= set(registry.names())
    assert [registry.get(name).name for name in registry.names()] == registry.names()


def test_mazes_and_cities_of_any_size_are_found() -> None:
    maze = registry.get("maze-12x20")
    assert (maze.name, maze.seq_len, maze.geometry.board) == ("maze-12x20", 240, (12, 20))
    assert registry.get("logistics-7x9").seq_len == 63
    assert registry.get("maze-30x30") is registry.get("maze")
    for name in ("maze-3x8", "maze-31x31", "maze-012x8", "sudoku-8x8"):
        with pytest.raises(PuzzleError, match=f"the puzzle '{name}' does not exist"):
            registry.get(name)


@pytest.mark.process
def test_entry_point_adds_a_puzzle_and_cannot_replace_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "giant.py").write_text(
        "from hrm_puzzles.sudoku.sudoku import Sudoku\n"
        "def wide(): return Sudoku(name='sudoku-8x8', box_rows=2, box_cols=4)\n"
    )
    info = tmp_path / "giant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: giant\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[hrm_edge.puzzles]\nsudoku-8x8 = giant:wide\nsudoku = giant:wide\n"
    )
    code = """
import numpy as np
from hrm_puzzles import registry
print(registry.names(), registry.get('sudoku').seq_len)
wide = registry.get('sudoku-8x8')
example = wide.generate(np.random.default_rng(0), 'medium')
inputs_1T = wide.encode(example.question)[None]
print(wide.check_BT(inputs_1T, wide.encode(example.answer)[None]))
"""
    search_path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{[*registry.names(), 'sudoku-8x8']} 81", "[1]"]


@pytest.mark.parametrize("name", registry.names())
def test_a_sample_can_be_asked(name: str) -> None:
    puzzle = registry.get(name)
    parsed = puzzle.parse(puzzle.sample(["<blank>", "a-task"]))
    assert parsed.identifier in (None, "a-task")
    assert puzzle.encode(parsed.grid).shape == (puzzle.seq_len,)
