"""Shards: parts of a build of puzzles for several machines, and the data set they join to.

    <dir>/shard.json    "number", "of", "origin" (the same in all shards), "sha256" of part
    <dir>/part/         recipe.json, and an array of each of `examples.Rows`

A shard depends only on the recipe and its number, so a killed build can start over. Without
`--shard`, a build is shard 1/1.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from hrm_host.atomic import new_directory, require_free
from hrm_host.reading import json_from, text_of
from hrm_puzzles import registry
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import SHARD, DatasetError
from hrm_puzzles.data.examples import Rows, write_data_set
from hrm_puzzles.puzzle import Puzzle

PART = "part"
MOST_SHARDS = 100_000
MOST_NAMED = 5  # missing shards that an error names
VERSIONS = ("hrm-edge", "numpy")  # packages that determine the bytes of generated puzzles


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of `of` parts. Numbers count from 1."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Read "3/8"; raises DatasetError for anything else."""
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
        if match is not None:
            number, of = map(int, match.groups())
            if 1 <= number <= of <= MOST_SHARDS:
                return cls(number=number, of=of)
        problem = f"{text[:40]!r} is not a shard"
        raise DatasetError(f"{problem}; write I/N with 1 <= I <= N <= {MOST_SHARDS}, as in 3/8.")

    def slice_of(self, count: int) -> slice:
        """This shard's part of `count` items. The sizes of two shards differ by at most one."""
        start = count * (self.number - 1) // self.of
        end = count * self.number // self.of
        return slice(start, end)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


WHOLE = Shard()


@dataclass(frozen=True, kw_only=True)
class BuiltShard:
    """A shard on disk. All shards of a build have the same origin."""

    path: Path
    shard: Shard
    origin: Mapping[str, object]


def write_shard(
    shard: Shard, puzzle: Puzzle, recipe: Mapping[str, object], rows: Rows, out: Path
) -> datasets.BuiltSet:
    """Write one shard of a build. `recipe` is the content of recipe.json."""
    with new_directory(out) as directory:
        part = directory / PART
        part.mkdir()
        for name, examples in rows.items():
            np.save(part / f"{name}.npy", examples, allow_pickle=False)
        datasets.write_recipe(part, puzzle, recipe)
        versions = {name: metadata.version(name) for name in VERSIONS}
        values = {
            "number": shard.number,
            "of": shard.of,
            "origin": {**versions, **recipe, "puzzle": puzzle.name},
            "sha256": datasets.fingerprint(part),
        }
        (directory / SHARD).write_bytes(json.dumps(values, indent=2).encode())
    return datasets.BuiltSet(
        num_train=len(rows["made_train"]) + len(rows["csv_train"]),
        num_test=len(rows["made_test"]) + len(rows["csv_test"]),
        num_left_out=0,
        fingerprint=datasets.fingerprint(out),
    )


def merge(paths: Sequence[Path], out: Path) -> datasets.BuiltSet:
    """Join all shards of a build; `out` equals the build of one machine.

    Raises DatasetError for a shard that is damaged, missing, duplicated, or of another build.
    """
    require_free(out)
    shards = [_open_shard(path) for path in paths]
    shards.sort(key=lambda one: one.shard.number)
    _require_one_build(shards)
    _require_complete(shards)
    first = shards[0]
    puzzle = registry.get(str(first.origin["puzzle"]))
    rows: Rows = {}
    for name in ("made_train", "made_test", "csv_train", "csv_test"):
        files = [shard.path / PART / f"{name}.npy" for shard in shards]
        parts = [np.load(file, allow_pickle=False) for file in files]
        rows[name] = np.concatenate(parts)
    recipe = json_from(text_of(first.path / PART / datasets.RECIPE))
    return write_data_set(puzzle, recipe, rows, out)


def _open_shard(path: Path) -> BuiltShard:
    file = path / SHARD
    try:
        values = cast("dict[str, Any]", json_from(text_of(file)))
        shard = Shard.parse(f"{values['number']}/{values['of']}")
        origin = cast("dict[str, object]", values["origin"])
        str(origin["puzzle"])
        digest = values["sha256"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"{path} is not a finished shard ({error})"
        raise DatasetError(f"{problem}; give what hrm-data build --shard wrote.") from error
    if datasets.fingerprint(path / PART) != digest:
        problem = f"the files of {path} differ from those of its build"
        raise DatasetError(f"{problem}; build shard {shard} again or copy it again.")
    return BuiltShard(path=path, shard=shard, origin=origin)


def _require_one_build(shards: Sequence[BuiltShard]) -> None:
    first = shards[0]
    for other in shards[1:]:
        pair = f"{other.path} is shard {other.shard}, but {first.path} is {first.shard}"
        if other.shard.of != first.shard.of:
            raise DatasetError(f"{pair}; merge shards of one build.")
        for name in {**first.origin, **other.origin}:
            ours = first.origin.get(name)
            theirs = other.origin.get(name)
            if ours != theirs:
                problem = f"{other.path} has {name} {theirs!r}, but {first.path} has {ours!r}"
                remedy = f"build shard {other.shard} again with the same options and versions"
                raise DatasetError(f"{problem}; {remedy}.")


def _require_complete(shards: Sequence[BuiltShard]) -> None:
    for one, other in pairwise(shards):
        if one.shard == other.shard:
            problem = f"{one.path} and {other.path} are both shard {one.shard}"
            raise DatasetError(f"{problem}; give each shard once.")
    of = shards[0].shard.of
    found = {one.shard.number for one in shards}
    missing = [f"{number}/{of}" for number in range(1, of + 1) if number not in found]
    if missing:
        names = ", ".join(missing[:MOST_NAMED])
        if len(missing) > MOST_NAMED:
            names = f"{names} and {len(missing) - MOST_NAMED} more"
        raise DatasetError(f"these shards are missing: {names}; build them, then merge again.")
