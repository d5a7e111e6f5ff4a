"""Build a data set from generated puzzles and CSV rows, or from exported puzzles.

Splits do not share puzzles. A data set is written completely or not at all. Exported puzzles are
JSON objects, in one list or one per line: {"puzzle": ..., "solution": ...}, each in any notation
that the puzzle reads. Shapes: N examples, T tokens.
"""

import glob
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hrm_host.atomic import new_directory, require_free
from hrm_host.progress import OnProgress, unheard
from hrm_host.reading import json_from, text_of
from hrm_puzzles import registry
from hrm_puzzles.data import datasets, sources
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.data.examples import Examples, example_type, read_examples
from hrm_puzzles.data.merge import Rows, write_data_set
from hrm_puzzles.data.shards import PART, WHOLE, Shard, write_shard_file
from hrm_puzzles.puzzle import WRONG, Puzzle, PuzzleError

# Training and test puzzles. The mazes are those of the published Maze-Hard.
USUAL_COUNTS = {"maze": (1000, 1000), "logistics": (960, 400)}
OTHER_COUNTS = (1000, 200)
FORM = 'write {"puzzle": ..., "solution": ...}'
CSV_SAMPLE_STREAM = 3  # spawn key of the random stream that draws `csv_sample`

UInt8Array = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """What a data set consists of: generated puzzles of a difficulty, and rows of CSV files.

    If `csv_sample` is set, training uses this many random rows of `csv_train`. `columns` names the
    columns of both files, as in `data.rows`.
    """

    puzzle: str
    num_train: int
    num_test: int
    seed: int = 0
    difficulty: str = sources.MIXED
    csv_train: str | None = None
    csv_test: str | None = None
    csv_sample: int | None = None
    columns: str | None = None


def usual_counts(puzzle: Puzzle) -> tuple[int, int]:
    """The default numbers of generated puzzles, for training and for the test."""
    family, _, _ = puzzle.name.partition("-")
    return USUAL_COUNTS.get(family, OTHER_COUNTS)


def build(
    recipe: DataRecipe,
    out: Path,
    *,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> datasets.BuiltSet:
    """Build a data set at `out`, which must not exist.

    A stopped build continues if it is started again with the same recipe.
    """
    puzzle = registry.get(recipe.puzzle)
    rows = _rows(recipe, puzzle, WHOLE, out, num_workers=num_workers, progress=progress)
    built = write_data_set(puzzle, _named(recipe), rows, out)
    _remove_chunks(recipe, WHOLE, out)
    return built


def build_shard(
    recipe: DataRecipe,
    shard: Shard,
    out: Path,
    *,
    num_workers: int = 1,
    progress: OnProgress = unheard,
) -> datasets.BuiltSet:
    """Build one shard at `out`. A stopped one continues. The first shard holds the CSV rows."""
    puzzle = registry.get(recipe.puzzle)
    rows = _rows(recipe, puzzle, shard, out, num_workers=num_workers, progress=progress)
    with new_directory(out) as directory:
        part = directory / PART
        part.mkdir()
        for name, examples in rows.items():
            np.save(part / f"{name}.npy", examples, allow_pickle=False)
        datasets.write_recipe(part, puzzle, _named(recipe))
        write_shard_file(directory, shard)
    _remove_chunks(recipe, shard, out)
    return datasets.BuiltSet(
        num_train=len(rows["made_train"]) + len(rows["csv_train"]),
        num_test=len(rows["made_test"]) + len(rows["csv_test"]),
        num_left_out=0,
        fingerprint=datasets.fingerprint(out),
    )


def _rows(
    recipe: DataRecipe,
    puzzle: Puzzle,
    shard: Shard,
    out: Path,
    *,
    num_workers: int,
    progress: OnProgress,
) -> Rows:
    """The rows of a shard."""
    # Find all errors in the recipe before the work starts.
    sources.difficulties_of(puzzle, recipe.difficulty)
    require_free(out)
    csv_train = _csv_train(puzzle, recipe, shard)
    csv_test = _csv_test(puzzle, recipe, shard)
    make = partial(
        sources.generated,
        puzzle,
        directory=_chunk_folder(recipe, shard, out),
        difficulty=recipe.difficulty,
        seed=recipe.seed,
        shard=shard,
        num_workers=num_workers,
        progress=progress,
    )
    return {
        "made_train": make(count=recipe.num_train, is_test=False),
        "made_test": make(count=recipe.num_test, is_test=True),
        "csv_train": csv_train,
        "csv_test": csv_test,
    }


def _chunk_folder(recipe: DataRecipe, shard: Shard, out: Path) -> Path:
    """The folder of the generated chunks. The same recipe and shard find it again."""
    contents = [asdict(recipe), str(shard)]
    digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()
    return out.with_name(f".{out.name}.chunks-{digest[:12]}")


def _remove_chunks(recipe: DataRecipe, shard: Shard, out: Path) -> None:
    shutil.rmtree(_chunk_folder(recipe, shard, out), ignore_errors=True)


def chunk_folders(out: Path) -> list[Path]:
    """The folders of generated chunks that stopped builds of `out` left, of any recipe."""
    return sorted(out.parent.glob(f".{glob.escape(out.name)}.chunks-*"))


def _csv_train(puzzle: Puzzle, recipe: DataRecipe, shard: Shard) -> Examples:
    """The rows of the training CSV file, or a random sample of them."""
    rows = _csv_rows(puzzle, recipe, recipe.csv_train, shard)
    if recipe.csv_sample is not None and recipe.csv_sample < len(rows):
        seed = np.random.SeedSequence(recipe.seed, spawn_key=(CSV_SAMPLE_STREAM,))
        order = np.random.default_rng(seed).permutation(len(rows))
        rows = rows[np.sort(order[: recipe.csv_sample])]
    if shard.is_first:
        _check_not_empty("train", recipe.num_train + len(rows))
    return rows


def _csv_test(puzzle: Puzzle, recipe: DataRecipe, shard: Shard) -> Examples:
    rows = _csv_rows(puzzle, recipe, recipe.csv_test, shard)
    if shard.is_first:
        _check_not_empty("test", recipe.num_test + len(rows))
    return rows


def _csv_rows(puzzle: Puzzle, recipe: DataRecipe, file: str | None, shard: Shard) -> Examples:
    """All rows, but only in the first shard, because reading four million takes minutes."""
    if file is None or not shard.is_first:
        return np.zeros(0, dtype=example_type(puzzle))
    return read_examples(Path(file), puzzle, recipe.columns)


def _check_not_empty(split: str, num_examples: int) -> None:
    if not num_examples:
        remedy = f"give --{split} or --csv-{split} with rows"
        raise DatasetError(f"the {split} split would be empty; {remedy}.")


def _named(recipe: DataRecipe) -> dict[str, object]:
    """The recipe with the names of files, without their folders.

    So data sets built on two machines are equal.
    """
    csv_train = _file_name(recipe.csv_train)
    csv_test = _file_name(recipe.csv_test)
    return asdict(replace(recipe, csv_train=csv_train, csv_test=csv_test))


def _file_name(file: str | None) -> str | None:
    if not file:
        return file
    return Path(file).name


def import_file(
    path: Path,
    puzzle: Puzzle,
    out: Path,
    *,
    split: str | None = None,
) -> datasets.BuiltSet:
    """Build a data set from the good objects of a file.

    The objects go to `split`, or to both splits by `is_held_out_N`. Raises DatasetError if the file
    does not hold any good object.
    """
    require_free(out)
    found, faults = _read_objects(path, puzzle)
    if not found:
        reason = "it is empty"
        if faults:
            reason = faults[0]
        raise DatasetError(f"{path} does not hold a valid puzzle ({reason}); {FORM}.")
    found.sort(key=lambda one: one.name)
    names = [one.name for one in found]
    inputs_NT = np.stack([one.inputs_T for one in found])
    labels_NT = np.stack([one.labels_T for one in found])
    identifiers = sorted({*names} - {""})
    ids_N = _ids_of(names, identifiers)
    if split is None:
        is_test_N = sources.is_held_out_N(puzzle, inputs_NT, labels_NT)
    else:
        is_test_N = np.full(len(found), split == "test")
    with new_directory(out) as directory:
        for part, chosen_N in (("train", ~is_test_N), ("test", is_test_N)):
            if chosen_N.any():
                layout = _layout(ids_N[chosen_N], len(identifiers) + 1)
                inputs = inputs_NT[chosen_N]
                labels = labels_NT[chosen_N]
                datasets.write_split(directory, part, inputs, labels, puzzle=puzzle, layout=layout)
        datasets.write_identifiers(directory, identifiers)
        datasets.write_recipe(directory, puzzle, {"imported": path.name})
    num_test = int(is_test_N.sum())
    return datasets.BuiltSet(
        num_train=len(found) - num_test,
        num_test=num_test,
        num_left_out=len(faults),
        faults=faults,
        fingerprint=datasets.fingerprint(out),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """An exported puzzle. `name` is its identifier; it is empty for puzzles without one."""

    name: str
    inputs_T: UInt8Array
    labels_T: UInt8Array


def _read_objects(path: Path, puzzle: Puzzle) -> tuple[list[Labelled], list[str]]:
    """The good objects of a file, and one sentence for each rejected object."""
    found: list[Labelled] = []
    faults: list[str] = []
    for place, value in _objects(path):
        try:
            found.append(labelled(puzzle, value))
        except PuzzleError as error:
            faults.append(f"{place}: {error}")
    return found, faults


def _objects(path: Path) -> Iterator[tuple[str, object]]:
    """Each object and its place: its number in the list, or its line."""
    try:
        text = text_of(path)
    except ValueError as error:
        remedy = "split it into several files"
        raise DatasetError(f"cannot read {path} ({error}); {remedy}.") from error
    if text.lstrip().startswith("["):
        for number, value in enumerate(_list_in(path, text), start=1):
            yield f"object {number}", value
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield f"line {number}", _value_of_line(line)


def _list_in(path: Path, text: str) -> list[Any]:
    try:
        return cast("list[Any]", json_from(text))
    except ValueError as error:
        remedy = f"{FORM} in a list, or one per line"
        raise DatasetError(f"{path} is not JSON ({error}); {remedy}.") from error


def _value_of_line(line: str) -> object:
    """The JSON value of a line; the line itself if it is not JSON, which `labelled` rejects."""
    try:
        return json_from(line)
    except ValueError:
        return line


def labelled(puzzle: Puzzle, value: object) -> Labelled:
    """Read an exported puzzle.

    Raises PuzzleError if its solution is proven wrong. A solution need not name the task again.
    """
    if not isinstance(value, dict):
        raise _wrong_keys()
    values = cast("dict[str, object]", value)
    if "puzzle" not in values or "solution" not in values:
        raise _wrong_keys()
    question = puzzle.parse(values["puzzle"])
    solution = values["solution"]
    if question.identifier is not None and not isinstance(solution, dict):
        solution = {"task": question.identifier, "input": solution}
    answer = puzzle.parse(solution)
    inputs_T = puzzle.encode(question.grid).astype(np.uint8)
    labels_T = puzzle.encode(answer.grid).astype(np.uint8)
    if puzzle.check_BT(inputs_T[None], labels_T[None])[0] == WRONG:
        problem = "the solution does not solve the puzzle"
        raise PuzzleError(problem, "wrong-solution", "correct or remove it")
    return Labelled(name=question.identifier or "", inputs_T=inputs_T, labels_T=labels_T)


def _wrong_keys() -> PuzzleError:
    return PuzzleError("the value is not an object with puzzle and solution", "wrong-keys", FORM)


def _ids_of(names: list[str], identifiers: list[str]) -> NDArray[np.int32]:
    """The puzzle id of each name; 0 for the empty name."""
    id_of = {"": 0}
    for number, name in enumerate(identifiers, start=1):
        id_of[name] = number
    return np.array([id_of[name] for name in names], dtype=np.int32)


def _layout(ids_N: NDArray[np.int32], num_puzzle_ids: int) -> datasets.Layout:
    """Neighbors with one id are one puzzle. Each example with id 0 is a puzzle of its own."""
    is_new_N = (ids_N[1:] != ids_N[:-1]) | (ids_N[1:] == 0)
    starts = np.flatnonzero(np.append(True, is_new_N))
    return datasets.Layout(
        puzzle_ids=ids_N[starts],
        puzzle_offsets=np.append(starts, len(ids_N)),
        group_offsets=np.arange(len(starts) + 1),
        num_puzzle_ids=num_puzzle_ids,
    )
