"""The run of `hrm-solve`: replies go to a terminal, a pipe, or a file that can continue."""

import contextlib
import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError
from rich.console import Console

from hrm_edge import puzzles
from hrm_edge.puzzles import Entry, OutOfReachError, SolvingError
from hrm_edge.solvers import Options, Reply, Solver, grids_of, solve_in_order
from hrm_edge_runtime.api.schema import ErrorDetail, SolveAnswer
from hrm_edge_runtime.batching.stats import Status
from hrm_host import system
from hrm_host.progress import stages_on
from hrm_host.reading import counted, printable, printable_lines
from hrm_puzzles.puzzle import PuzzleError

BEGINNING = b'{"number": '  # keys of every line of an output file
SYNC_EVERY_S = 1.0  # a power failure may lose this much; a killed process loses nothing

VERDICTS: dict[Status, str] = {
    "proven": "solved, proven to keep every rule",
    "halted": "the model's word, no proof exists",
    "unfinished": "not solved",
}


class OutputLine(BaseModel):
    """A line of an output file: a puzzle, and `answer` or `error` as in /solve/batch."""

    number: int
    puzzle: Any
    answer: SolveAnswer | None = None
    error: ErrorDetail | None = None


def run(
    argument: str,
    solver: Solver,
    fields: Options,
    *,
    columns: str | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> int:
    """Solve the puzzles of an argument; returns the exit status, 0 if all are solved, else 1."""
    tally = Tally(solver)
    is_many = puzzles.is_many(argument)
    read = partial(puzzles.entries_of, argument, list(solver.puzzles.values()), columns)
    total = None  # standard input can be read only once
    if argument != "-":
        total = sum(1 for _ in read())
    entries = read()
    with contextlib.ExitStack() as stack:
        if out is None:
            as_board = not is_many and sys.stdout.isatty()
            write = partial(_print, solver, as_json=as_json, as_board=as_board)
            # on a terminal, progress would mix with the answers
            console = Console(stderr=True, quiet=total == 1 or sys.stdout.isatty())
        else:
            file = stack.enter_context(continued(out))
            file.skip_answered(entries, tally)
            write = file.write
            console = Console(stderr=True)
        stages = stack.enter_context(stages_on(console))
        for entry, reply in solve_in_order(solver, entries, fields):
            write(entry, reply)
            tally.add(entry, reply)
            stages.show("puzzles", tally.num_puzzles, total, f"{tally.num_right} solved")
    if not tally.num_puzzles:
        raise SolvingError(f"{argument!r} holds no puzzle: write one per line.")
    if out is not None and as_json:
        print(tally.as_json())
    elif out is not None or is_many:
        print(tally.text(), file=sys.stderr)
    if tally.num_right == tally.num_puzzles:
        return 0
    return 1


def is_right_by_label(solver: Solver, entry: Entry, reply: Reply) -> bool:
    """Whether an answer without a proof equals the entry's known solution."""
    if isinstance(reply, ErrorDetail) or reply.status == "proven":
        return False
    if entry.known is None or reply.model not in solver.puzzles:
        return False
    puzzle = solver.puzzles[reply.model]
    try:
        _, _, found = grids_of(puzzle, entry.puzzle, reply.solution)
        _, _, known = grids_of(puzzle, entry.puzzle, entry.known)
    except PuzzleError:  # a label that is not a board decides nothing
        return False
    return np.array_equal(found, known)


def _print(solver: Solver, entry: Entry, reply: Reply, *, as_json: bool, as_board: bool) -> None:
    """Print JSON, a board, or a line."""
    if as_json:
        fields = reply.model_dump(mode="json")
        if isinstance(reply, ErrorDetail):
            fields = {"error": fields}
        print(json.dumps(fields), flush=True)
        return
    picture = None
    if as_board:
        picture = board(solver, entry, reply)
    print(picture or line_of(solver, entry, reply), flush=True)


def board(solver: Solver, entry: Entry, reply: Reply) -> str | None:
    """The answer on the puzzle's text board; without proofs, the question's board is above it.

    None for a refusal, and for an answer that is not a board.
    """
    if isinstance(reply, ErrorDetail) or reply.model not in solver.puzzles:
        return None
    try:
        puzzle, question, answer = grids_of(
            solver.puzzles[reply.model], entry.puzzle, reply.solution
        )
    except PuzzleError:
        return None
    pictures = [puzzle.render(answer, question)]
    if not puzzle.proof_exists:
        pictures.insert(0, f"{puzzle.render(question)}\n")
    return "\n".join([*pictures, summary(solver, entry, reply)])


def line_of(solver: Solver, entry: Entry, reply: Reply) -> str:
    """The solution alone, or a comment that begins with # if there is none."""
    if isinstance(reply, ErrorDetail):
        return printable(f"# refused: {reply.message}; {reply.remedy}.")
    if reply.status == "unfinished" and not is_right_by_label(solver, entry, reply):
        return f"# {summary(solver, entry, reply)}"
    if isinstance(reply.solution, str):
        return printable_lines(reply.solution)
    return json.dumps(reply.solution)


def summary(solver: Solver, entry: Entry, answer: SolveAnswer) -> str:
    """Verdict, cost and model of an answer in one line."""
    parts = [VERDICTS[answer.status]]
    if answer.vote_share is not None and answer.attempts > 1:
        parts.append(f"{100 * answer.vote_share:.0f} % of the votes")
    if is_right_by_label(solver, entry, answer):
        parts.append("right by its label")
    verdict = ", ".join(parts)
    return printable(f"{verdict}: {_cost(answer)}, {answer.model}")


def _cost(answer: SolveAnswer) -> str:
    parts: list[str] = []
    if answer.attempts > 1:
        segments = counted(answer.total_segments, "segment")
        parts.append(f"{answer.attempts} attempts with {segments}")
    if answer.how == "hypotheses":
        parts.append("with hypotheses")
    parts.append(counted(answer.segments, "segment"))
    parts.append(f"{answer.compute_ms:.0f} ms")
    parts.append(f"margin {answer.margin:.2f}")
    return ", ".join(parts)


@dataclass
class Tally:
    """Counts of replies: by status, right by their labels, and refused by reason."""

    solver: Solver
    num_puzzles: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    total_segments: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])

    @property
    def num_right(self) -> int:
        return self.counts["proven"] + self.counts["right_by_label"]

    def add(self, entry: Entry, reply: Reply) -> None:
        self.num_puzzles += 1
        if isinstance(reply, ErrorDetail):
            self.refused[reply.reason] += 1
            return
        self.counts[reply.status] += 1
        self.counts["right_by_label"] += is_right_by_label(self.solver, entry, reply)
        self.total_segments += reply.total_segments

    @property
    def mean_segments(self) -> float:
        num_answered = self.num_puzzles - self.refused.total()
        return self.total_segments / max(1, num_answered)

    def text(self) -> str:
        parts = [f"{self.counts[status]} {status}" for status in VERDICTS if self.counts[status]]
        num_by_label = self.counts["right_by_label"]
        if num_by_label:
            parts.append(f"{num_by_label} right by their labels")
        if self.refused:
            reasons = [f"{count} {reason}" for reason, count in self.refused.most_common()]
            parts.append(f"{self.refused.total()} refused ({', '.join(reasons)})")
        found = ", ".join(parts)
        mean = f"{self.mean_segments:.1f} segments on average"
        return printable(f"{counted(self.num_puzzles, 'puzzle')}: {found}; {mean}")

    def as_json(self) -> str:
        fields = {
            "puzzles": self.num_puzzles,
            **{name: self.counts[name] for name in (*VERDICTS, "right_by_label")},
            "refused": self.refused,
            "mean_segments": self.mean_segments,
        }
        return json.dumps(fields)


@contextlib.contextmanager
def continued(path: Path) -> Generator["OutputFile"]:
    """Open or create an output file; raises OutOfReachError if another run writes it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | system.BINARY
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        remedy = "name a writable file"
        raise OutOfReachError(f"{path} cannot be opened ({error}): {remedy}.") from error
    try:
        if not system.try_lock(descriptor):
            remedy = "wait for it, or name another file"
            raise OutOfReachError(f"another run is writing {path}: {remedy}.")
        # reading /dev/full, for example, never ends
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OutOfReachError(f"{path} is a device or a pipe: name a plain file.")
        file = OutputFile(path, descriptor)
        yield file
        file.sync()
    finally:
        os.close(descriptor)


class OutputFile:
    """One line per puzzle in order, each written by one system call; opened by `continued`.

    Whatever stops the writer, the file holds complete lines 1 to n and at most one torn line.
    Opening the file again removes the torn line, but only one that this class may have written.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._synced_s = time.monotonic()

    def skip_answered(self, entries: Iterator[Entry], tally: Tally) -> None:
        """Take answered puzzles off `entries`, count them in `tally`, and print their number.

        Raises SolvingError if the file answers other puzzles.
        """
        num_bytes = 0
        with self._path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    self._cut_torn_line(line, num_bytes)
                    break
                entry = next(entries, None)
                if entry is None:
                    raise self._foreign(f"its line {number}")
                tally.add(entry, self._reply_in(line, number, entry))
                num_bytes += len(line)
        if tally.num_puzzles:
            answered = counted(tally.num_puzzles, "puzzle")
            print(f"{self._path} already answers {answered}", file=sys.stderr)

    def write(self, entry: Entry, reply: Reply) -> None:
        kind = "answer" if isinstance(reply, SolveAnswer) else "error"
        fields = reply.model_dump(mode="json")
        record = {"number": entry.number, "puzzle": entry.puzzle, kind: fields}
        line = json.dumps(record).encode("ascii") + b"\n"
        try:
            num_written = os.write(self._descriptor, line)
            if num_written < len(line):
                raise OSError("the disk is full")
            if time.monotonic() - self._synced_s > SYNC_EVERY_S:
                self.sync()
        except OSError as error:
            remedy = "make room and run the same command again to continue"
            raise OutOfReachError(f"{self._path} cannot be written ({error}): {remedy}.") from error

    def sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_s = time.monotonic()

    def _cut_torn_line(self, line: bytes, num_bytes_before: int) -> None:
        if not line.startswith(BEGINNING[: len(line)]):
            raise self._foreign("its last line")
        os.ftruncate(self._descriptor, num_bytes_before)

    def _reply_in(self, line: bytes, number: int, entry: Entry) -> Reply:
        try:
            record = OutputLine.model_validate_json(line)
        except ValidationError:
            raise self._foreign(f"its line {number}") from None
        reply = record.answer or record.error
        is_own = (record.number, record.puzzle) == (number, entry.puzzle)
        if reply is None or not is_own:
            raise self._foreign(f"its line {number}")
        return reply

    def _foreign(self, part: str) -> SolvingError:
        return SolvingError(
            f"{self._path} cannot be continued, because {part} does not answer the puzzle of that "
            "number: name another file, or pass the puzzles that the file began with."
        )
