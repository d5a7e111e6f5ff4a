"""The puzzles of a file: a table, JSON in any layout, or boards as text.

Text holds a board in each line, or boards over several lines with blank lines or headings between
them. A line is a remark only if it cannot be a row of a board. Lines count from 1.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hrm_host.reading import lines_of
from hrm_puzzles.data.datasets import DatasetError
from hrm_puzzles.puzzle import Puzzle
from hrm_puzzles.reading.arrays import is_array, records_of_arrays
from hrm_puzzles.reading.legend import Lettered
from hrm_puzzles.reading.objects import is_json, records_of_lines, records_of_text
from hrm_puzzles.reading.record import Record, error_at_place, is_board
from hrm_puzzles.reading.tables import columns_error, table_of
from hrm_puzzles.reading.text import encoding_of, is_heading, plain

NUM_HEAD = 8  # bytes that tell what a file is
MAX_LINE = 1 << 24  # characters; a list of all requests can be one line
HEAD_LINES = 100  # a puzzle over several lines has fewer
REMARKS = ("#", "//", ";", "%")
MAX_LINES = 1 << 22  # lines of JSON that is read at once
MAX_FILE = 1 << 28  # its characters
MAX_TRIED = 10  # lines that are tried as boards


def records_at(
    path: Path, puzzles: Sequence[Puzzle], columns: str | None = None
) -> Iterator[Record]:
    """The puzzles of a file of text or arrays, read lazily. See `records_in`."""
    with path.open("rb") as stream:
        head = stream.read(NUM_HEAD)
    if is_array(head):
        yield from records_of_arrays(path, puzzles)
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
) -> Iterator[Record]:
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
        table = table_of(head, puzzles, name, columns)
    if table is not None:
        yield from table.records(every_line)
        return
    _require_boards(body, puzzles, name)
    yield from _boards_in(every_line, body, puzzles)


def readable(name: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines. Raises DatasetError for a line that is too long or not text."""
    remedy = "write one puzzle in each line, in UTF-8"
    number = 0
    try:
        for line in lines:
            number += 1
            if "\0" in line:
                raise error_at_place(name, f"line {number}", "it holds zero bytes", remedy)
            yield line
    except DatasetError:
        raise
    except ValueError as error:
        raise error_at_place(name, f"line {number + 1}", str(error), remedy) from error


def _json_or_boards(lines: Iterable[str], puzzles: Sequence[Puzzle], name: str) -> Iterator[Record]:
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
    block = _first_block(head)
    texts = ("".join(head), "".join(block), *block[:1])
    error = columns_error(name, head)
    if error is not None and not any(is_board(puzzles, text) for text in texts):
        raise error


def _boards_in(
    lines: Iterable[str], head: Sequence[str], puzzles: Sequence[Puzzle]
) -> Iterator[Record]:
    """One board, one board per line, or boards with blank lines or headings between them."""
    if _is_one_board(head, puzzles):
        yield Record(place=f"line {len(head)}", question="".join(head).rstrip("\r\n"))
    elif _has_board_per_line(head, puzzles):
        for number, line in enumerate(lines, start=1):
            if not _is_ignored(line, puzzles):
                yield _record_of_line(f"line {number}", line.rstrip("\r\n"), puzzles)
    else:
        yield from _blocks(lines, puzzles)


def _record_of_line(place: str, line: str, puzzles: Sequence[Puzzle]) -> Record:
    """A board, or a question and its answer with blanks between them."""
    words = line.split()
    lengths = {puzzle.seq_len for puzzle in puzzles}
    if len(words) == 2 and len(words[0]) == len(words[1]) and len(words[0]) in lengths:
        return Record(place=place, question=words[0], answer=words[1])
    return Record(place=place, question=line)


def _is_one_board(head: Sequence[str], puzzles: Sequence[Puzzle]) -> bool:
    """Whether all lines are one board, which may have blank lines inside."""
    is_whole = 1 < len(head) < HEAD_LINES
    return is_whole and is_board(puzzles, "".join(head))


def _has_board_per_line(head: Sequence[str], puzzles: Sequence[Puzzle]) -> bool:
    block = _first_block(head)
    if len(block) > 1 and is_board(puzzles, "".join(block)):
        return False
    if any(is_board(puzzles, line) for line in block[:MAX_TRIED]):
        return True
    longest = max((len(line.strip()) for line in block), default=0)
    shortest = min(puzzle.seq_len for puzzle in puzzles)
    return longest >= shortest or len(block) == HEAD_LINES


def _first_block(head: Sequence[str]) -> list[str]:
    """The lines before the first blank line or heading, which is not the first line."""
    after = itertools.dropwhile(_parts_boards, head)
    return list(itertools.takewhile(lambda line: not _parts_boards(line), after))


def _blocks(lines: Iterable[str], puzzles: Sequence[Puzzle]) -> Iterator[Record]:
    """The boards between blank lines and headings, without remarks before and after a board."""
    numbered = enumerate(lines, start=1)
    for parts, group in itertools.groupby(numbered, key=lambda pair: _parts_boards(pair[1])):
        block = [] if parts else list(group)
        while block and _is_ignored(block[0][1], puzzles):
            block.pop(0)
        while block and _is_ignored(block[-1][1], puzzles):
            block.pop()
        if block:
            text = "".join(line for _, line in block)
            yield Record(place=f"line {block[-1][0]}", question=text.rstrip("\r\n"))


def _parts_boards(line: str) -> bool:
    return not line.strip() or is_heading(line)


def _is_ignored(line: str, puzzles: Sequence[Puzzle]) -> bool:
    """Whether a line is blank, or a remark that cannot be a row of a board."""
    bare = line.strip()
    if not bare.startswith(REMARKS):
        return not bare
    return not any(_can_be_row(puzzle, bare) for puzzle in puzzles)


def _can_be_row(puzzle: Puzzle, line: str) -> bool:
    if isinstance(puzzle, Lettered):
        return puzzle.legend.row_marks.issuperset(line)
    return not line.startswith("# ")
