"""Data sets in the published HRM layout, so that a data set of either project trains in both.

    <dir>/identifiers.json                         names of the puzzle ids, 0 is "<blank>"
    <dir>/recipe.json                              how it was made, with the puzzle's name; ours
    <dir>/{train,test}/dataset.json                DatasetMeta
    <dir>/{train,test}/all__inputs.npy             [N, T] tokens, any integer type
                       all__labels.npy             [N, T]
                       all__puzzle_identifiers.npy [puzzles] int32
                       all__puzzle_indices.npy     [puzzles + 1] where the examples of each puzzle begin
                       all__group_indices.npy      [groups + 1] where the puzzles of each group begin
                       all__ratings.npy            [N] int32; ours, other readers do not look at it

A group is an original puzzle, its puzzles are the variants of it. Shapes: N examples, T tokens.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hrm_host.reading import json_from, text_of
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, IntArray, Puzzle

IGNORE = -100  # the label that the loss skips
RECIPE = "recipe.json"
ARRAYS = ("inputs", "labels", "puzzle_identifiers", "puzzle_indices", "group_indices")


class DatasetError(ValueError):
    """A data set that cannot be read or written; its text is one sentence with the value, expectation and remedy."""


@dataclass(frozen=True, kw_only=True)
class BuiltSet:
    """`num_left_out` are copies of test questions, exported puzzles (`faults` say why) or ARC tasks."""

    num_train: int
    num_test: int
    num_left_out: int
    fingerprint: str  # sha256 of all files
    num_tasks: int | None = None
    num_puzzles: int | None = None  # variants of tasks
    faults: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class DatasetMeta:
    """dataset.json. Only TRM's files have `total_puzzles`; we write it and read both."""

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

    @property
    def sizes(self) -> tuple[int, int]:
        """Vocabulary and length, which a puzzle must have as well."""
        return self.vocab_size, self.seq_len


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Layout:
    """Which examples belong to a puzzle and which puzzles to a group; offsets say where each begins, with the end."""

    puzzle_ids: NDArray[np.int32]
    puzzle_offsets: NDArray[np.int64]
    group_offsets: NDArray[np.int64]
    num_puzzle_ids: int = 1

    @property
    def num_examples(self) -> int:
        return int(self.puzzle_offsets[-1])

    @classmethod
    def of_originals(cls, num_examples: int) -> "Layout":
        """Each example a puzzle with the blank id and a group of its own."""
        offsets = np.arange(num_examples + 1)
        return cls(
            puzzle_ids=np.zeros(num_examples, dtype=np.int32),
            puzzle_offsets=offsets,
            group_offsets=offsets,
        )


def write_split(
    path: Path,
    split: str,
    inputs_NT: IntArray,
    labels_NT: IntArray,
    *,
    puzzle: Puzzle,
    ratings_N: IntArray | None = None,
    layout: Layout | None = None,
) -> None:
    """Write one split into `atomic.new_directory`; without a layout each example is a group. Refuses empty splits."""
    layout = layout or Layout.of_originals(len(inputs_NT))
    create_split(path, split, puzzle=puzzle, layout=layout)
    write_rows(path, split, 0, inputs_NT, labels_NT)
    if ratings_N is not None:
        _save(path / split, "ratings", np.asarray(ratings_N, dtype=np.int32))


def create_split(path: Path, split: str, *, puzzle: Puzzle, layout: Layout) -> None:
    """Write all of a split but its examples, which are zeros until `write_rows` fills them in."""
    if not layout.num_examples:
        raise DatasetError(f"{split} would hold 0 examples; give at least one.")
    directory, num_puzzles = path / split, len(layout.puzzle_ids)
    meta = DatasetMeta(
        pad_id=0,
        ignore_label_id=0,
        blank_identifier_id=0,
        vocab_size=puzzle.vocab_size,
        seq_len=puzzle.seq_len,
        num_puzzle_identifiers=layout.num_puzzle_ids,
        total_groups=len(layout.group_offsets) - 1,
        mean_puzzle_examples=layout.num_examples / num_puzzles,
        sets=["all"],
        total_puzzles=num_puzzles,
    )
    directory.mkdir(parents=True)
    (directory / "dataset.json").write_bytes(json.dumps(asdict(meta), indent=2).encode())
    for name in ("inputs", "labels"):
        shape = (layout.num_examples, puzzle.seq_len)
        np.lib.format.open_memmap(
            directory / f"all__{name}.npy", mode="w+", dtype=np.uint8, shape=shape
        )
    _save(directory, "puzzle_identifiers", layout.puzzle_ids.astype(np.int32))
    _save(directory, "puzzle_indices", layout.puzzle_offsets.astype(np.int32))
    _save(directory, "group_indices", layout.group_offsets.astype(np.int32))


def write_rows(
    path: Path, split: str, start: int, inputs_BT: IntArray, labels_BT: IntArray
) -> None:
    """Write examples into a created split from row `start` on; several processes may write rows of their own."""
    for name, rows_BT in (("inputs", inputs_BT), ("labels", labels_BT)):
        file = path / split / f"all__{name}.npy"
        header_bytes = cast(
            "np.memmap[Any, Any]", np.load(file, mmap_mode="r", allow_pickle=False)
        ).offset
        with file.open("r+b") as stream:  # written rather than mapped, so that memory stays flat
            stream.seek(header_bytes + start * rows_BT.shape[1])
            stream.write(np.ascontiguousarray(rows_BT, dtype=np.uint8).data)
            stream.flush()
            os.fsync(stream.fileno())


def write_identifiers(path: Path, names: Iterable[str] = ()) -> None:
    """Name the puzzle ids from 1 on; id 0 is the blank one. Names are written one by one, so there may be millions."""
    with (path / "identifiers.json").open("w", encoding="utf-8") as stream:
        stream.write("[" + json.dumps(BLANK_IDENTIFIER))
        stream.writelines(", " + json.dumps(name) for name in names)
        stream.write("]")


def write_recipe(path: Path, puzzle: Puzzle, values: Mapping[str, object]) -> None:
    """How a data set was made, and of which puzzle: sizes alone do not identify every puzzle."""
    text = json.dumps({**values, "puzzle": puzzle.name}, indent=2)
    (path / RECIPE).write_bytes(
        text.encode()
    )  # the same bytes on Windows, where text has other ends of lines


def named_in_recipe(path: Path) -> str:
    """The name of the puzzle in a data set's recipe; empty without one, since other builders write none."""
    try:
        recipe: object = json_from(text_of(path / RECIPE))
    except (OSError, ValueError):
        return ""
    return (
        str(cast("dict[str, object]", recipe).get("puzzle", "")) if isinstance(recipe, dict) else ""
    )


def _save(directory: Path, name: str, array: NDArray[Any]) -> None:
    np.save(directory / f"all__{name}.npy", array, allow_pickle=False)


def open_split(path: Path, split: str) -> Split:
    """Open one split of a data set of ours, of HRM or of TRM; refuses missing files and sizes that disagree."""
    directory = path / split
    meta = read_meta(directory)
    inputs_NT, labels_NT, ids, puzzles, groups = (
        _array(directory, meta.sets[0], name) for name in ARRAYS
    )
    num_examples = len(inputs_NT)
    _require(
        inputs_NT.shape == (num_examples, meta.seq_len),
        directory,
        f"inputs have shape {inputs_NT.shape}",
    )
    _require(labels_NT.shape == inputs_NT.shape, directory, f"labels have shape {labels_NT.shape}")
    _require_offsets(directory, "puzzle_indices", puzzles, num_examples)
    _require(len(ids) == len(puzzles) - 1, directory, f"puzzle_identifiers has {len(ids)} entries")
    _require_offsets(directory, "group_indices", groups, len(ids))
    ratings_N = None
    if (directory / f"{meta.sets[0]}__ratings.npy").exists():
        ratings_N = _array(directory, meta.sets[0], "ratings")
        _require(
            ratings_N.shape == (num_examples,), directory, f"ratings have shape {ratings_N.shape}"
        )
    return Split(
        meta=meta,
        inputs_NT=inputs_NT,
        labels_NT=labels_NT,
        puzzle_ids_N=np.repeat(ids.astype(np.int32), np.diff(puzzles)),
        puzzle_offsets=puzzles.astype(np.int64),
        group_offsets=groups.astype(np.int64),
        ratings_N=ratings_N,
    )


def read_meta(directory: Path) -> DatasetMeta:
    """dataset.json of one split directory; unknown keys are ignored."""
    path = directory / "dataset.json"
    try:
        values = json_from(text_of(path))
        meta = DatasetMeta(
            **{one.name: values[one.name] for one in fields(DatasetMeta) if one.name in values}
        )
        if not (
            isinstance(values["num_puzzle_identifiers"], int) and isinstance(values["sets"], list)
        ):
            raise ValueError("num_puzzle_identifiers is no number, or sets is no list")
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(
            f"{path} is not a data set description ({error}); give the directory above it."
        ) from error
    if len(meta.sets) != 1:
        raise DatasetError(
            f"{path} lists the sets {meta.sets} where one is expected; split them into directories."
        )
    return meta


def _array(directory: Path, subset: str, name: str) -> NDArray[Any]:
    path = directory / f"{subset}__{name}.npy"
    try:
        array = cast("NDArray[Any]", np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read ({error}); build the data set again.") from error
    _require(
        array.dtype.kind in "iu" and array.ndim > 0 and len(array) > 0,
        directory,
        f"{name} is {array.dtype}",
    )
    return array


def _require_offsets(directory: Path, name: str, offsets: IntArray, end: int) -> None:
    is_rising = (
        offsets.ndim == 1
        and offsets[0] == 0
        and offsets[-1] == end
        and bool((np.diff(offsets) >= 0).all())
    )
    _require(is_rising, directory, f"{name} does not rise from 0 to {end}")


def _require(holds: bool, directory: Path, problem: str) -> None:
    if not holds:
        raise DatasetError(
            f"{directory}: {problem}, which disagrees with the other files; build the data set again."
        )


def fingerprint(path: Path) -> str:
    """sha256 over the names and bytes of all files, so that a run can say exactly what it was trained on."""
    digest = hashlib.sha256()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
