"""The puzzles of a file: a table, JSON in any layout, boards as text, or NumPy arrays.

Text holds a board in each line, or boards over several lines with blank lines or headings between
them. A line is a remark only if it cannot be a row of a board. Lines count from 1.
"""

import functools
import itertools
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hrm_host.reading import MAX_FILE_BYTES, encoding_of, lines_of, plain_file
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Puzzle
from hrm_puzzles.reading.legend import Lettered
from hrm_puzzles.reading.record import (
    ANSWER_KEYS,
    GRID_KEYS,
    MAX_TRIED,
    QUESTION_KEYS,
    PuzzleRecord,
    error_at_place,
    is_board,
    is_json,
    records_of_lines,
    records_of_text,
)
from hrm_puzzles.reading.tables import SEPARATORS, columns_error, table_reader
from hrm_puzzles.reading.text import ANSWER_HEADING, is_heading, plain

MAX_LINE = 1 << 24  # characters; a list of all requests can be one line
HEAD_LINES = 100  # a puzzle over several lines has fewer
REMARKS = ("#", "//", ";", "%", "sep=")  # the last is Excel's, before a table
REMARK_WORDS = re.compile(r"[^\W\d_]{2,}|(?<=^\W )\d+$")
ANSWER_LABEL = re.compile(r"^\s*(solution|answer)\s*[:=]\s*", re.IGNORECASE)
MAX_LINES = 1 << 22  # lines of JSON that is read at once
MAX_FILE = 1 << 28  # its characters
NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK\x03\x04"
ARRAYS = (
    "write integers, or floats with NaN for a blank, as one board, [N, R, C] or [N, T]; in .npz "
    "name the arrays puzzles and solutions"
)

Array = NDArray[Any]


def records_at(
    path: Path, puzzles: Sequence[Puzzle], columns: str | None = None
) -> Iterator[PuzzleRecord]:
    """The puzzles of a file of text or arrays, read lazily. See `records_in`."""
    with plain_file(path).open("rb") as stream:
        head = stream.read(8)
    if head.startswith((NPY_MAGIC, ZIP_MAGIC)):
        yield from _records_of_arrays(path, puzzles)
        return
    with path.open(encoding=encoding_of(head), newline="") as stream:
        lines = lines_of(stream, MAX_LINE)
        yield from records_in(lines, puzzles, name=str(path), columns=columns)


def records_in(
    lines: Iterable[str],
    puzzles: Sequence[Puzzle],
    *,
    name: str,
    columns: str | None = None,
) -> Iterator[PuzzleRecord]:
    """The puzzles in some lines, read lazily except for JSON over several lines.

    `puzzles` are the kinds that the lines may hold, `name` is the name of the file. `columns` are
    the names or the numbers of the columns of a table. Raises DatasetError for lines that cannot be
    read at all.
    """
    rest = map(plain, readable(name, lines))
    head = list(itertools.islice(rest, HEAD_LINES))
    num_remarks = 0
    while num_remarks < len(head) and _is_ignored(head[num_remarks], puzzles):
        head[num_remarks] = "\n"  # lines keep their numbers
        num_remarks += 1
    body = head[num_remarks:]
    first = next(iter(body), "")
    if first.lstrip().startswith("<"):
        problem = "the file is XML or HTML"
        raise error_at_place(name, "line 1", problem, "write the boards in it as lines of text")
    every_line = itertools.chain(head, rest)
    if columns is None and first.lstrip().startswith(("[", "{")):
        # Each line may be the list of a row, and the lines together a board.
        if is_json(first) and _is_one_board(body, puzzles):
            yield from _boards_in(every_line, body, puzzles)
        elif is_json(first):
            yield from records_of_lines(every_line, puzzles, name)
        else:
            yield from _json_or_boards(every_line, puzzles, name)
        return
    table = None
    if columns is not None or not _is_one_board(body, puzzles):
        table = table_reader(head, puzzles, name, columns)
    if table is not None:
        yield from table.records(every_line)
        return
    _require_boards(body, puzzles, name)
    yield from _boards_in(every_line, body, puzzles)


def readable(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines. Raises DatasetError for a line that is too long or not text."""
    remedy = "write one puzzle in each line, in UTF-8, and unpack archives"
    number = 1
    try:
        for line in lines:
            if "\0" in line:
                raise ValueError("it holds zero bytes")
            yield line
            number += 1
    except ValueError as error:
        raise error_at_place(name, f"line {number}", str(error), remedy) from error


def _json_or_boards(
    lines: Iterable[str], puzzles: Sequence[Puzzle], name: str
) -> Iterator[PuzzleRecord]:
    """JSON over several lines; boards as text if the lines are not JSON, as a printed array."""
    text = "".join(itertools.islice(lines, MAX_LINES))
    if next(iter(lines), None) is not None or len(text) > MAX_FILE:
        problem = f"JSON over more than {MAX_LINES} lines or {MAX_FILE} characters"
        raise error_at_place(name, "line 1", problem, "write one JSON object in each line")
    records = records_of_text(text, puzzles, name)
    if records is not None:
        yield from records
        return
    again = text.splitlines(keepends=True)
    yield from _boards_in(again, again[:HEAD_LINES], puzzles)


def _require_boards(head: Sequence[str], puzzles: Sequence[Puzzle], name: str) -> None:
    """Raise DatasetError for what looks like a table without a column of puzzles."""
    block = _first_block(head, puzzles)
    texts = ("".join(head), "".join(block), *block[:1])
    error = columns_error(name, head)
    if error is not None and not any(is_board(puzzles, text) for text in texts):
        raise error


def _boards_in(
    lines: Iterable[str], head: Sequence[str], puzzles: Sequence[Puzzle]
) -> Iterator[PuzzleRecord]:
    """One board, one board per line, or boards with blank lines, headings or remarks between them.

    An answer with its heading belongs to the question before it.
    """
    if _is_one_board(head, puzzles):
        yield PuzzleRecord(place=f"line {len(head)}", question="".join(head).rstrip("\r\n"))
        return
    last: PuzzleRecord | None = None
    for is_answer, record in _labeled_boards(lines, head, puzzles):
        if is_answer and last is not None and last.answer is None:
            last = replace(last, answer=record.question)
            continue
        if last is not None:
            yield last
        last = record
    if last is not None:
        yield last


def _labeled_boards(
    lines: Iterable[str], head: Sequence[str], puzzles: Sequence[Puzzle]
) -> Iterator[tuple[bool, PuzzleRecord]]:
    """Each board, and whether a heading or a label calls it an answer."""
    has_board_per_line = _has_board_per_line(head, puzzles)
    for is_answer, block in _blocks(lines, puzzles):
        pieces = ([line] for line in block) if has_board_per_line else [list(block)]
        for piece in pieces:
            number, _ = piece[-1]
            text = "".join([line for _, line in piece]).rstrip("\r\n")
            board = ANSWER_LABEL.sub("", text)
            has_label = board != text
            yield is_answer or has_label, _record_of(f"line {number}", board, puzzles)


def _blocks(
    lines: Iterable[str], puzzles: Sequence[Puzzle]
) -> Iterator[tuple[bool, Iterator[tuple[int, str]]]]:
    """The numbered lines between those that part boards, and whether they are an answer."""

    def parts_boards(numbered: tuple[int, str]) -> bool:
        _, line = numbered
        return _is_ignored(line, puzzles) or is_heading(line)

    is_answer = False
    for parts, group in itertools.groupby(enumerate(lines, start=1), parts_boards):
        if parts:
            is_answer = any(ANSWER_HEADING.fullmatch(line) for _, line in group)
        else:
            yield is_answer, group


def _record_of(place: str, text: str, puzzles: Sequence[Puzzle]) -> PuzzleRecord:
    """A board, or a question and its answer with blanks between them."""
    words = text.split()
    if len(words) == 2:
        question, answer = words
        if any(len(question) == len(answer) == puzzle.seq_len for puzzle in puzzles):
            return PuzzleRecord(place=place, question=question, answer=answer)
    return PuzzleRecord(place=place, question=text)


def _is_one_board(head: Sequence[str], puzzles: Sequence[Puzzle]) -> bool:
    """Whether all lines are one board, which may have blank lines inside."""
    is_whole = 1 < len(head) < HEAD_LINES
    return is_whole and is_board(puzzles, "".join(head))


def _has_board_per_line(head: Sequence[str], puzzles: Sequence[Puzzle]) -> bool:
    block = _first_block(head, puzzles)
    if len(block) > 1 and is_board(puzzles, "".join(block)):
        return False
    if any(is_board(puzzles, line) for line in block[:MAX_TRIED]):
        return True
    longest = max((len(line.strip()) for line in block), default=0)
    shortest = min(puzzle.seq_len for puzzle in puzzles)
    return longest >= shortest or len(block) == HEAD_LINES


def _first_block(head: Sequence[str], puzzles: Sequence[Puzzle]) -> list[str]:
    """The first lines between those that part boards."""
    for _, block in _blocks(head, puzzles):
        return [line for _, line in block]
    return []


def _is_ignored(line: str, puzzles: Sequence[Puzzle]) -> bool:
    """Whether a line is blank, or a remark that cannot be a row of a board."""
    bare = line.strip()
    if not bare.startswith(REMARKS):
        return not bare
    return not any(_can_be_row(puzzle, bare) for puzzle in puzzles)


def _can_be_row(puzzle: Puzzle, line: str) -> bool:
    """Whether a line is a row, perhaps with a wrong mark: a remark has words or only a number."""
    marks = _row_marks(puzzle)
    if line[0] not in marks:
        return False
    return all(marks.issuperset(word) for word in REMARK_WORDS.findall(line))


@functools.cache
def _row_marks(puzzle: Puzzle) -> frozenset[str]:
    """The characters of a row; none if the puzzle has no letters."""
    if isinstance(puzzle, Lettered):
        return puzzle.legend.row_marks.union(SEPARATORS)
    return frozenset()


def _records_of_arrays(path: Path, puzzles: Sequence[Puzzle]) -> Iterator[PuzzleRecord]:
    """The boards of a NumPy file: one board, or boards along the first axis; perhaps answers.

    The sizes in the headers are checked before any memory is taken. Nothing is unpickled. Raises
    DatasetError for anything else.
    """
    try:
        arrays = _arrays_in(path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
        raise DatasetError(f"cannot read {path} ({error}); {ARRAYS}.") from error
    questions = _named(arrays, (*QUESTION_KEYS, *GRID_KEYS))
    answers = _named(arrays, ANSWER_KEYS)
    if questions is None and len(arrays) == 1:
        questions = next(iter(arrays.values()))
    if questions is None:
        raise DatasetError(f"{path} has the arrays {', '.join(arrays)[:80]}; {ARRAYS}.")
    if is_board(puzzles, values_of(questions)):
        questions = questions[None]
        answers = None if answers is None else answers[None]
    if answers is not None and len(answers) != len(questions):
        problem = f"{path} has {len(questions)} questions and {len(answers)} answers"
        raise DatasetError(f"{problem}; {ARRAYS}.")
    for number, question in enumerate(questions):
        answer = None if answers is None else values_of(answers[number])
        yield PuzzleRecord(place=f"board {number + 1}", question=values_of(question), answer=answer)


def _named(arrays: dict[str, Array], names: Sequence[str]) -> Array | None:
    return next((arrays[name] for name in names if name in arrays), None)


def values_of(array: Array) -> object:
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
        if not infos:
            raise ValueError("the archive holds no .npy file; unpack it, or save a workbook as CSV")
        if sum(info.file_size for info in infos) > MAX_FILE_BYTES:
            raise ValueError(f"its arrays have more than {MAX_FILE_BYTES} bytes")
        for info in infos:
            with archive.open(info) as member:
                name = info.filename.removesuffix(".npy").lower()
                arrays[name] = _array_in(member, info.file_size)
    return arrays


def _array_in(stream: IO[bytes], num_bytes: int) -> Array:
    """Read the only array of a file of `num_bytes`."""
    stream.seek(0)
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read_header = np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if dtype.kind not in "iufUS" or not 1 <= len(shape) <= 3:
        raise ValueError(f"an array has the type {dtype} and {len(shape)} axes")
    size = math.prod(shape) * dtype.itemsize
    rest = num_bytes - stream.tell()
    if size != rest or not 0 < size <= MAX_FILE_BYTES:
        raise ValueError(f"an array of shape {shape} has {size} bytes, but its file has {rest}")
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)
