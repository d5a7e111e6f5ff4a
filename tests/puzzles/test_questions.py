"""Sources of questions, and errors for those of another puzzle than the model's."""

import json
from pathlib import Path

import numpy as np
import pytest

from hrm_host.progress import unheard
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.sources import Questions, find_questions, is_held_out_N, questions_made
from hrm_puzzles.puzzle import Puzzle
from hrm_puzzles.sudoku.sudoku import Sudoku

SUDOKU = registry.get("sudoku-4x4")


def found(
    source: object, puzzle: Puzzle = SUDOKU, count: int = 6, data: Path | None = None
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
    assert (SUDOKU.check_BT(asked.tokens_NT, asked.labels_NT) == 1).all()


def test_made_puzzles_are_of_classes_no_training_split_holds_and_the_same_each_time() -> None:
    made = questions_made(SUDOKU, 12)
    tokens_NT = made.tokens_NT.astype(np.uint8)
    labels_NT = made.labels_NT.astype(np.uint8)
    assert is_held_out_N(SUDOKU, tokens_NT, labels_NT).all()
    assert questions_made(SUDOKU, 12).fingerprint() == made.fingerprint()


def test_a_path_gives_the_test_split(tmp_path: Path) -> None:
    assert len(found(write_data(tmp_path / "data", SUDOKU, "sudoku-4x4"))) == 5
    assert len(found(write_data(tmp_path / "published", SUDOKU, None), count=3)) == 3


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
