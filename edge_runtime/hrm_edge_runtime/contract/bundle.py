"""The artifact that an edge machine opens: manifest, step graphs, puzzle table and golden traces.

Shapes: B puzzles, S segments, T tokens, V vocabulary, E puzzle-vector size. Opening verifies
everything and runs nothing: no pickle, no link, no path that leads out of the directory or out of a
graph, and every file has the size and hash in the manifest.
"""

import contextlib
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.contract.manifest import BundleError, FileEntry, Manifest, read_manifest
from hrm_edge_runtime.contract.operators import check_operators
from hrm_host.atomic import sha256_of
from hrm_host.reading import is_printable, json_from, object_of, printable, text_of
from hrm_puzzles import registry
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, Puzzle, PuzzleError, Voting

PUZZLE_TABLE_NAME = "puzzle_table.npy"
IDENTIFIERS_NAME = "identifiers.json"
GOLDEN_NAME = "golden.npz"
MAX_NAME = 200  # characters; every name takes the space of the longest one
MAX_ARRAY_BYTES = 1 << 29  # the logits of fifty 30 x 30 boards over 16 segments take 35 MB
TASKS_NAME = "tasks.json"
"""Tasks by name (ARC): {name: {"train": [{"input": rows, "output": rows}, ...], "test": [...]}}.

The tasks of `held_out_tasks` in the manifest come first.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Golden:
    """PyTorch's outputs for B puzzles after each of S segments; no puzzle halts early."""

    tokens_BT: NDArray[np.int32]
    puzzle_ids_B: NDArray[np.int32]
    labels_BT: NDArray[np.int32]
    answer_SBT: NDArray[np.int32]
    halt_margin_SB: NDArray[np.float32]
    q_halt_SB: NDArray[np.float32]
    logits_SBTV: NDArray[np.float32]


class Identifiers:
    """Names of the puzzle table's rows, in both directions; one array holds 730,000 of them."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode() for name in names]
        num_bytes = max(map(len, encoded)) + 1  # one extra byte for `rows_beginning`
        self._names_N = np.array(encoded, f"S{num_bytes}")
        self._order_N = np.argsort(self._names_N).astype(np.int32)

    def __len__(self) -> int:
        return len(self._names_N)

    def __getitem__(self, row: int) -> str:
        return self._names_N[row].decode()

    @property
    def are_different(self) -> bool:
        sorted_N = self._names_N[self._order_N]
        return bool((sorted_N[1:] != sorted_N[:-1]).all())

    def row_of(self, name: str) -> int | None:
        place = self._place(name.encode())
        if place == len(self):
            return None
        row = int(self._order_N[place])
        if self[row] == name:
            return row
        return None

    def rows_beginning(self, start: str) -> list[int]:
        first = start.encode()
        last = first + b"\xff"  # a byte that UTF-8 never uses
        rows_N = self._order_N[self._place(first) : self._place(last)]
        return sorted(rows_N.tolist())

    def _place(self, name: bytes) -> int:
        """Position of the first name that does not sort before `name`, cut to the array's width."""
        cut = np.array(name, self._names_N.dtype)
        return int(np.searchsorted(self._names_N, cut, side="left", sorter=self._order_N))


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """An opened bundle; `puzzle_table` [num_puzzle_ids, E] is mapped, not read."""

    path: Path
    manifest: Manifest
    puzzle: Puzzle
    puzzle_table: NDArray[np.float32]
    identifiers: Identifiers

    @classmethod
    def open(cls, path: Path | str) -> "Bundle":
        """Verify a bundle directory and open it; raises BundleError."""
        path = Path(path)
        if not path.is_dir():
            remedy = "give the directory that hrm-export wrote"
            raise BundleError(f"{path} is not a bundle directory: {remedy}.")
        manifest = read_manifest(path)
        for name in (*manifest.graphs, PUZZLE_TABLE_NAME, IDENTIFIERS_NAME):
            if name not in manifest.files:
                problem = f"the manifest of {path} does not list {name}"
                raise BundleError(f"{problem}: export the bundle again.")
        for name, entry in manifest.files.items():
            _verify(path / name, entry)
        for name in manifest.graphs:
            check_operators(path / name)
        return cls(
            path=path,
            manifest=manifest,
            puzzle=puzzle_of(manifest),
            puzzle_table=_puzzle_table(path / PUZZLE_TABLE_NAME, manifest),
            identifiers=_identifiers(path / IDENTIFIERS_NAME, manifest),
        )

    def tasks(self) -> list[str]:
        """The tasks that the model knows by name (ARC), without their variants."""
        if not isinstance(self.puzzle, Voting):
            return []
        if TASKS_NAME not in self.manifest.files:
            return self._tasks_of_identifiers(self.puzzle)
        names = list(self._tasks_of_file())
        _require_legible(self.path / TASKS_NAME, names)
        return names

    def _tasks_of_file(self) -> dict[str, Any]:
        file = self.path / TASKS_NAME
        try:
            return object_of(file)
        except ValueError as error:
            problem = f"{file} is not an object with a key for each task ({error})"
            raise BundleError(f"{problem}: export the bundle again.") from error

    def _tasks_of_identifiers(self, puzzle: Voting) -> list[str]:
        """The tasks of an older bundle without a list; takes seconds for many variants."""
        names: dict[str, None] = {}
        for row in range(len(self.identifiers)):
            name, *_ = puzzle.variant_of(self.identifiers[row])
            names[name] = None
        names.pop(BLANK_IDENTIFIER, None)
        return list(names)

    def graph_path(self, precision: str, *, device: Literal["any", "cpu"] = "any") -> Path:
        """The step graph of a precision, in its CPU form if it has one; raises BundleError."""
        if precision not in self.manifest.precisions:
            held = ", ".join(self.manifest.precisions)
            raise BundleError(f"{self.path} holds no {precision!r} graph: choose one of {held}.")
        name = self.manifest.precisions[precision]
        if device == "cpu":
            name = self.manifest.cpu_graphs.get(precision, name)
        return self.path / name

    def unrolled_path(self, precision: str) -> Path:
        """The graph of a precision's whole loop; raises BundleError if there is none."""
        if precision not in self.manifest.unrolled:
            held = f"but those of {sorted(self.manifest.unrolled)}"
            problem = f"{self.path} holds no unrolled {precision!r} graph {held}"
            remedy = "export the bundle again with --loop unrolled"
            raise BundleError(f"{problem}: {remedy}.")
        return self.path / self.manifest.unrolled[precision]

    def golden(self) -> Golden:
        """Read the golden traces; raises BundleError if they are missing or do not fit."""
        if GOLDEN_NAME not in self.manifest.files:
            remedy = "export the bundle again with golden traces"
            raise BundleError(f"{self.path} holds no {GOLDEN_NAME}: {remedy}.")
        with self._golden_arrays() as arrays:
            return _golden(arrays, self.manifest)

    def example(self) -> tuple[object, object] | None:
        """A puzzle that the model never saw, and its answer; None if the bundle holds none.

        It is a question that the model answers right if the manifest names such a task, otherwise a
        golden puzzle.
        """
        results = self.manifest.held_out_tasks
        has_tasks = TASKS_NAME in self.manifest.files
        if results is None or not results.right or not has_tasks:
            return self.golden_example()
        name = results.right[0]
        try:
            pair = self._tasks_of_file()[name]["test"][0]
            question = {"task": name, "input": pair["input"]}
            answer = {"task": name, "input": pair["output"]}
            for grid in (question, answer):
                self.puzzle.parse(grid)
        except (KeyError, TypeError, IndexError, PuzzleError) as error:
            problem = f"{self.path / TASKS_NAME} lacks a held-out pair of the task {name!r}"
            raise BundleError(f"{problem} ({error}): export the bundle again.") from error
        return question, answer

    def golden_example(self) -> tuple[object, object] | None:
        """A golden puzzle and its answer; None without traces.

        For puzzles with proofs it is the first that PyTorch solved.
        """
        if GOLDEN_NAME not in self.manifest.files:
            return None
        with self._golden_arrays() as arrays:
            row = 0
            if self.puzzle.proof_exists:
                is_solved_SB = (arrays["answer_SBT"] == arrays["labels_BT"]).all(-1)
                row = int(is_solved_SB.any(0).argmax())
            name = self.identifiers[arrays["puzzle_ids_B"][row].astype(int)]
            question = self._written(arrays["tokens_BT"][row], name)
            answer = self._written(arrays["labels_BT"][row], name)
            return question, answer

    def _written(self, tokens_T: NDArray[np.generic], name: str) -> object:
        """Write tokens in the puzzle's notation."""
        grid = self.puzzle.decode(tokens_T.astype(np.int32))
        return self.puzzle.asked(grid, name)

    @contextlib.contextmanager
    def _golden_arrays(self) -> Generator[Mapping[str, NDArray[np.generic]]]:
        """The golden arrays by name; each is read when it is indexed."""
        try:
            with ZipFile(self.path / GOLDEN_NAME) as archive:
                _check_sizes(archive)
            with np.load(self.path / GOLDEN_NAME, allow_pickle=False) as arrays:
                yield arrays
        except (KeyError, IndexError, ValueError, OSError, EOFError, BadZipFile) as error:
            problem = f"the golden traces of {self.path} cannot be read ({error})"
            raise BundleError(f"{problem}: export it again.") from error


def _verify(file: Path, entry: FileEntry) -> None:
    if file.is_symlink() or not file.is_file():
        remedy = "copy the bundle again, complete and without links"
        raise BundleError(f"{file} is missing or not a plain file: {remedy}.")
    size_bytes = file.stat().st_size
    if size_bytes != entry.size_bytes:
        problem = f"{file} has {size_bytes} bytes instead of {entry.size_bytes}"
        raise BundleError(f"{problem}: copy the bundle again.")
    if sha256_of(file) != entry.sha256:
        problem = f"{file} does not have the SHA-256 in the manifest"
        raise BundleError(f"{problem}: copy the bundle again.")


def puzzle_of(manifest: Manifest) -> Puzzle:
    """The installed puzzle of a bundle; raises BundleError if it is missing or does not fit."""
    try:
        puzzle = registry.get(manifest.puzzle)
    except PuzzleError as error:
        problem = f"the bundle {manifest.name!r} is for a puzzle that is not installed"
        raise BundleError(f"{problem}: {error}") from error
    if (puzzle.seq_len, puzzle.vocab_size) != (manifest.seq_len, manifest.vocab_size):
        raise BundleError(
            f"the bundle {manifest.name!r} has {manifest.seq_len} tokens of {manifest.vocab_size} "
            f"kinds, but the puzzle {puzzle.name!r} has {puzzle.seq_len} of {puzzle.vocab_size}: "
            "export it again with this version."
        )
    return puzzle


def _puzzle_table(file: Path, manifest: Manifest) -> NDArray[np.float32]:
    expected = (manifest.num_puzzle_ids, manifest.puzzle_vector_size)
    try:
        table = np.lib.format.open_memmap(file, mode="r")
    except (ValueError, OSError, EOFError) as error:
        problem = f"{file} is not an array ({error})"
        raise BundleError(f"{problem}: export the bundle again.") from error
    if table.shape != expected or table.dtype != np.float32:
        found = f"{file} holds {table.dtype} {table.shape} instead of float32 {expected}"
        raise BundleError(f"{found}: export it again.")
    return table


def _identifiers(file: Path, manifest: Manifest) -> Identifiers:
    try:
        names = json_from(text_of(file))
    except ValueError as error:
        raise BundleError(f"{file} is not JSON ({error}): export the bundle again.") from error
    is_list = isinstance(names, list) and len(names) == manifest.num_puzzle_ids
    if is_list and all(isinstance(name, str) and len(name) <= MAX_NAME for name in names):
        _require_legible(file, names)
        identifiers = Identifiers(names)
        if identifiers.are_different:
            return identifiers
    names_due = f"{manifest.num_puzzle_ids} different names of at most {MAX_NAME} characters"
    problem = f"{file} is not a list of {names_due}, one per row of the puzzle table"
    raise BundleError(f"{problem}: export it again.")


def _require_legible(file: Path, names: Sequence[str]) -> None:
    for name in names:
        if not is_printable(name):
            problem = f"'{printable(name)}' holds control or direction characters"
            raise BundleError(f"{file}: {problem}: export it again.")


def _check_sizes(archive: ZipFile) -> None:
    """Reject arrays that unpack to much more than they state, before anything is unpacked."""
    for info in archive.infolist():
        with archive.open(info) as stream:
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError(f"{info.filename} is not an array of version 1.0")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        size_bytes = math.prod(shape) * dtype.itemsize
        if size_bytes > min(info.file_size, MAX_ARRAY_BYTES):
            raise ValueError(f"{info.filename} states {size_bytes} bytes")


def _golden(arrays: Mapping[str, NDArray[np.generic]], manifest: Manifest) -> Golden:
    num_puzzles = len(arrays["tokens_BT"])
    num_segments = len(arrays["answer_SBT"])
    if not 1 <= num_segments <= manifest.max_segments:
        expected = f"1 to {manifest.max_segments}"
        raise ValueError(f"they cover {num_segments} segments instead of {expected}")
    sizes = {
        "S": num_segments,
        "B": num_puzzles,
        "T": manifest.seq_len,
        "V": manifest.vocab_size,
    }

    def read(name: str, dtype: type[Any]) -> NDArray[Any]:
        """Read an array. The suffix of its name is its shape."""
        _, _, axes = name.rpartition("_")
        shape = tuple(sizes[axis] for axis in axes)
        array = arrays[name]
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape} instead of {shape}")
        return array.astype(dtype)

    def numbers(name: str, bound: int) -> NDArray[np.int32]:
        """Read an array of numbers from 0 to below `bound`."""
        array = read(name, np.int32)
        if not array.size or array.min() < 0 or array.max() >= bound:
            raise ValueError(f"{name} is empty or not from 0 to {bound - 1}")
        return array

    return Golden(
        tokens_BT=numbers("tokens_BT", manifest.vocab_size),
        puzzle_ids_B=numbers("puzzle_ids_B", manifest.num_puzzle_ids),
        labels_BT=read("labels_BT", np.int32),
        answer_SBT=read("answer_SBT", np.int32),
        halt_margin_SB=read("halt_margin_SB", np.float32),
        q_halt_SB=read("q_halt_SB", np.float32),
        logits_SBTV=read("logits_SBTV", np.float32),
    )
