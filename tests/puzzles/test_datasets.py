"""Data sets: the published layout byte for byte, reproducible builds, imports."""

import json
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import edited
from puzzle_tools import solved_boards

from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.build import DataRecipe, build, import_file
from hrm_puzzles.data.datasets import DatasetError, fingerprint, open_split, write_split
from hrm_puzzles.data.inspection import inspect
from hrm_puzzles.data.sources import CHUNK, generated, is_held_out_N
from hrm_puzzles.puzzle import PuzzleError

PUZZLE = registry.get("sudoku-4x4")
LABELS_NT = np.array([[2, 3, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2]] * 4)
INPUTS_NT = np.where(np.arange(16) % 4 == np.arange(4)[:, None], 1, LABELS_NT)


def written(path: Path) -> Path:
    layout = datasets.Layout.of_originals(4)._replace(group_offsets=np.arange(0, 5, 2))
    write_split(
        path, "train", INPUTS_NT, LABELS_NT, puzzle=PUZZLE, ratings_N=np.arange(4), layout=layout
    )
    datasets.write_identifiers(path)
    return path


META = {
    "pad_id": 0,
    "ignore_label_id": 0,
    "blank_identifier_id": 0,
    "vocab_size": 6,
    "seq_len": 16,
    "num_puzzle_identifiers": 3,
    "total_groups": 1,
    "mean_puzzle_examples": 1.5,
    "sets": ["all"],
}
TRM = {"total_puzzles": 2, "ignore_label_id": None}
FILLED_NT = np.where(INPUTS_NT == 1, LABELS_NT, 0)[:3]  # the labels of open cells alone


def published(path: Path, dtype: type, **meta: Any) -> Path:
    """A data set as the builders of HRM and TRM write it, with two examples in puzzle 2."""
    directory = path / "test"
    directory.mkdir(parents=True)
    (directory / "dataset.json").write_text(json.dumps({**META, **meta}))
    rows = {"inputs": INPUTS_NT[:3], "labels": FILLED_NT}
    for name, array in rows.items():
        np.save(directory / f"all__{name}.npy", array.astype(dtype))
    offsets = {"puzzle_identifiers": [1, 2], "puzzle_indices": [0, 1, 3], "group_indices": [0, 2]}
    for name, numbers in offsets.items():
        np.save(directory / f"all__{name}.npy", np.array(numbers, dtype=np.int32))
    return path


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1]", "[" * 2000])
def test_names_that_are_no_list_are_told_in_one_sentence(tmp_path: Path, text: str):
    path = written(tmp_path)
    (path / "identifiers.json").write_text(text)
    with pytest.raises(DatasetError, match=r"identifiers.json cannot be read .*; build .* again\."):
        datasets.identifiers_at(path)


def test_written_files_are_the_published_layout(tmp_path: Path):
    path = written(tmp_path)
    assert json.loads((path / "identifiers.json").read_text()) == ["<blank>"]
    ours = {"num_puzzle_identifiers": 1, "total_groups": 2, "mean_puzzle_examples": 1.0}
    meta = json.loads((path / "train" / "dataset.json").read_text())
    assert meta == {**META, **ours, "total_puzzles": 4}
    arrays = {}
    for file in (path / "train").glob("*.npy"):
        array = np.load(file)
        arrays[file.stem] = (array.dtype.name, array.tolist())
    assert arrays == {
        "all__inputs": ("uint8", INPUTS_NT.tolist()),
        "all__labels": ("uint8", LABELS_NT.tolist()),
        "all__puzzle_identifiers": ("int32", [0, 0, 0, 0]),
        "all__puzzle_indices": ("int32", [0, 1, 2, 3, 4]),
        "all__group_indices": ("int32", [0, 2, 4]),
        "all__ratings": ("int32", [0, 1, 2, 3]),
    }


@pytest.mark.parametrize(
    ("dtype", "meta", "ignored"), [(np.int64, {}, -100), (np.uint8, TRM, 0)], ids=["HRM", "TRM"]
)
def test_both_published_layouts_are_read(
    tmp_path: Path, dtype: type, meta: dict[str, int | None], ignored: int
):
    split = open_split(published(tmp_path, dtype, **meta), "test", PUZZLE)
    assert split.puzzle_ids_N.tolist() == [1, 2, 2]
    assert split.puzzle_offsets.tolist() == [0, 1, 3]
    assert split.group_offsets.tolist() == [0, 2]
    assert split.meta.total_puzzles == meta.get("total_puzzles")
    assert split.ratings_N is None
    assert isinstance(split.inputs_NT, np.memmap)
    labels_NT = split.labels(slice(None))
    assert split.inputs(slice(None)).dtype == labels_NT.dtype == np.int32
    assert (labels_NT == np.where(FILLED_NT == 0, ignored, FILLED_NT)).all()


DISAGREEING = [
    ("inputs", np.zeros((4, 15), dtype=np.uint8)),
    ("labels", np.zeros((3, 16), dtype=np.uint8)),
    ("puzzle_indices", np.array([0, 2, 1, 3, 4])),
    ("puzzle_indices", np.array([0, 2, 1, 3, 4], dtype=np.uint32)),  # differences wrap around
    ("group_indices", np.array([0, 0, 2, 4])),  # training chooses a puzzle of each group
    ("puzzle_identifiers", np.zeros(3, dtype=np.int32)),
    ("puzzle_identifiers", np.ones(4, dtype=np.int32)),  # of one id, which is 0
    ("puzzle_identifiers", -np.ones(4, dtype=np.int32)),
    ("puzzle_identifiers", np.zeros((4, 1), dtype=np.int32)),
    ("ratings", np.zeros(5, dtype=np.int32)),
    ("inputs", np.array([[{}] * 16] * 4)),  # pickled: it could run code
    ("inputs", {"a": INPUTS_NT}),  # an archive of arrays
]


@pytest.mark.parametrize(("name", "array"), DISAGREEING)
def test_arrays_that_disagree_are_refused(tmp_path: Path, name: str, array: Any):
    path = written(tmp_path)
    with (path / "train" / f"all__{name}.npy").open("wb") as file:
        if isinstance(array, dict):
            np.savez(file, **array)
        else:
            np.save(file, array)
    with pytest.raises(DatasetError, match="build the data set again"):
        open_split(path, "train", PUZZLE)


MISDESCRIBED = {
    "ignore_label_id": "0",
    "vocab_size": 6.0,
    "num_puzzle_identifiers": True,
    "pad_id": None,
    "sets": ["all", 1],
}


@pytest.mark.parametrize("name", MISDESCRIBED)
def test_a_field_of_another_type_is_named(tmp_path: Path, name: str):
    path = published(tmp_path, np.uint8, **{name: MISDESCRIBED[name]})
    with pytest.raises(DatasetError, match=rf"dataset.json does not describe .*\({name} is"):
        open_split(path, "test", PUZZLE)


OUTSIDE = [("inputs", 6), ("labels", 9), ("labels", -1), ("labels", -100), ("inputs", 1 << 32)]


@pytest.mark.parametrize(("name", "value"), OUTSIDE)
def test_a_value_outside_the_vocabulary_is_refused(tmp_path: Path, name: str, value: int):
    file = published(tmp_path, np.uint8) / "test" / f"all__{name}.npy"
    rows_NT = np.load(file).astype(np.int64)
    rows_NT[1, 2] = value
    np.save(file, rows_NT)
    split = open_split(tmp_path, "test", PUZZLE)
    read = getattr(split, name)
    assert len(read(slice(1))) == 1
    problem = rf"all__{name}.npy holds {value} in the example at index 1, .* tokens 0 to 5"
    with pytest.raises(DatasetError, match=problem):
        read(slice(None))


def test_symmetries_move_labels_that_the_loss_skips(tmp_path: Path):
    split = open_split(published(tmp_path, np.uint64), "test", PUZZLE)
    labels_NT = split.labels(slice(None))
    rng = np.random.default_rng(0)
    _, moved_NT = PUZZLE.augment_BT(rng, split.inputs(slice(None)), labels_NT)
    counted = (labels_NT == datasets.IGNORE).sum(axis=1)
    assert ((moved_NT == datasets.IGNORE).sum(axis=1) == counted).all()


@pytest.mark.parametrize("name", ["dataset.json", "all__inputs.npy", "all__group_indices.npy"])
def test_missing_and_broken_files_are_refused(tmp_path: Path, name: str):
    path = written(tmp_path)
    file = path / "train" / name
    file.write_bytes(b"{")
    with pytest.raises(DatasetError, match=name):
        open_split(path, "train", PUZZLE)
    file.unlink()
    with pytest.raises(DatasetError, match=name):
        open_split(path, "train", PUZZLE)
    os.mkfifo(file)
    with pytest.raises(DatasetError, match="is not a plain file"):
        open_split(path, "train", PUZZLE)


SMALL = DataRecipe(puzzle="sudoku-6x6", num_train=130, num_test=20, seed=3)


@pytest.mark.process
def test_workers_change_nothing_and_each_split_has_classes_of_its_own(tmp_path: Path):
    one = build(SMALL, tmp_path / "one", num_workers=1)
    two = build(SMALL, tmp_path / "two", num_workers=2)
    assert one == two
    assert (one.num_train, one.num_test, one.num_left_out) == (130, 20, 0)
    assert one.fingerprint == fingerprint(tmp_path / "two")
    other = build(replace(SMALL, seed=4), tmp_path / "other")
    assert other.fingerprint != one.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "other", "two"]
    for name, is_test in (("train", False), ("test", True)):
        split = open_split(tmp_path / "one", name, registry.get(SMALL.puzzle))
        is_held_N = is_held_out_N(registry.get(SMALL.puzzle), split.inputs_NT, split.labels_NT)
        assert (is_held_N == is_test).all()


def test_stopped_build_continues_with_the_finished_chunks(tmp_path: Path):
    make = partial(generated, PUZZLE, directory=tmp_path, is_test=False, difficulty="easy")
    first = make(CHUNK)
    (file,) = tmp_path.iterdir()
    kept = file.stat().st_mtime_ns
    seen = []
    both = make(2 * CHUNK, progress=lambda *now: seen.append(now))
    assert seen == [(CHUNK, 2 * CHUNK), (2 * CHUNK, 2 * CHUNK)]
    assert file.stat().st_mtime_ns == kept
    assert (both[:CHUNK] == first).all()


def test_training_rows_equivalent_to_test_rows_are_left_out(tmp_path: Path):
    header = "source,question,answer,rating"
    row = "made,1.3.34122143432.,1234341221434321,0"
    exchanged = row.translate(str.maketrans("12", "21"))
    other = "made,.234341221434321,1234341221434321,0"
    train = tmp_path / "train.csv"
    test = tmp_path / "test.csv"
    train.write_text(f"{header}\n{exchanged}\n{other}\n")
    test.write_text(f"{header}\n{row}\n")
    recipe = DataRecipe(
        puzzle="sudoku-4x4", num_train=0, num_test=0, csv_train=train, csv_test=test
    )
    built = build(recipe, tmp_path / "data")
    assert (built.num_train, built.num_test, built.num_left_out) == (1, 1, 1)
    with pytest.raises(DatasetError, match="train would hold 0 examples"):
        build(replace(recipe, csv_train=test), tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {"train.csv", "test.csv", "data"}


def test_recipes_that_cannot_be_followed_are_refused_and_leave_nothing(tmp_path: Path):
    empty = DataRecipe(puzzle="sudoku-4x4", num_train=1, num_test=0)
    with pytest.raises(DatasetError, match="the test split would be empty"):
        build(empty, tmp_path / "data")
    absurd = replace(empty, num_test=1, difficulty="easy,absurd")
    message = "the difficulty 'absurd' does not exist; use one of easy"
    with pytest.raises(PuzzleError, match=message):
        build(absurd, tmp_path / "other")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def data(tmp_path: Path) -> Path:
    build(DataRecipe(puzzle="sudoku-4x4", num_train=8, num_test=4), tmp_path / "good")
    return tmp_path / "good"


def test_inspection_finds_wrong_labels_and_shared_questions(data: Path, tmp_path: Path):
    assert inspect(data).faults == []
    test = open_split(data, "test", PUZZLE)
    inputs_NT = test.inputs(slice(None))
    labels_NT = test.labels(slice(None))
    write_split(tmp_path / "bad", "test", inputs_NT, labels_NT, puzzle=PUZZLE)
    labels_NT[1] = labels_NT[1, ::-1] % 4 + 2
    write_split(tmp_path / "bad", "train", inputs_NT[:3], labels_NT[:3], puzzle=PUZZLE)
    report = inspect(tmp_path / "bad", PUZZLE.name)
    assert report.num_shared == 3
    assert (report.splits[0].num_wrong, report.splits[0].first_wrong) == (1, 1)
    assert len(report.faults) == 2


@pytest.mark.parametrize("ignored", [0, -100])
def test_inspection_judges_only_the_labels_that_training_counts(data: Path, ignored: int):
    for split in ("train", "test"):
        inputs_NT = open_split(data, split, PUZZLE).inputs(slice(None))
        labels_NT = open_split(data, split, PUZZLE).labels(slice(None))
        labels_NT[inputs_NT == labels_NT] = ignored
        np.save(data / split / "all__labels.npy", labels_NT)
        with edited(data / split / "dataset.json") as meta:
            meta["ignore_label_id"] = ignored
    assert inspect(data).faults == []


@pytest.mark.parametrize("claimed", [2, 10**9])
def test_inspection_finds_identifiers_without_names(data: Path, claimed: int):
    with edited(data / "train" / "dataset.json") as meta:
        meta["num_puzzle_identifiers"] = claimed
    fault = f"train claims {claimed} puzzle identifiers, but 1 have names."
    assert inspect(data).faults == [fault]
    (data / "identifiers.json").unlink()
    assert inspect(data).faults == [fault]


def test_imported_puzzles_go_to_the_split_of_their_class(tmp_path: Path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(solved_boards(PUZZLE, 20)))
    made = import_file(file, PUZZLE, tmp_path / "a")
    assert made.num_train + made.num_test == 20
    assert min(made.num_train, made.num_test) > 0
    assert inspect(tmp_path / "a").faults == []
    test = open_split(tmp_path / "a", "test", PUZZLE)
    inputs_NT = np.asarray(test.inputs_NT)
    assert is_held_out_N(PUZZLE, inputs_NT, np.asarray(test.labels_NT)).all()


def test_bad_puzzles_are_named_and_left_out(tmp_path: Path):
    good, other, wrong = solved_boards(PUZZLE, 3)
    assert other["solution"] != wrong["solution"]
    wrong["solution"] = other["solution"]
    lines = [
        json.dumps(good),
        "{",
        json.dumps({"puzzle": "1"}),
        "",
        json.dumps({"puzzle": "12", "solution": "1"}),
        json.dumps(wrong),
        '{"puzzle": "1", ' + json.dumps(other)[1:],
    ]
    file = tmp_path / "x.ndjson"
    file.write_text("\n".join(lines))
    imported = import_file(file, PUZZLE, tmp_path / "data", split="train")
    assert (imported.num_train, imported.num_test) == (1, 0)
    places = [re.findall(r", (line \d):", fault)[0] for fault in imported.faults]
    assert places == ["line 2", "line 3", "line 5", "line 6", "line 7"]
    for fault in (imported.faults[0], imported.faults[4]):
        assert "the text is not JSON, or an object has two values of one name" in fault
    assert "does not solve" in imported.faults[3]
    assert imported.fingerprint == fingerprint(tmp_path / "data")


def test_a_file_without_a_good_puzzle_is_refused_and_leaves_nothing(tmp_path: Path):
    for content in ("", "[]", '[{"puzzle": 5, "solution": 5}]', "[1"):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(DatasetError, match=r"; write .*puzzle"):
            import_file(tmp_path / "x.json", PUZZLE, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_puzzles_of_one_task_share_its_id(tmp_path: Path):
    objects = []
    for number, name in enumerate("baba"):
        question = {"task": name, "input": [[number]]}
        objects.append({"puzzle": question, "solution": [[number, number]]})
    file = tmp_path / "x.json"
    out = tmp_path / "data"
    file.write_text(json.dumps(objects))
    import_file(file, registry.get("arc-10x10"), out, split="test")
    split = open_split(out, "test", registry.get("arc-10x10"))
    assert json.loads((out / "identifiers.json").read_text()) == ["<blank>", "a", "b"]
    assert split.puzzle_ids_N.tolist() == [1, 1, 2, 2]
    assert split.group_offsets.tolist() == [0, 1, 2]
    assert split.meta.mean_puzzle_examples == 2.0
    assert inspect(out).puzzle == "arc-10x10"
