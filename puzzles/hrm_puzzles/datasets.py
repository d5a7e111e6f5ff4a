"""Data sets in the published HRM layout, so that what either project builds trains in both.

    <dir>/identifiers.json                         names of the puzzle ids, 0 is "<blank>"
    <dir>/{train,test}/dataset.json                DatasetMeta
    <dir>/{train,test}/all__inputs.npy             [N, T] tokens, any integer type
                       all__labels.npy             [N, T]
                       all__puzzle_identifiers.npy [puzzles] int32
                       all__puzzle_indices.npy     [puzzles + 1] where the examples of each puzzle begin
                       all__group_indices.npy      [groups + 1] where the puzzles of each group begin
                       all__ratings.npy            [N] int32; ours, other readers do not look at it

A group is an original puzzle, its puzzles are the variants of it. Shapes: N examples, T tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import IntArray, Puzzle

IGNORE = -100  # the label that the loss skips
BLANK_IDENTIFIER = "<blank>"
ARRAYS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")


class DatasetError(ValueError):
    """A data set that cannot be read or written; its text is one sentence with the value, expectation and remedy."""


@dataclass(frozen=True, kw_only=True)
class DatasetMeta:
    """dataset.json. `total_puzzles` stands in TRM's files only; we write it, and read both."""

    pad_id: int
    ignore_label_id: int | None
    blank_identifier_id: int
    vocab_size: int
    seq_len: int
    num_puzzle_identifiers: int
    total_groups: int
    mean_puzzle_examples: float
    sets: list[str]
    total_puzzles: int | None = None


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split, memory-mapped: arrays are read from disk as they are touched."""

    meta: DatasetMeta
    inputs_NT: IntArray
    labels_NT: IntArray
    puzzle_ids_N: NDArray[np.int32]
    puzzle_offsets: NDArray[np.int64]  # where the examples of each puzzle begin, with the end
    group_offsets: NDArray[np.int64]  # where the puzzles of each group begin, with the end
    ratings_N: NDArray[np.int32] | None

    def __len__(self) -> int:
        return len(self.inputs_NT)

    def inputs(self, indices: IntArray | slice) -> NDArray[np.int32]:
        return self.inputs_NT[indices].astype(np.int32)

    def labels(self, indices: IntArray | slice) -> NDArray[np.int32]:
        """Labels, with IGNORE where the loss must not look."""
        labels_BT = self.labels_NT[indices].astype(np.int32)
        if self.meta.ignore_label_id is not None:
            labels_BT[labels_BT == self.meta.ignore_label_id] = IGNORE
        return labels_BT


def write_split(
    path: Path,
    split: str,
    inputs_NT: IntArray,
    labels_NT: IntArray,
    *,
    puzzle: Puzzle,
    ratings_N: IntArray | None = None,
    variants: int = 1,
) -> DatasetMeta:
    """Write one split; each `variants` examples in a row are the puzzles of one group. Pad, ignore and blank ids are 0.

    Not atomic by itself: write into `atomic.new_directory`. Refuses empty splits and groups of unequal size.
    """
    num_examples = len(inputs_NT)
    if num_examples == 0 or num_examples % variants:
        raise DatasetError(f"{num_examples} examples make no groups of {variants}; give a positive multiple of it.")
    num_groups = num_examples // variants
    meta = _meta(puzzle, num_examples, num_groups)
    arrays = {
        "inputs": inputs_NT.astype(np.uint8),
        "labels": labels_NT.astype(np.uint8),
        "puzzle_identifiers": np.zeros(num_examples, dtype=np.int32),
        "puzzle_indices": np.arange(num_examples + 1, dtype=np.int32),
        "group_indices": np.arange(num_groups + 1, dtype=np.int32) * np.int32(variants),
    }
    if ratings_N is not None:
        arrays["ratings"] = np.asarray(ratings_N, dtype=np.int32)
    _write(path / split, meta, arrays)
    return meta


def write_identifiers(path: Path, names: Sequence[str] = (BLANK_IDENTIFIER,)) -> None:
    (path / "identifiers.json").write_text(json.dumps(list(names)), encoding="utf-8")


def _meta(puzzle: Puzzle, num_puzzles: int, num_groups: int) -> DatasetMeta:
    return DatasetMeta(
        pad_id=0,
        ignore_label_id=0,
        blank_identifier_id=0,
        vocab_size=puzzle.vocab_size,
        seq_len=puzzle.seq_len,
        num_puzzle_identifiers=puzzle.num_puzzle_ids,
        total_groups=num_groups,
        mean_puzzle_examples=1.0,
        sets=["all"],
        total_puzzles=num_puzzles,
    )


def _write(directory: Path, meta: DatasetMeta, arrays: Mapping[str, NDArray[Any]]) -> None:
    directory.mkdir(parents=True)
    (directory / "dataset.json").write_text(json.dumps(asdict(meta), indent=2), encoding="utf-8")
    for name, array in arrays.items():
        np.save(directory / f"all__{name}.npy", array, allow_pickle=False)


def open_split(path: Path, split: str) -> Split:
    """Open one split of a data set of ours, of HRM or of TRM; refuses missing files and sizes that disagree."""
    directory = path / split
    meta = read_meta(directory)
    inputs_NT, labels_NT, ids, puzzles, groups = (_array(directory, meta.sets[0], name) for name in ARRAYS)
    num_examples = len(inputs_NT)
    _require(inputs_NT.shape == (num_examples, meta.seq_len), directory, f"inputs have shape {inputs_NT.shape}")
    _require(labels_NT.shape == inputs_NT.shape, directory, f"labels have shape {labels_NT.shape}")
    _require_offsets(directory, "puzzle_indices", puzzles, num_examples)
    _require(len(ids) == len(puzzles) - 1, directory, f"puzzle_identifiers has {len(ids)} entries")
    _require_offsets(directory, "group_indices", groups, len(ids))
    return Split(
        meta=meta,
        inputs_NT=inputs_NT,
        labels_NT=labels_NT,
        puzzle_ids_N=np.repeat(ids.astype(np.int32), np.diff(puzzles)),
        puzzle_offsets=puzzles.astype(np.int64),
        group_offsets=groups.astype(np.int64),
        ratings_N=_ratings(directory, meta.sets[0], num_examples),
    )


def read_meta(directory: Path) -> DatasetMeta:
    """dataset.json of one split directory; keys we do not know are left aside."""
    path = directory / "dataset.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name: values[field.name] for field in fields(DatasetMeta) if field.name in values}
        meta = DatasetMeta(**known)
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(f"{path} is not a data set description ({error}); give the directory above it.") from error
    if len(meta.sets) != 1:
        raise DatasetError(f"{path} lists the sets {meta.sets} where one is expected; split them into directories.")
    return meta


def _array(directory: Path, subset: str, name: str) -> NDArray[Any]:
    path = directory / f"{subset}__{name}.npy"
    try:
        array = cast("NDArray[Any]", np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read ({error}); build the data set again.") from error
    _require(array.dtype.kind in "iu" and array.ndim > 0 and len(array) > 0, directory, f"{name} is {array.dtype}")
    return array


def _ratings(directory: Path, subset: str, num_examples: int) -> NDArray[np.int32] | None:
    if not (directory / f"{subset}__ratings.npy").exists():
        return None
    ratings_N = _array(directory, subset, "ratings")
    _require(ratings_N.shape == (num_examples,), directory, f"ratings have shape {ratings_N.shape}")
    return ratings_N


def _require_offsets(directory: Path, name: str, offsets: IntArray, end: int) -> None:
    is_rising = offsets.ndim == 1 and offsets[0] == 0 and offsets[-1] == end and bool((np.diff(offsets) >= 0).all())
    _require(is_rising, directory, f"{name} does not rise from 0 to {end}")


def _require(holds: bool, directory: Path, problem: str) -> None:
    if not holds:
        raise DatasetError(f"{directory}: {problem}, which disagrees with the other files; build the data set again.")


def fingerprint(path: Path) -> str:
    """sha256 over the names and bytes of all files, so that a run can say exactly what it was trained on."""
    digest = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
