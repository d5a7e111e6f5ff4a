"""Write the rows of a build as a data set, and merge shards to the same bytes.

Shapes: N examples, T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import new_directory, require_free
from hrm_host.reading import json_from, text_of
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import DatasetError, Layout, Split
from hrm_puzzles.data.examples import Examples, example_type
from hrm_puzzles.data.shards import BuiltShard
from hrm_puzzles.puzzle import Puzzle

SPLITS = ("train", "test")
ROWS = ("made_train", "made_test", "csv_train", "csv_test")
BLOCK = 4096  # examples that are copied at once; 7 MB of ARC's largest boards
OWN_FILES = ("identifiers.json",)  # files that a merged data set writes anew

Rows = dict[str, Examples]
"""Generated rows and CSV rows of both splits, by the names in ROWS."""


def write_data_set(
    puzzle: Puzzle,
    recipe: Mapping[str, object],
    rows: Rows,
    out: Path,
) -> datasets.BuiltSet:
    """Write the data set of all rows. `recipe` is the content of recipe.json."""
    all_train = np.concatenate([rows["made_train"], rows["csv_train"]])
    test = np.concatenate([rows["made_test"], rows["csv_test"]])
    train = _without_copies(puzzle, all_train, test)
    with new_directory(out) as directory:
        for split, examples in (("train", train), ("test", test)):
            datasets.write_split(
                directory,
                split,
                examples["inputs"],
                examples["labels"],
                puzzle=puzzle,
                ratings_N=examples["rating"],
            )
        datasets.write_identifiers(directory)
        datasets.write_recipe(directory, puzzle, recipe)
    return datasets.BuiltSet(
        num_train=len(train),
        num_test=len(test),
        num_left_out=len(all_train) - len(train),
        fingerprint=datasets.fingerprint(out),
    )


def _without_copies(puzzle: Puzzle, train: Examples, test: Examples) -> Examples:
    """The training examples that are not copies of test examples. Only CSV rows can be copies."""
    train_N = puzzle.equivalence_hash_B(train["inputs"], train["labels"])
    test_N = puzzle.equivalence_hash_B(test["inputs"], test["labels"])
    is_copy_N = np.isin(train_N, test_N)
    return train[~is_copy_N]


def merge_rows(shards: Sequence[BuiltShard], puzzle: Puzzle, out: Path) -> datasets.BuiltSet:
    """Merge all shards of a build of puzzles; `out` equals the build of one machine."""
    require_free(out)
    rows: Rows = {}
    for name in ROWS:
        parts = [_rows_of(shard, name, puzzle) for shard in shards]
        rows[name] = np.concatenate(parts)
    return write_data_set(puzzle, _recipe_of(shards[0]), rows, out)


def _rows_of(shard: BuiltShard, name: str, puzzle: Puzzle) -> Examples:
    file = shard.part / f"{name}.npy"
    try:
        rows = cast("Examples", np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(shard, f"cannot read {file} ({error})") from error
    if rows.dtype != example_type(puzzle) or rows.ndim != 1:
        raise _unreadable(shard, f"{file} does not hold rows of {puzzle.name}")
    return rows


def _recipe_of(shard: BuiltShard) -> Mapping[str, object]:
    recipe: object = json_from(text_of(shard.part / datasets.RECIPE))
    return cast("dict[str, object]", recipe)


def _unreadable(shard: BuiltShard, problem: str) -> DatasetError:
    return DatasetError(f"{problem}; build shard {shard.shard} again.")


def merge_data_sets(
    shards: Sequence[BuiltShard],
    puzzle: Puzzle,
    out: Path,
) -> datasets.BuiltSet:
    """Merge all shards of a build of tasks; `out` equals the build of one machine.

    Examples are copied block by block, so memory use stays constant.
    """
    require_free(out)
    names = [_names_of(shard) for shard in shards]
    counts: dict[str, int] = {}
    with new_directory(out) as directory:
        for split in SPLITS:
            counts[split] = _merge_split(shards, names, split, puzzle, directory)
        datasets.write_identifiers(directory, chain.from_iterable(names))
        _copy_provenance(shards[0], directory)
    return datasets.BuiltSet(
        num_train=counts["train"],
        num_test=counts["test"],
        num_left_out=0,
        fingerprint=datasets.fingerprint(out),
    )


def _names_of(shard: BuiltShard) -> list[str]:
    """The names of a shard's puzzle ids, without the blank one."""
    file = shard.part / "identifiers.json"
    try:
        names: Any = json_from(text_of(file))
    except (OSError, ValueError) as error:
        raise _unreadable(shard, f"cannot read {file} ({error})") from error
    if not isinstance(names, list):
        raise _unreadable(shard, f"{file} is not a list of names")
    return cast("list[str]", names)[1:]


def _merge_split(
    shards: Sequence[BuiltShard],
    names: Sequence[list[str]],
    split: str,
    puzzle: Puzzle,
    directory: Path,
) -> int:
    """Write one split from those of the shards; returns the number of its examples."""
    parts: list[Split] = []
    first_ids: list[int] = []
    num_ids = 0
    for shard, own_names in zip(shards, names, strict=True):
        if (shard.part / split).is_dir():
            parts.append(datasets.open_split(shard.part, split))
            first_ids.append(num_ids)
        num_ids += len(own_names)
    layout = _joined_layout(parts, first_ids, num_ids + 1)
    datasets.create_split(directory, split, puzzle=puzzle, layout=layout)
    row = 0
    for part in parts:
        for block in _blocks(len(part)):
            inputs_BT = part.inputs_NT[block]
            labels_BT = part.labels_NT[block]
            datasets.write_rows(directory, split, row, inputs_BT, labels_BT)
            row += len(inputs_BT)
    return row


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, start + BLOCK)


def _joined_layout(parts: Sequence[Split], first_ids: Sequence[int], num_ids: int) -> Layout:
    """The layout of all parts, one after the other. `first_ids` are added to the ids of each."""
    ids: list[NDArray[np.int32]] = []
    for part, first_id in zip(parts, first_ids, strict=True):
        own_ids = part.puzzle_ids_N[part.puzzle_offsets[:-1]]
        ids.append(own_ids + np.int32(first_id))
    return Layout(
        puzzle_ids=np.concatenate(ids),
        puzzle_offsets=_joined_offsets([part.puzzle_offsets for part in parts]),
        group_offsets=_joined_offsets([part.group_offsets for part in parts]),
        num_puzzle_ids=num_ids,
    )


def _joined_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    sizes = np.concatenate([np.diff(offsets) for offsets in parts])
    return np.append(0, np.cumsum(sizes))


def _copy_provenance(shard: BuiltShard, directory: Path) -> None:
    """Copy the recipe and the licenses, which are the same in all shards."""
    for file in shard.part.iterdir():
        if file.is_file() and file.name not in OWN_FILES:
            (directory / file.name).write_bytes(file.read_bytes())
