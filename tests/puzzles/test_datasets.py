"""The published layout on disk, byte for byte, and errors for incomplete data sets."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.data.datasets import (
    DatasetError,
    Layout,
    fingerprint,
    open_split,
    write_identifiers,
    write_split,
)

PUZZLE = registry.get("sudoku-4x4")
LABELS_NT = np.array([[2, 3, 4, 5, 4, 5, 2, 3, 3, 2, 5, 4, 5, 4, 3, 2]] * 4)
INPUTS_NT = np.where(np.arange(16) % 4 == np.arange(4)[:, None], 1, LABELS_NT)


def written(path: Path) -> Path:
    layout = replace(Layout.of_originals(4), group_offsets=np.arange(0, 5, 2))
    write_split(
        path, "train", INPUTS_NT, LABELS_NT, puzzle=PUZZLE, ratings_N=np.arange(4), layout=layout
    )
    write_identifiers(path)
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
TRM = {"total_puzzles": 2}
FILLED_NT = np.where(INPUTS_NT == 1, LABELS_NT, 0)[:3]  # the labels of open cells alone


def published(path: Path, dtype: type = np.uint8, **meta: int | None) -> Path:
    """A data set as the builders of HRM and TRM write it, with two examples in puzzle 2."""
    directory = path / "test"
    directory.mkdir(parents=True)
    (directory / "dataset.json").write_text(json.dumps({**META, **meta}))
    np.save(directory / "all__inputs.npy", INPUTS_NT[:3].astype(dtype))
    np.save(directory / "all__labels.npy", FILLED_NT.astype(dtype))
    np.save(directory / "all__puzzle_identifiers.npy", np.array([1, 2], dtype=np.int32))
    np.save(directory / "all__puzzle_indices.npy", np.array([0, 1, 3], dtype=np.int32))
    np.save(directory / "all__group_indices.npy", np.array([0, 2], dtype=np.int32))
    return path


def test_written_files_are_the_published_layout(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert json.loads((path / "identifiers.json").read_text()) == ["<blank>"]
    ours = {"num_puzzle_identifiers": 1, "total_groups": 2, "mean_puzzle_examples": 1.0}
    meta = json.loads((path / "train" / "dataset.json").read_text())
    assert meta == {**META, **ours, "total_puzzles": 4}
    arrays: dict[str, object] = {}
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


@pytest.mark.parametrize(("dtype", "meta"), [(np.int64, {}), (np.uint8, TRM)], ids=["HRM", "TRM"])
def test_data_sets_of_both_projects_are_read(
    tmp_path: Path, dtype: type, meta: dict[str, int]
) -> None:
    split = open_split(published(tmp_path, dtype, **meta), "test")
    assert split.puzzle_ids_N.tolist() == [1, 2, 2]
    assert split.puzzle_offsets.tolist() == [0, 1, 3]
    assert split.group_offsets.tolist() == [0, 2]
    assert split.meta.total_puzzles == meta.get("total_puzzles")
    assert split.ratings_N is None
    assert isinstance(split.inputs_NT, np.memmap)
    assert split.inputs(slice(None)).dtype == split.labels(slice(None)).dtype == np.int32


def test_ignored_labels_become_minus_100_and_only_when_there_is_such_an_id(tmp_path: Path) -> None:
    ignoring = open_split(published(tmp_path / "a"), "test")
    plain = open_split(published(tmp_path / "b", ignore_label_id=None), "test")
    skipped_NT = np.where(FILLED_NT == 0, -100, FILLED_NT)
    assert (ignoring.labels(slice(None)) == skipped_NT).all()
    assert (plain.labels(slice(None)) == FILLED_NT).all()


DISAGREEING = [
    ("inputs", np.zeros((4, 15), dtype=np.uint8)),
    ("labels", np.zeros((3, 16), dtype=np.uint8)),
    ("labels", np.zeros((4, 16))),
    ("puzzle_indices", np.array([0, 2, 1, 3, 4])),
    ("puzzle_indices", np.array([0, 1, 2, 3, 5])),
    ("puzzle_identifiers", np.zeros(3, dtype=np.int32)),
    ("group_indices", np.array([1, 4])),
    ("ratings", np.zeros(5, dtype=np.int32)),
]


@pytest.mark.parametrize(("name", "array"), DISAGREEING)
def test_arrays_that_disagree_are_refused(tmp_path: Path, name: str, array: np.ndarray) -> None:
    path = written(tmp_path)
    np.save(path / "train" / f"all__{name}.npy", array)
    with pytest.raises(DatasetError, match="build the data set again"):
        open_split(path, "train")


@pytest.mark.parametrize("name", ["dataset.json", "all__inputs.npy", "all__group_indices.npy"])
def test_missing_and_broken_files_are_refused(tmp_path: Path, name: str) -> None:
    path = written(tmp_path)
    (path / "train" / name).write_bytes(b"{")
    with pytest.raises(DatasetError, match=name):
        open_split(path, "train")
    (path / "train" / name).unlink()
    with pytest.raises(DatasetError, match=name):
        open_split(path, "train")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    objects = np.array([[{}] * 16] * 4)
    np.save(path / "train" / "all__inputs.npy", objects, allow_pickle=True)
    with pytest.raises(DatasetError, match="cannot read"):
        open_split(path, "train")


def test_fingerprint_changes_with_any_byte_and_not_with_the_place(tmp_path: Path) -> None:
    one = written(tmp_path / "one")
    other = written(tmp_path / "other")
    assert fingerprint(one) == fingerprint(other)
    with (other / "train" / "all__labels.npy").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x05")
    assert fingerprint(one) != fingerprint(other)
