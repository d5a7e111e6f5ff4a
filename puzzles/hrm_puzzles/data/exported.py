"""Data sets from puzzles that a page or a tool has exported: JSON objects with a puzzle and its solution.

    [{"puzzle": ..., "solution": ...}, ...]        one list, or one object a line

Each side is written in any notation the puzzle reads. Shapes: N examples, T tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import new_directory, require_free
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import DatasetError, Layout
from hrm_puzzles.data.generation import is_held_out_N
from hrm_puzzles.puzzle import WRONG, Grid, Puzzle, PuzzleError

FORM = 'write {"puzzle": ..., "solution": ...}'
MOST_SHOWN = 20  # faults that are listed one by one


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One good object: its tokens, and the name of its row in the puzzle table where the puzzle has many."""

    inputs_T: NDArray[np.uint8]
    labels_T: NDArray[np.uint8]
    identifier: str | None


@dataclass(frozen=True, kw_only=True)
class Imported:
    """`faults` says of each object that was left out where it stands and why."""

    num_train: int
    num_test: int
    faults: list[str]
    fingerprint: str


def import_file(path: Path, puzzle: Puzzle, out: Path, *, split: str | None = None) -> Imported:
    """Make a data set of the good objects of a file; all go to `split`, or the held-out classes to the test split.

    What is held out is a rule over equivalence classes, the same as for generated data sets, so that no imported
    training question is a copy of a test question of any. Refuses a file without a good object.
    """
    require_free(out)
    entries: list[Entry] = []
    faults: list[str] = []
    for place, value in _objects(path):
        try:
            entries.append(_entry(puzzle, value))
        except PuzzleError as error:
            faults.append(f"{place}: {error}")
    if not entries:
        raise DatasetError(f"{path} holds no good puzzle ({'; '.join(faults[:1]) or 'it is empty'}); {FORM}.")
    parts = _parts(puzzle, entries, split)
    with new_directory(out) as directory:
        _write(puzzle, parts, directory, path.name)
    counts = {name: len(part) for name, part in parts.items()}
    return Imported(
        num_train=counts.get("train", 0),
        num_test=counts.get("test", 0),
        faults=faults,
        fingerprint=datasets.fingerprint(out),
    )


def _objects(path: Path) -> Iterator[tuple[str, object]]:
    """Each object and where it stands: its number in the list, or its line."""
    text = path.read_text(encoding="utf-8-sig")
    if text.lstrip().startswith("["):
        try:
            values = cast("list[object]", json.loads(text))
        except (ValueError, RecursionError) as error:
            raise DatasetError(f"{path} is not JSON ({error}); {FORM} in a list, or one a line.") from error
        yield from ((f"object {number}", value) for number, value in enumerate(values, start=1))
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"line {number}", _line(line)


def _line(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return line


def _entry(puzzle: Puzzle, value: object) -> Entry:
    if not isinstance(value, dict) or not {"puzzle", "solution"} <= set(cast("dict[str, object]", value)):
        raise PuzzleError("there is no object with puzzle and solution", "wrong-keys", FORM)
    values = cast("dict[str, object]", value)
    parsed = puzzle.parse(values["puzzle"])
    answer = _answer(puzzle, values["solution"], parsed.identifier)
    inputs_T, labels_T = (puzzle.encode(grid).astype(np.uint8) for grid in (parsed.grid, answer))
    if puzzle.check_BT(inputs_T[None], labels_T[None])[0] == WRONG:
        raise PuzzleError("the solution does not solve the puzzle", "wrong-solution", "correct or remove it")
    return Entry(inputs_T=inputs_T, labels_T=labels_T, identifier=parsed.identifier)


def _answer(puzzle: Puzzle, solution: object, identifier: str | None) -> Grid:
    """A solution is read like a question; one of a named task may leave the name to its question."""
    if identifier is not None and not isinstance(solution, dict):
        solution = {"task": identifier, "input": solution}
    return puzzle.parse(solution).grid


def _parts(puzzle: Puzzle, entries: Sequence[Entry], split: str | None) -> dict[str, list[Entry]]:
    """The entries of each split that has any, those of one identifier in a row."""
    in_order = sorted(entries, key=lambda entry: entry.identifier or "")
    if split is not None:
        return {split: in_order}
    inputs_NT, labels_NT = (np.stack([getattr(entry, name) for entry in in_order]) for name in ("inputs_T", "labels_T"))
    is_test_N = is_held_out_N(puzzle, inputs_NT, labels_NT)
    parts = {
        name: [entry for entry, is_test in zip(in_order, is_test_N, strict=True) if is_test == wanted]
        for name, wanted in (("train", False), ("test", True))
    }
    return {name: part for name, part in parts.items() if part}


def _write(puzzle: Puzzle, parts: dict[str, list[Entry]], directory: Path, source: str) -> None:
    names = sorted({entry.identifier for part in parts.values() for entry in part if entry.identifier is not None})
    number_of = {name: number for number, name in enumerate(names, start=1)}
    for split, part in parts.items():
        inputs_NT, labels_NT = (
            np.stack([entry.inputs_T for entry in part]),
            np.stack([entry.labels_T for entry in part]),
        )
        ids_N = np.array([number_of.get(entry.identifier or "", 0) for entry in part], dtype=np.int32)
        datasets.write_split(
            directory, split, inputs_NT, labels_NT, puzzle=puzzle, layout=_layout(ids_N, len(names) + 1)
        )
    datasets.write_identifiers(directory, names)
    datasets.write_recipe(directory, puzzle, {"imported": source})


def _layout(ids_N: NDArray[np.int32], num_puzzle_ids: int) -> Layout:
    """One puzzle and group for each example without a name, and for all examples of one name together."""
    begins_N = np.append(True, (ids_N[1:] != ids_N[:-1]) | (ids_N[1:] == 0))
    starts = np.flatnonzero(begins_N)
    return Layout(
        puzzle_ids=ids_N[starts],
        puzzle_offsets=np.append(starts, len(ids_N)),
        group_offsets=np.arange(len(starts) + 1),
        num_puzzle_ids=num_puzzle_ids,
    )
