"""Builds depend on the recipe alone, keep splits apart, continue where they stopped."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build
from hrm_puzzles.data.datasets import DatasetError, fingerprint, open_split, write_split
from hrm_puzzles.data.inspection import inspect
from hrm_puzzles.data.sources import CHUNK, generated
from hrm_puzzles.puzzle import PuzzleError

SMALL = DataRecipe(puzzle="sudoku-6x6", num_train=130, num_test=20, seed=3)


@pytest.mark.process
def test_result_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    one = build(SMALL, tmp_path / "one", num_workers=1)
    two = build(SMALL, tmp_path / "two", num_workers=2)
    assert one == two
    assert (one.num_train, one.num_test, one.num_left_out) == (130, 20, 0)
    assert one.fingerprint == fingerprint(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_another_seed_gives_other_puzzles(tmp_path: Path) -> None:
    first = DataRecipe(puzzle="sudoku-4x4", num_train=5, num_test=5, seed=1)
    second = replace(first, seed=2)
    built = build(first, tmp_path / "first")
    assert built.fingerprint != build(second, tmp_path / "second").fingerprint


@pytest.mark.parametrize("puzzle", ["sudoku-4x4", "sudoku-6x6"])
def test_test_split_shares_no_equivalence_class_with_any_training_split(
    tmp_path: Path, puzzle: str
) -> None:
    kind = registry.get(puzzle)
    classes: dict[str, set[int]] = {"train": set(), "test": set()}
    for seed in (1, 2):
        out = tmp_path / str(seed)
        build(DataRecipe(puzzle=puzzle, num_train=60, num_test=30, seed=seed), out)
        for name, seen in classes.items():
            split = open_split(out, name)
            inputs_NT = split.inputs(slice(None))
            labels_NT = split.labels(slice(None))
            seen |= set(kind.equivalence_hash_B(inputs_NT, labels_NT).tolist())
    assert classes["train"] & classes["test"] == set()


def test_stopped_build_continues_with_the_finished_chunks(tmp_path: Path) -> None:
    sudoku = registry.get("sudoku-4x4")
    make = partial(generated, sudoku, directory=tmp_path, is_test=False, difficulty="easy")
    first = make(CHUNK)
    (file,) = tmp_path.iterdir()
    kept = file.stat().st_mtime_ns
    seen: list[tuple[int, int]] = []
    both = make(2 * CHUNK, progress=lambda *now: seen.append(now))
    assert seen == [(CHUNK, 2 * CHUNK), (2 * CHUNK, 2 * CHUNK)]
    assert file.stat().st_mtime_ns == kept
    assert (both[:CHUNK] == first).all()


def test_training_rows_equivalent_to_test_rows_are_left_out(tmp_path: Path) -> None:
    header = "source,question,answer,rating"
    row = "made,1.3.34122143432.,1234341221434321,0"
    exchanged = row.translate(str.maketrans("12", "21"))
    other = "made,.234341221434321,1234341221434321,0"
    train = tmp_path / "train.csv"
    test = tmp_path / "test.csv"
    train.write_text(f"{header}\n{exchanged}\n{other}\n")
    test.write_text(f"{header}\n{row}\n")
    recipe = DataRecipe(
        puzzle="sudoku-4x4",
        num_train=0,
        num_test=0,
        csv_train=str(train),
        csv_test=str(test),
    )
    built = build(recipe, tmp_path / "data")
    assert (built.num_train, built.num_test, built.num_left_out) == (1, 1, 1)


def test_recipes_that_cannot_be_followed_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    empty = DataRecipe(puzzle="sudoku-4x4", num_train=1, num_test=0)
    with pytest.raises(DatasetError, match="the test split would be empty"):
        build(empty, tmp_path / "data")
    absurd = replace(empty, num_test=1, difficulty="easy,absurd")
    message = "not have the difficulty 'absurd'; use mixed, or one or more of easy"
    with pytest.raises(PuzzleError, match=message):
        build(absurd, tmp_path / "other")
    assert list(tmp_path.iterdir()) == []


def test_inspection_finds_wrong_labels_and_shared_questions(tmp_path: Path) -> None:
    build(DataRecipe(puzzle="sudoku-4x4", num_train=8, num_test=4), tmp_path / "good")
    assert inspect(tmp_path / "good").faults == []
    test = open_split(tmp_path / "good", "test")
    inputs_NT = test.inputs(slice(None))
    labels_NT = test.labels(slice(None))
    kind = registry.get("sudoku-4x4")
    write_split(tmp_path / "bad", "test", inputs_NT, labels_NT, puzzle=kind)
    labels_NT[1] = labels_NT[1, ::-1] % 4 + 2
    write_split(tmp_path / "bad", "train", inputs_NT[:3], labels_NT[:3], puzzle=kind)
    report = inspect(tmp_path / "bad")
    assert report.num_shared == 3
    assert (report.splits[0].num_wrong, report.splits[0].first_wrong) == (1, 1)
    assert len(report.faults) == 2
