"""Builds depend on the recipe alone, keep splits apart, and continue; imports name faults."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build, import_file
from hrm_puzzles.data.datasets import DatasetError, fingerprint, open_split, write_split
from hrm_puzzles.data.inspection import inspect
from hrm_puzzles.data.sources import CHUNK, generated, is_held_out_N
from hrm_puzzles.puzzle import Notation, PuzzleError

SUDOKU_4 = registry.get("sudoku-4x4")
ROWS = Notation(kind="rows", blank=0)
SMALL = DataRecipe(puzzle="sudoku-6x6", num_train=130, num_test=20, seed=3)


@pytest.mark.process
def test_result_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    one = build(SMALL, tmp_path / "one", num_workers=1)
    two = build(SMALL, tmp_path / "two", num_workers=2)
    assert one == two
    assert (one.num_train, one.num_test, one.num_left_out) == (130, 20, 0)
    assert one.fingerprint == fingerprint(tmp_path / "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("puzzle", ["sudoku-4x4", "sudoku-6x6", "sudoku-12x12"])
def test_test_split_shares_no_equivalence_class_with_any_training_split(
    tmp_path: Path, puzzle: str
) -> None:
    kind = registry.get(puzzle)
    classes: dict[str, set[int]] = {"train": set(), "test": set()}
    prints: set[str] = set()
    for seed in (1, 2):
        out = tmp_path / str(seed)
        built = build(DataRecipe(puzzle=puzzle, num_train=60, num_test=30, seed=seed), out)
        prints.add(built.fingerprint)
        for name, seen in classes.items():
            split = open_split(out, name)
            inputs_NT = split.inputs(slice(None))
            labels_NT = split.labels(slice(None))
            seen |= set(kind.equivalence_hash_B(inputs_NT, labels_NT).tolist())
    assert classes["train"] & classes["test"] == set()
    assert len(prints) == 2


def test_stopped_build_continues_with_the_finished_chunks(tmp_path: Path) -> None:
    make = partial(generated, SUDOKU_4, directory=tmp_path, is_test=False, difficulty="easy")
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
        puzzle="sudoku-4x4", num_train=0, num_test=0, csv_train=str(train), csv_test=str(test)
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
    write_split(tmp_path / "bad", "test", inputs_NT, labels_NT, puzzle=SUDOKU_4)
    labels_NT[1] = labels_NT[1, ::-1] % 4 + 2
    write_split(tmp_path / "bad", "train", inputs_NT[:3], labels_NT[:3], puzzle=SUDOKU_4)
    report = inspect(tmp_path / "bad")
    assert report.num_shared == 3
    assert (report.splits[0].num_wrong, report.splits[0].first_wrong) == (1, 1)
    assert len(report.faults) == 2


def exported(count: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    objects: list[dict[str, object]] = []
    for _ in range(count):
        example = SUDOKU_4.generate(rng, "easy")
        question = SUDOKU_4.write(example.question, ROWS)
        answer = SUDOKU_4.write(example.answer, ROWS)
        objects.append({"puzzle": question, "solution": answer, "more": 1})
    return objects


def test_a_list_and_lines_make_the_same_data_set(tmp_path: Path) -> None:
    objects = exported(20)
    (tmp_path / "a.json").write_text(json.dumps(objects))
    (tmp_path / "b.ndjson").write_text("\n".join(map(json.dumps, objects)) + "\n\n")
    made = import_file(tmp_path / "a.json", SUDOKU_4, tmp_path / "a")
    import_file(tmp_path / "b.ndjson", SUDOKU_4, tmp_path / "b")
    assert made.num_train + made.num_test == 20
    assert min(made.num_train, made.num_test) > 0
    one = open_split(tmp_path / "a", "train")
    other = open_split(tmp_path / "b", "train")
    assert np.array_equal(one.inputs_NT, other.inputs_NT)
    assert inspect(tmp_path / "a").faults == []
    test = open_split(tmp_path / "a", "test")
    inputs_NT = np.asarray(test.inputs_NT)
    assert is_held_out_N(SUDOKU_4, inputs_NT, np.asarray(test.labels_NT)).all()


def test_bad_puzzles_are_named_and_left_out(tmp_path: Path) -> None:
    good, other, wrong = exported(3)
    assert other["solution"] != wrong["solution"]
    wrong["solution"] = other["solution"]
    lines = [
        json.dumps(good),
        "{",
        json.dumps({"puzzle": "1"}),
        "",
        json.dumps({"puzzle": "12", "solution": "1"}),
        json.dumps(wrong),
    ]
    file = tmp_path / "x.ndjson"
    file.write_text("\n".join(lines))
    imported = import_file(file, SUDOKU_4, tmp_path / "data", split="train")
    assert (imported.num_train, imported.num_test) == (1, 0)
    places = [fault.partition(":")[0] for fault in imported.faults]
    assert places == ["line 2", "line 3", "line 5", "line 6"]
    assert "not an object with puzzle and solution" in imported.faults[0]
    assert "does not solve" in imported.faults[3]
    assert imported.fingerprint == fingerprint(tmp_path / "data")


def test_a_file_without_a_good_puzzle_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    for content in ("", "[]", '[{"puzzle": 5, "solution": 5}]', "[1"):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(DatasetError, match=r"; write .*puzzle"):
            import_file(tmp_path / "x.json", SUDOKU_4, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_puzzles_of_one_task_share_its_id(tmp_path: Path) -> None:
    objects: list[object] = []
    for number, name in enumerate("baba"):
        question = {"task": name, "input": [[number]]}
        objects.append({"puzzle": question, "solution": [[number, number]]})
    file = tmp_path / "x.json"
    out = tmp_path / "data"
    file.write_text(json.dumps(objects))
    import_file(file, registry.get("arc-10x10"), out, split="test")
    split = open_split(out, "test")
    assert json.loads((out / "identifiers.json").read_text()) == ["<blank>", "a", "b"]
    assert split.puzzle_ids_N.tolist() == [1, 1, 2, 2]
    assert split.group_offsets.tolist() == [0, 1, 2]
    assert split.meta.mean_puzzle_examples == 2.0
    assert inspect(out).puzzle == "arc-10x10"
