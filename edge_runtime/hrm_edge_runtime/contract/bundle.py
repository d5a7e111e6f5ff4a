"""The artifact an edge machine opens: a directory with a manifest, step graphs, a puzzle table and golden traces.

Shapes: B puzzles, S segments, T tokens, V vocabulary, E puzzle-vector size. Opening verifies everything and runs
nothing: no pickle, no link, no path out of the directory (nor from inside a graph), every file with the size and hash
the manifest states.
"""

import contextlib
import math
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal, cast
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.contract.manifest import (
    BundleError,
    FileEntry,
    Manifest,
    read_manifest,
    sha256_of,
)
from hrm_host.reading import json_from, text_of
from hrm_host.text import is_printable, printable
from hrm_puzzles import registry
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, NamedVariants, Puzzle, PuzzleError

PUZZLE_TABLE_NAME = "puzzle_table.npy"
IDENTIFIERS_NAME = "identifiers.json"
GOLDEN_NAME = "golden.npz"
MAX_NAME = 200  # characters: each name takes the room of the longest
MAX_ARRAY_BYTES = 1 << 29  # the logits of fifty 30 x 30 boards over 16 segments take 35 MB
TASKS_NAME = "tasks.json"
"""What tasks with names ask for (ARC): {name: {"train": [{"input": rows, "output": rows}, ...], "test": [...]}}."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Golden:
    """What PyTorch said about B puzzles after each of S segments, every puzzle run through all of them."""

    tokens_BT: NDArray[np.int32]
    puzzle_ids_B: NDArray[np.int32]
    labels_BT: NDArray[np.int32]
    answer_SBT: NDArray[np.int32]
    halt_margin_SB: NDArray[np.float32]
    q_halt_SB: NDArray[np.float32]
    logits_SBTV: NDArray[np.float32]


class Identifiers:
    """The names of the puzzle table's rows, found both ways; 730,000 of them are one array and not a string each."""

    def __init__(self, names: Sequence[str]) -> None:
        encoded = [name.encode() for name in names]
        self._names_N = np.array(encoded, f"S{max(map(len, encoded)) + 1}")  # one more byte, for `rows_beginning`
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
        rows = self._order_N[self._place(name.encode()) :][:1].tolist()
        return rows[0] if rows and self[rows[0]] == name else None

    def rows_beginning(self, start: str) -> list[int]:
        first = start.encode()
        rows_N = self._order_N[self._place(first) : self._place(first + b"\xff")]  # no byte of UTF-8
        return sorted(rows_N.tolist())

    def _place(self, name: bytes) -> int:
        """Of the first name that is not before this one, of which as much counts as there is room for."""
        cut = np.array(name, self._names_N.dtype)
        return int(np.searchsorted(self._names_N, cut, side="left", sorter=self._order_N))


@dataclass(frozen=True, kw_only=True, eq=False)
class Bundle:
    """An opened bundle; `puzzle_table` [num_puzzle_ids, E] stays on disk and is mapped; `identifiers` name its rows."""

    path: Path
    manifest: Manifest
    puzzle: Puzzle
    puzzle_table: NDArray[np.float32]
    identifiers: Identifiers

    @classmethod
    def open(cls, path: Path | str) -> "Bundle":
        """Verify a bundle directory and open it; raises BundleError for everything design 3.6 refuses."""
        path = Path(path)
        if not path.is_dir():
            raise BundleError(f"{path} is no bundle directory: give the directory that hrm-export wrote.")
        manifest = read_manifest(path)
        for name in (*manifest.graphs, PUZZLE_TABLE_NAME, IDENTIFIERS_NAME):
            if name not in manifest.files:
                raise BundleError(f"the manifest of {path} does not list {name}: export the bundle again.")
        for name, entry in manifest.files.items():
            _verify(path / name, entry)
        for file in (path / name for name in manifest.graphs):
            # ONNX Runtime 1.23 follows the name of a weights file out of the bundle (1.31 does not). Protobuf keeps a
            # string in one piece, so a graph without the key's bytes names none.
            with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
                if content.find(b"location") >= 0:
                    raise BundleError(f"{file} keeps weights in another file: export it again with its weights inside.")
        return cls(
            path=path,
            manifest=manifest,
            puzzle=_puzzle(manifest),
            puzzle_table=_puzzle_table(path / PUZZLE_TABLE_NAME, manifest),
            identifiers=_identifiers(path / IDENTIFIERS_NAME, manifest),
        )

    def tasks(self) -> list[str]:
        """The tasks that the model knows by name (ARC), each of them once however many variants there are."""
        puzzle, file = self.puzzle, self.path / TASKS_NAME
        if not isinstance(puzzle, NamedVariants):
            return []
        if TASKS_NAME not in self.manifest.files:  # as in older bundles: seconds where there are many
            names = (puzzle.variant_of(self.identifiers[row])[0] for row in range(len(self.identifiers)))
            return [name for name in dict.fromkeys(names) if name != BLANK_IDENTIFIER]
        if not isinstance(tasks := _json(file), dict):
            raise BundleError(f"{file} is no object with a key for each task: export the bundle again.")
        names = list(cast("dict[str, object]", tasks))
        _require_legible(file, names)
        return names

    def graph_path(self, precision: str, *, device: Literal["any", "cpu"] = "any") -> Path:
        """The step graph of a precision, in its CPU form where asked for; raises BundleError for one not held."""
        if precision not in self.manifest.precisions:
            held = ", ".join(self.manifest.precisions)
            raise BundleError(f"{self.path} holds no {precision!r} graph: choose one of {held}.")
        portable = self.manifest.precisions[precision]
        return self.path / (self.manifest.cpu_graphs.get(precision, portable) if device == "cpu" else portable)

    def unrolled_path(self, precision: str) -> Path:
        """The whole loop of a precision in one graph; raises BundleError for one not held."""
        if precision not in self.manifest.unrolled:
            raise BundleError(
                f"{self.path} holds no unrolled {precision!r} graph but those of {sorted(self.manifest.unrolled)}: "
                "export the bundle again with --loop unrolled."
            )
        return self.path / self.manifest.unrolled[precision]

    def golden(self) -> Golden:
        """Read the golden traces; raises BundleError where they are missing or do not fit the manifest."""
        if GOLDEN_NAME not in self.manifest.files:
            raise BundleError(f"{self.path} holds no {GOLDEN_NAME}: export the bundle again with golden traces.")
        with self._golden_arrays() as arrays:
            return _golden(arrays, self.manifest)

    def golden_example(self) -> tuple[object, object] | None:
        """A golden puzzle (where proofs exist, the first that PyTorch solved) and its answer; None without traces."""
        if GOLDEN_NAME not in self.manifest.files:
            return None
        with self._golden_arrays() as arrays:
            is_solved_B = (arrays["answer_SBT"] == arrays["labels_BT"]).all(-1).any(0)
            row = int(is_solved_B.argmax()) if self.puzzle.proof_exists else 0
            tokens = (arrays[name][row].astype(np.int32) for name in ("tokens_BT", "labels_BT"))
            name = self.identifiers[arrays["puzzle_ids_B"][row].astype(int)]
            question, answer = (self.puzzle.asked(self.puzzle.decode(tokens_T), name) for tokens_T in tokens)
            return question, answer

    @contextlib.contextmanager
    def _golden_arrays(self) -> Generator[Mapping[str, NDArray[np.generic]]]:
        """The arrays by name; each is read only when it is indexed."""
        try:
            with np.load(self.path / GOLDEN_NAME, allow_pickle=False) as arrays:
                _check_sizes(arrays.zip)
                yield arrays
        except (KeyError, IndexError, ValueError, OSError, EOFError, BadZipFile) as error:
            raise BundleError(f"the golden traces of {self.path} do not read ({error}): export it again.") from error


def user_cache() -> Path:
    """What this user's programs made or measured on this machine.

    Plans and step times are kept here and never in a bundle, which may come from a stranger.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hrm-edge"


def _verify(file: Path, entry: FileEntry) -> None:
    if file.is_symlink() or not file.is_file():
        raise BundleError(f"{file} is missing or no plain file: copy the bundle again, whole and without links.")
    if (size := file.stat().st_size) != entry.size_bytes:
        raise BundleError(f"{file} has {size} bytes where the manifest says {entry.size_bytes}: copy the bundle again.")
    if sha256_of(file) != entry.sha256:
        raise BundleError(f"{file} does not have the SHA-256 the manifest states: copy the bundle again.")


def _puzzle(manifest: Manifest) -> Puzzle:
    try:
        puzzle = registry.get(manifest.puzzle)
    except PuzzleError as error:
        raise BundleError(f"the bundle {manifest.name!r} is for a puzzle that is not installed: {error}") from error
    if (puzzle.seq_len, puzzle.vocab_size) != (manifest.seq_len, manifest.vocab_size):
        raise BundleError(
            f"the bundle {manifest.name!r} has {manifest.seq_len} tokens of {manifest.vocab_size} kinds where the "
            f"puzzle {puzzle.name!r} has {puzzle.seq_len} of {puzzle.vocab_size}: export it again with this version."
        )
    return puzzle


def _puzzle_table(file: Path, manifest: Manifest) -> NDArray[np.float32]:
    expected = (manifest.num_puzzle_ids, manifest.puzzle_vector_size)
    try:
        table = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BundleError(f"{file} does not read as an array ({error}): export the bundle again.") from error
    if table.shape != expected or table.dtype != np.float32:
        raise BundleError(
            f"{file} holds {table.dtype} {table.shape} where the manifest says float32 {expected}: export it again."
        )
    return table


def _json(file: Path) -> Any:
    try:
        return json_from(text_of(file))
    except ValueError as error:
        raise BundleError(f"{file} is no JSON ({error}): export the bundle again.") from error


def _identifiers(file: Path, manifest: Manifest) -> Identifiers:
    names = _json(file)
    is_list = isinstance(names, list) and len(names) == manifest.num_puzzle_ids
    if is_list and all(isinstance(name, str) and len(name) <= MAX_NAME for name in names):
        _require_legible(file, names)
        identifiers = Identifiers(names)
        if identifiers.are_different:
            return identifiers
    raise BundleError(
        f"{file} is no list of {manifest.num_puzzle_ids} different names of at most {MAX_NAME} characters, one for "
        "each row of the puzzle table: export it again."
    )


def _require_legible(file: Path, names: Sequence[str]) -> None:
    evil = next((name for name in names if not is_printable(name)), None)
    if evil is not None:
        raise BundleError(f"{file}: '{printable(evil)}' holds control or direction characters: export it again.")


def _check_sizes(archive: ZipFile) -> None:
    """Before anything is unpacked: little data may pretend to be much, or unpack to much."""
    for info in archive.infolist():
        with archive.open(info) as stream:
            if np.lib.format.read_magic(stream) != (1, 0):
                raise ValueError(f"{info.filename} is no array of version 1.0")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        if (size_bytes := math.prod(shape) * dtype.itemsize) > min(info.file_size, MAX_ARRAY_BYTES):
            raise ValueError(f"{info.filename} says it holds {size_bytes} bytes")


def _golden(arrays: Mapping[str, NDArray[np.generic]], manifest: Manifest) -> Golden:
    num_puzzles, num_segments = len(arrays["tokens_BT"]), len(arrays["answer_SBT"])
    if not 1 <= num_segments <= manifest.max_segments:
        raise ValueError(f"they cover {num_segments} segments where 1 to {manifest.max_segments} are due")
    sizes = {"S": num_segments, "B": num_puzzles, "T": manifest.seq_len, "V": manifest.vocab_size}

    def read(name: str, dtype: type[Any]) -> NDArray[Any]:
        if arrays[name].shape != (shape := tuple(sizes[axis] for axis in name.rpartition("_")[2])):
            raise ValueError(f"{name} has shape {arrays[name].shape} where {shape} is due")
        return arrays[name].astype(dtype)

    whole = {name: read(name, np.int32) for name in ("tokens_BT", "puzzle_ids_B", "labels_BT", "answer_SBT")}
    return Golden(**whole, **{name: read(name, np.float32) for name in ("halt_margin_SB", "q_halt_SB", "logits_SBTV")})
