"""Data sets in the published HRM layout, so that data sets of both projects train in both.

    <dir>/identifiers.json                         names of the puzzle ids; 0 is "<blank>"
    <dir>/recipe.json                              ours: the recipe, with the puzzle's name
    <dir>/{train,test}/dataset.json                DatasetMeta
    <dir>/{train,test}/all__inputs.npy             [N, T] tokens, any integer type
                       all__labels.npy             [N, T]
                       all__puzzle_identifiers.npy [puzzles] int32
                       all__puzzle_indices.npy     [puzzles + 1] first example of each puzzle
                       all__group_indices.npy      [groups + 1] first puzzle of each group
                       all__ratings.npy            ours: [N] int32

A group is an original puzzle. Its puzzles are the variants of it. Shapes: N examples, T tokens.

Example: two groups, of 1 and 2 puzzles, with 2, 1 and 1 examples.

    puzzle_indices  [0, 2, 3, 4]
    group_indices   [0, 1, 3]
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import write_array
from hrm_host.reading import (
    are_strings,
    is_list,
    is_object,
    json_from,
    object_of,
    plain_file,
    text_of,
)
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, Int32Array, Int64Array, IntArray, Puzzle

IGNORE = -100  # the label that the loss skips
RECIPE = "recipe.json"
IDENTIFIERS = "identifiers.json"
SPLITS = ("train", "test")
OF_DESKTOPS = (".", "desktop.ini", "Thumbs.db")  # beginnings of names
CHUNKS = "chunks"  # in the name of a folder that a stopped build left
NUMBERS = ("pad_id", "ignore_label_id", "vocab_size", "seq_len", "num_puzzle_identifiers")
"""Whole numbers of dataset.json; ignore_label_id may be null."""


class DatasetError(ValueError):
    """A data set that cannot be read or written.

    Its text is one sentence: value, expectation and remedy.
    """


@dataclass(frozen=True, kw_only=True)
class BuiltSet:
    """The outcome of a build.

    `num_left_out` counts copies of test questions, bad objects of an exported file (see `faults`)
    or ARC tasks that do not fit.
    """

    num_train: int
    num_test: int
    num_left_out: int
    fingerprint: str  # sha256 of all files
    num_tasks: int | None = None
    num_puzzles: int | None = None  # number of variants of the tasks
    num_more: int | None = None  # further examples of tasks
    num_more_left_out: int | None = None  # further examples: too large, or copies of test questions
    faults: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, kw_only=True)
class DatasetMeta:
    """dataset.json. TRM's files have `total_puzzles`, HRM's do not, and ours do."""

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


class Batch(NamedTuple):
    """Examples of a split; a label is IGNORE where the loss skips a position."""

    tokens_BT: Int32Array
    labels_BT: Int32Array
    puzzle_ids_B: Int32Array

    def rows(self, part: slice | NDArray[np.bool_] | NDArray[np.intp]) -> "Batch":
        return Batch(*(array[part] for array in self))


@dataclass(frozen=True, kw_only=True)
class Split:
    """One split of the data set `path`, memory-mapped: arrays are read from disk when used.

    A group is an original puzzle; its members are its variants. `puzzle_offsets` and
    `group_offsets` hold the start of each puzzle and group, and the end.
    """

    path: Path
    name: str
    puzzle: Puzzle
    meta: DatasetMeta
    inputs_NT: IntArray
    labels_NT: IntArray
    puzzle_ids_N: Int32Array
    puzzle_offsets: Int64Array
    group_offsets: Int64Array
    ratings_N: Int32Array | None

    def __len__(self) -> int:
        return len(self.inputs_NT)

    @property
    def num_groups(self) -> int:
        return len(self.group_offsets) - 1

    @property
    def num_puzzle_ids(self) -> int:
        return self.meta.num_puzzle_identifiers

    def identifiers(self) -> list[str]:
        """The names of the puzzle ids."""
        return identifiers_at(self.path)

    def rows(self, indices_B: NDArray[np.intp]) -> Batch:
        return Batch(self.inputs(indices_B), self.labels(indices_B), self.puzzle_ids_N[indices_B])

    def inputs(self, indices: IntArray | slice) -> Int32Array:
        return self._tokens("inputs", self.inputs_NT[indices], indices)

    def labels(self, indices: IntArray | slice) -> Int32Array:
        """Labels, with IGNORE for positions that the loss skips."""
        labels_BT = self.labels_NT[indices]
        ignored = self.meta.ignore_label_id
        is_ignored_BT = labels_BT == (IGNORE if ignored is None else ignored)
        tokens_BT = self._tokens("labels", np.where(is_ignored_BT, 0, labels_BT), indices)
        return np.where(is_ignored_BT, IGNORE, tokens_BT)

    def _tokens(self, name: str, values_BT: IntArray, indices: IntArray | slice) -> Int32Array:
        """Values as tokens; raises DatasetError for one outside the vocabulary."""
        num_tokens = self.meta.vocab_size
        is_outside_BT = (values_BT < 0) | (values_BT >= num_tokens)
        if is_outside_BT.any():
            rows_N1 = np.arange(len(self))[:, None]
            rows_BT = np.broadcast_to(rows_N1, self.inputs_NT.shape)[indices]
            file = _file_of(self.path / self.name, self.meta.sets[0], name)
            raise DatasetError(
                f"{file} holds {values_BT[is_outside_BT][0]} in the example at index "
                f"{rows_BT[is_outside_BT][0]}, but the vocabulary of {self.path} has the "
                f"tokens 0 to {num_tokens - 1}; build the data set again."
            )
        return values_BT.astype(np.int32)


class Layout(NamedTuple):
    """The examples of each puzzle and the puzzles of each group.

    Offsets hold the start of each, and the end.
    """

    puzzle_ids: Int32Array
    puzzle_offsets: Int64Array
    group_offsets: Int64Array
    num_puzzle_ids: int = 1

    @property
    def num_examples(self) -> int:
        return int(self.puzzle_offsets[-1])

    @classmethod
    def of_originals(cls, num_examples: int) -> "Layout":
        """Each example is a puzzle with the blank id and a group of its own."""
        blank_ids = np.zeros(num_examples, dtype=np.int32)
        offsets = np.arange(num_examples + 1)
        return cls(puzzle_ids=blank_ids, puzzle_offsets=offsets, group_offsets=offsets)


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
    """Write one split into a folder of `atomic.new_directory`.

    Without a layout each example is a group. Raises DatasetError for an empty split.
    """
    if layout is None:
        layout = Layout.of_originals(len(inputs_NT))
    create_split(path, split, puzzle=puzzle, layout=layout)
    write_rows(path, split, 0, inputs_NT, labels_NT)
    if ratings_N is not None:
        _save(path / split, "ratings", np.asarray(ratings_N, dtype=np.int32))


def create_split(path: Path, split: str, *, puzzle: Puzzle, layout: Layout) -> None:
    """Write a split with zeros in place of its examples. `write_rows` fills them in."""
    if not layout.num_examples:
        raise DatasetError(f"{split} would hold 0 examples; give at least one.")
    directory = path / split
    num_puzzles = len(layout.puzzle_ids)
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
    text = json.dumps(asdict(meta), indent=2)
    (directory / "dataset.json").write_bytes(text.encode())
    shape = (layout.num_examples, puzzle.seq_len)
    for name in ("inputs", "labels"):
        _save(directory, name, np.broadcast_to(np.uint8(0), shape))
    _save(directory, "puzzle_identifiers", layout.puzzle_ids.astype(np.int32))
    _save(directory, "puzzle_indices", layout.puzzle_offsets.astype(np.int32))
    _save(directory, "group_indices", layout.group_offsets.astype(np.int32))


def write_rows(
    path: Path,
    split: str,
    start: int,
    inputs_BT: IntArray,
    labels_BT: IntArray,
) -> None:
    """Write examples into a created split from row `start` on.

    Several processes may write different rows.
    """
    for name, rows_BT in (("inputs", inputs_BT), ("labels", labels_BT)):
        file = path / split / f"all__{name}.npy"
        mapped_NT = np.lib.format.open_memmap(file, mode="r+")
        mapped_NT[start : start + len(rows_BT)] = rows_BT
        mapped_NT.flush()


def stopped_build(out: Path, contents: object) -> Path:
    """The folder of a build of `out` that may stop; the same contents find it again."""
    digest = hashlib.sha256(json.dumps(contents, default=str).encode()).hexdigest()
    return out.with_name(f".{out.name}.{CHUNKS}-{digest[:12]}")


def write_identifiers(path: Path, names: Iterable[str] = ()) -> None:
    """Name the puzzle ids from 1 on; id 0 is the blank one.

    Names are written one by one, because there may be millions.
    """
    with (path / IDENTIFIERS).open("w", encoding="utf-8") as stream:
        stream.write("[" + json.dumps(BLANK_IDENTIFIER))
        for name in names:
            stream.write(", " + json.dumps(name))
        stream.write("]")


def identifiers_at(path: Path) -> list[str]:
    """The names of the puzzle ids; raises DatasetError if they cannot be read."""
    problem = "it is not a list of names"
    try:
        names: object = json_from(text_of(path / IDENTIFIERS))
        if is_list(names) and are_strings(names):
            return names
    except (OSError, ValueError) as error:
        problem = str(error)
    remedy = "build the data set again"
    raise DatasetError(f"{path / IDENTIFIERS} cannot be read ({problem}); {remedy}.")


def write_recipe(path: Path, puzzle: Puzzle, values: Mapping[str, object]) -> None:
    """Write the recipe of a data set and its puzzle: sizes do not always identify the puzzle."""
    text = json.dumps({**values, "puzzle": puzzle.name}, indent=2)
    # Bytes, because Windows changes the line ends of text.
    (path / RECIPE).write_bytes(text.encode())


def recipe_at(path: Path) -> dict[str, object]:
    """The recipe of a data set; empty without one, as other builders do not write one."""
    try:
        recipe: object = json_from(text_of(path / RECIPE))
    except (OSError, ValueError):
        return {}
    return recipe if is_object(recipe) else {}


def _save(directory: Path, name: str, array: NDArray[Any]) -> None:
    write_array(directory / f"all__{name}.npy", array)


def open_split(path: Path, split: str, puzzle: Puzzle) -> Split:
    """Open one split of a data set of ours, of HRM or of TRM.

    Raises DatasetError for missing files, for sizes that disagree and for another puzzle.
    """
    directory = path / split
    meta = _read_meta(directory)
    _require_puzzle(path, meta, puzzle)
    subset = meta.sets[0]
    inputs_NT = _array(directory, subset, "inputs")
    labels_NT = _array(directory, subset, "labels")
    ids = _array(directory, subset, "puzzle_identifiers")
    puzzles = _array(directory, subset, "puzzle_indices")
    groups = _array(directory, subset, "group_indices")
    num_examples = len(inputs_NT)
    puzzle_offsets = puzzles.astype(np.int64)
    _require_shape(directory, "inputs", inputs_NT, (num_examples, meta.seq_len))
    _require_shape(directory, "labels", labels_NT, inputs_NT.shape)
    _require_offsets(directory, "puzzle_indices", puzzles, num_examples)
    _require_shape(directory, "puzzle_identifiers", ids, (len(puzzles) - 1,))
    if ids.min() < 0 or ids.max() >= meta.num_puzzle_identifiers:
        raise _disagreement(
            directory,
            f"puzzle_identifiers are {ids.min()} to {ids.max()} of {meta.num_puzzle_identifiers}",
        )
    _require_offsets(directory, "group_indices", groups, len(ids))
    ratings_N = None
    if _file_of(directory, subset, "ratings").exists():
        ratings_N = _array(directory, subset, "ratings")
        _require_shape(directory, "ratings", ratings_N, (num_examples,))
    return Split(
        path=path,
        name=split,
        puzzle=puzzle,
        meta=meta,
        inputs_NT=inputs_NT,
        labels_NT=labels_NT,
        puzzle_ids_N=np.repeat(ids.astype(np.int32), np.diff(puzzle_offsets)),
        puzzle_offsets=puzzle_offsets,
        group_offsets=groups.astype(np.int64),
        ratings_N=ratings_N,
    )


def _read_meta(directory: Path) -> DatasetMeta:
    """Read dataset.json of one split. Unknown keys are ignored."""
    path = directory / "dataset.json"
    if not path.exists():
        split = directory.name
        remedy = "build or import it with both splits, or give the directory of a data set"
        raise DatasetError(f"{directory.parent} has no {split} split: {path} is absent; {remedy}.")
    try:
        meta = _meta_of(object_of(path))
    except (OSError, ValueError, TypeError) as error:
        problem = f"{path} does not describe a data set ({error})"
        raise DatasetError(f"{problem}; build the data set again.") from error
    if len(meta.sets) != 1:
        problem = f"{path} lists the sets {meta.sets}, but a directory may hold only one"
        raise DatasetError(f"{problem}; split them into directories.")
    return meta


def _require_puzzle(path: Path, meta: DatasetMeta, puzzle: Puzzle) -> None:
    if (meta.vocab_size, meta.seq_len) != (puzzle.vocab_size, puzzle.seq_len):
        found = f"{path} has {meta.seq_len} positions of {meta.vocab_size} tokens"
        expected = f"{puzzle.name} has {puzzle.seq_len} of {puzzle.vocab_size}"
        raise DatasetError(f"{found}, but {expected}; choose another data set or puzzle.")
    named = recipe_at(path).get("puzzle", puzzle.name)
    if named != puzzle.name:  # puzzles of one size can share a vocabulary
        raise DatasetError(
            f"{path} holds {named}, but the puzzle is {puzzle.name}; give a data set of that."
        )


def _meta_of(values: Mapping[str, Any]) -> DatasetMeta:
    names = [one.name for one in fields(DatasetMeta)]
    known = {name: values[name] for name in names if name in values}
    meta = DatasetMeta(**known)
    for name in NUMBERS:
        value = known[name]
        if type(value) is not int and (name, value) != ("ignore_label_id", None):
            raise ValueError(f"{name} is {value!r}, not a whole number")
    if not is_list(meta.sets) or not are_strings(meta.sets):
        raise ValueError(f"sets is {meta.sets!r}, not a list of names")
    return meta


def _file_of(directory: Path, subset: str, name: str) -> Path:
    return directory / f"{subset}__{name}.npy"


def _array(directory: Path, subset: str, name: str) -> NDArray[Any]:
    path = _file_of(directory, subset, name)
    try:
        array = np.lib.format.open_memmap(plain_file(path), mode="r")
    except Exception as error:  # a damaged header can make NumPy raise any error
        raise DatasetError(f"cannot read {path} ({error}); build the data set again.") from error
    if array.dtype.kind not in "iu" or array.ndim == 0 or len(array) == 0:
        raise _disagreement(directory, f"{name} hold {array.dtype} in the shape {array.shape}")
    return array


def _require_shape(
    directory: Path,
    name: str,
    array: NDArray[Any],
    shape: tuple[int, ...],
) -> None:
    if array.shape != shape:
        raise _disagreement(directory, f"{name} have shape {array.shape}")


def _require_offsets(directory: Path, name: str, offsets: IntArray, end: int) -> None:
    is_rising = offsets.ndim == 1 and bool((np.diff(offsets.astype(np.int64)) > 0).all())
    if not is_rising or offsets[0] != 0 or offsets[-1] != end:
        raise _disagreement(directory, f"{name} does not rise from 0 to {end}")


def _disagreement(directory: Path, problem: str) -> DatasetError:
    problem = f"{directory}: {problem}, which disagrees with the other files"
    return DatasetError(f"{problem}; build the data set again.")


def fingerprint(path: Path) -> str:
    """sha256 over the names and bytes of all files but those that desktops leave behind.

    It identifies what a run was trained on.
    """
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if not file.is_file() or file.name.startswith(OF_DESKTOPS):
            continue
        name = file.relative_to(path).as_posix()
        digest.update(f"{name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
