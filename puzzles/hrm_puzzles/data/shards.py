"""Shards: parts of a build for several machines, which `merge` joins into one data set.

    <dir>/shard.json    "number", "of", "origin" (the same in all shards), "sha256" of part
    <dir>/part/         recipe.json, and rows (`build.py`) or a data set of tasks (`arc/build.py`)

A shard depends only on the recipe and its number, so a killed build can start over. Without
`--shard`, a build is shard 1/1.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from hrm_host.reading import json_from, text_of
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import SHARD, DatasetError

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

    @property
    def is_first(self) -> bool:
        return self.number == 1

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

    @property
    def part(self) -> Path:
        return self.path / PART


def write_shard_file(directory: Path, shard: Shard, content: str = "") -> None:
    """Complete a shard whose part is written. `content` is the hash of what was read from files."""
    origin: dict[str, object] = {name: metadata.version(name) for name in VERSIONS}
    origin["content"] = content
    recipe: object = json_from(text_of(directory / PART / datasets.RECIPE))
    origin.update(cast("dict[str, object]", recipe))
    values = {
        "number": shard.number,
        "of": shard.of,
        "origin": origin,
        "sha256": datasets.fingerprint(directory / PART),
    }
    (directory / SHARD).write_bytes(json.dumps(values, indent=2).encode())


def open_shards(paths: Sequence[Path]) -> list[BuiltShard]:
    """All shards of one build, in order.

    Raises DatasetError for a shard that is damaged, missing, duplicated, or of another build.
    """
    shards = [_open_shard(path) for path in paths]
    shards.sort(key=lambda one: one.shard.number)
    _require_one_build(shards)
    _require_complete(shards)
    return shards


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
    by_number: dict[int, BuiltShard] = {}
    for one in shards:
        other = by_number.setdefault(one.shard.number, one)
        if other is not one:
            problem = f"{other.path} and {one.path} are both shard {one.shard}"
            raise DatasetError(f"{problem}; give each shard once.")
    of = shards[0].shard.of
    missing = [
        Shard(number=number, of=of) for number in range(1, of + 1) if number not in by_number
    ]
    if missing:
        names = ", ".join(map(str, missing[:MOST_NAMED]))
        if len(missing) > MOST_NAMED:
            names = f"{names} and {len(missing) - MOST_NAMED} more"
        raise DatasetError(f"these shards are missing: {names}; build them, then merge again.")
