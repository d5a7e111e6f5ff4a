"""Boards in NumPy files: one board, or boards along the first axis; in .npz also their answers.

The sizes in the headers are checked before any memory is taken. Nothing is unpickled.
Shapes: N boards, R rows, C columns, T = R * C cells.
"""

import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hrm_host.reading import MAX_FILE_BYTES
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Puzzle
from hrm_puzzles.reading.record import ANSWER_KEYS, GRID_KEYS, QUESTION_KEYS, Record, is_board

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
KINDS = "iufUS"  # integers, floats and texts
FORMS = (
    "write integers, or floats with NaN for a blank, as one board, [N, R, C] or [N, T]; in .npz "
    "name the arrays puzzles and solutions"
)

Array = NDArray[Any]


def is_array(head: bytes) -> bool:
    """Whether a file with these first bytes is a .npy or .npz file."""
    return head.startswith((NPY_MAGIC, ZIP_MAGIC))


def records_of_arrays(path: Path, puzzles: Sequence[Puzzle]) -> Iterator[Record]:
    """The boards of a file. Raises DatasetError for anything else."""
    try:
        arrays = _arrays_in(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
        raise DatasetError(f"cannot read {path} ({error}); {FORMS}.") from error
    questions = _named(arrays, (*QUESTION_KEYS, *GRID_KEYS))
    answers = _named(arrays, ANSWER_KEYS)
    if questions is None and len(arrays) == 1:
        questions = next(iter(arrays.values()))
    if questions is None:
        raise DatasetError(f"{path} has the arrays {', '.join(arrays)[:80]}; {FORMS}.")
    if is_board(puzzles, _board_of(questions)):
        questions = questions[None]
        answers = None if answers is None else answers[None]
    if answers is not None and len(answers) != len(questions):
        problem = f"{path} has {len(questions)} questions and {len(answers)} answers"
        raise DatasetError(f"{problem}; {FORMS}.")
    for number, question in enumerate(questions):
        answer = None if answers is None else _board_of(answers[number])
        yield Record(place=f"board {number + 1}", question=_board_of(question), answer=answer)


def _named(arrays: dict[str, Array], names: Sequence[str]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def _board_of(array: Array) -> object:
    """The values of a board: whole floats as they are, and None for NaN."""
    if array.dtype.kind == "S":
        return array.astype(str).tolist()
    if array.dtype.kind != "f":
        return array.tolist()
    values = array.astype(object)
    values[np.isnan(array)] = None
    return values.tolist()


def _arrays_in(path: Path) -> dict[str, Array]:
    with path.open("rb") as stream:
        if stream.read(len(NPY_MAGIC)) == NPY_MAGIC:
            return {path.stem: _array_in(stream, path.stat().st_size)}
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if sum(info.file_size for info in infos) > MAX_FILE_BYTES:
            raise ValueError(f"its arrays have more than {MAX_FILE_BYTES} bytes")
        for info in infos:
            with archive.open(info) as member:
                name = info.filename.removesuffix(".npy").lower()
                arrays[name] = _array_in(member, info.file_size)
    return arrays


def _array_in(stream: IO[bytes], num_bytes: int) -> Array:
    """Read an array that takes at most `num_bytes`, the size of its file."""
    stream.seek(0)
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read_header = np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.kind not in KINDS or not 1 <= len(shape) <= 3:
        raise ValueError(f"an array has the type {dtype} and {len(shape)} axes")
    size = math.prod(shape) * dtype.itemsize
    if not 0 < size <= min(num_bytes, MAX_FILE_BYTES):
        raise ValueError(f"an array of shape {shape} does not fit in {num_bytes} bytes")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)
