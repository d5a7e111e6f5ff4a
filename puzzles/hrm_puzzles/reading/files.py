"""The puzzles of a file, whatever it holds: text in UTF-8 or UTF-16, or arrays."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hrm_host.reading import lines_of
from hrm_puzzles.puzzle import Puzzle
from hrm_puzzles.reading.arrays import is_array, records_of_arrays
from hrm_puzzles.reading.record import Record
from hrm_puzzles.reading.records import records_in
from hrm_puzzles.reading.text import encoding_of

MAX_LINE = 1 << 24  # characters; a list of all requests can be one line
NUM_HEAD = 8  # bytes that tell what a file is


def records_at(
    path: Path, puzzles: Sequence[Puzzle], columns: str | None = None
) -> Iterator[Record]:
    """The puzzles of a file, read lazily. `records.records_in` describes the arguments."""
    with path.open("rb") as stream:
        head = stream.read(NUM_HEAD)
    if is_array(head):
        yield from records_of_arrays(path, puzzles)
        return
    with path.open(encoding=encoding_of(head), newline="") as stream:
        lines = lines_of(stream, MAX_LINE)
        yield from records_in(lines, puzzles, name=str(path), columns=columns)
