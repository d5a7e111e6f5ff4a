"""The run of `hrm-solve`, and where replies go: a terminal, standard output, or a file that can be continued."""

import contextlib
import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hrm_edge_runtime.api.schema import ErrorDetail, SolveAnswer
from hrm_edge_runtime.batching.stats import Status
from hrm_edge_runtime.solve import solvers
from hrm_edge_runtime.solve.solvers import (
    Entry,
    Options,
    OutOfReachError,
    Reply,
    Solver,
    SolvingError,
    solve_in_order,
)
from hrm_host import system
from hrm_host.progress import stages_on
from hrm_host.text import printable, printable_lines
from hrm_puzzles.puzzle import Coloured, Grid, Puzzle, PuzzleError
from hrm_puzzles.sudoku.sudoku import Sudoku

BEGINNING = b'{"number": '  # of every line of an output file
SYNC_EVERY_S = 1.0  # what a power failure may take; a killed process loses nothing that was written

GIVEN, FOUND = "bold", "cyan"
VERDICTS: dict[Status, str] = {
    "proven": "solved, proven right",
    "halted": "the model's word, no proof exists",
    "unfinished": "not solved",
}

Record = Mapping[str, Any]


def run(argument: str, solver: Solver, options: Options, *, out: Path | None, as_json: bool) -> int:
    """Solve the puzzles that an argument names; returns the exit status: 0 where all are solved, else 1."""
    many, tally, total = solvers.is_many(argument), Tally(), None
    if argument != "-":  # of standard input only reading it all would tell
        with solvers.opened(argument, solver.shortest) as entries:
            total = sum(1 for _ in entries)
    with solvers.opened(argument, solver.shortest) as entries, contextlib.ExitStack() as stack:
        file = stack.enter_context(continued(out)) if out else None
        if file and (num_there := file.skip_answered(entries, tally)):
            print(f"{num_there} puzzles are answered there already", file=sys.stderr)
        # on a terminal progress would run through the answers
        quiet = file is None and (total == 1 or sys.stdout.isatty())
        stages = stack.enter_context(stages_on(Console(stderr=True, quiet=quiet)))
        for entry, unlabelled in solve_in_order(solver, entries, options):
            reply = judged(solver, entry, unlabelled)
            record = record_of(entry, reply)
            if file is None:
                _print(solver, entry, reply, as_json=as_json, as_board=not many and Console().is_terminal)
            else:
                file.write(record)
            tally.add(record)
            stages.show("puzzles", tally.num_puzzles, total, tally.note())
    if not tally.num_puzzles:
        raise SolvingError(f"{argument!r} holds no puzzle: write one in each line.")
    if out is not None and as_json:
        print(tally.as_json())
    elif many or out is not None:
        print(tally.text(), file=sys.stderr)
    return int(tally.counts["solved"] < tally.num_puzzles)


def judged(solver: Solver, entry: Entry, reply: Reply) -> Reply:
    """The reply, solved where the answer is what the caller's own label says."""
    if isinstance(reply, SolveAnswer) and entry.known is not None and (puzzle := solver.puzzles.get(reply.model)):
        with contextlib.suppress(PuzzleError):  # a label that is no board says nothing
            found = solvers.answered(puzzle, entry.puzzle, reply.solution)
            known = solvers.answered(puzzle, entry.puzzle, entry.known)
            return reply.model_copy(update={"solved": reply.solved or np.array_equal(found, known)})
    return reply


def _print(solver: Solver, entry: Entry, reply: Reply, *, as_json: bool, as_board: bool) -> None:
    """The solution alone, or a remark that begins with # where there is none; as JSON all that a server would say."""
    if as_json:
        said = reply.model_dump(mode="json")
        line = json.dumps({"error": said} if isinstance(reply, ErrorDetail) else said)
    elif isinstance(reply, ErrorDetail):
        line = printable(f"# refused: {reply.message}; {reply.remedy}.")
    elif (
        as_board
        and reply.model in solver.puzzles
        and (picture := board(solver.puzzles[reply.model], entry.puzzle, reply.solution))
    ):
        Console().print(picture)
        Console().print(summary(reply), highlight=False, markup=False)
        return
    elif reply.status == "unfinished" and not reply.solved:
        line = f"# {summary(reply)}"
    else:
        solution = reply.solution
        line = printable_lines(solution) if isinstance(solution, str) else json.dumps(solution)
    print(line, flush=True)


def record_of(entry: Entry, reply: Reply) -> Record:
    """A line of an output file: which puzzle, and its `answer` or `error`, as in a line of /solve/batch."""
    kind = "answer" if isinstance(reply, SolveAnswer) else "error"
    return {"number": entry.number, "puzzle": entry.puzzle, kind: reply.model_dump(mode="json")}


def summary(answer: SolveAnswer) -> str:
    verdict = VERDICTS[answer.status]
    if answer.vote_share is not None and answer.attempts > 1:
        verdict += f", {100 * answer.vote_share:.0f} % of the votes"
    if answer.solved and answer.status != "proven":
        verdict += ", right by its label"
    plural = "" if answer.segments == 1 else "s"
    cost = f"{answer.segments} segment{plural}, {answer.compute_ms:.0f} ms, margin {answer.margin:.2f}"
    if answer.how == "hypotheses":
        cost = f"with hypotheses, {cost}"
    if answer.attempts > 1:
        cost = f"{answer.attempts} attempts with {answer.total_segments} segments, {cost}"
    return printable(f"{verdict}: {cost}, {answer.model}")


@dataclass(kw_only=True)
class Tally:
    """Counts over records: those solved, those of each status, and those refused by reason."""

    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(("solved", *VERDICTS), 0)))
    total_segments: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])

    def add(self, record: Record) -> None:
        if (answer := record.get("answer")) is None:
            self.refused[record["error"]["reason"]] += 1
            return
        self.counts.update({"solved": answer["solved"], answer["status"]: 1})
        self.total_segments += answer["total_segments"]

    @property
    def num_puzzles(self) -> int:
        return self.num_answered + self.refused.total()

    @property
    def num_answered(self) -> int:
        return sum(self.counts[status] for status in VERDICTS)

    @property
    def mean_segments(self) -> float:
        return self.total_segments / max(1, self.num_answered)

    def note(self) -> str:
        return f"{self.counts['solved']} solved" + (f", {self.refused.total()} refused" if self.refused else "")

    def text(self) -> str:
        said = [f"{self.counts[status]} {status}" for status in VERDICTS if self.counts[status]]
        if by_label := self.counts["solved"] - self.counts["proven"]:
            said.append(f"{by_label} right by their labels")
        if self.refused:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.refused.most_common())
            said.append(f"{self.refused.total()} refused ({reasons})")
        return printable(f"{self.num_puzzles} puzzles: {', '.join(said)}; {self.mean_segments:.1f} segments on average")

    def as_json(self) -> str:
        sums = {"puzzles": self.num_puzzles, **self.counts, "refused": self.refused}
        return json.dumps({**sums, "mean_segments": self.mean_segments})


@contextlib.contextmanager
def continued(path: Path) -> Generator["OutputFile"]:
    """Open or make an output file; refuses one that another run is writing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | system.BINARY, 0o644)
    except OSError as error:
        raise OutOfReachError(f"{path} cannot be opened ({error}): name a file that can be written.") from error
    try:
        if not system.try_lock(descriptor):
            raise OutOfReachError(f"{path} is being written by another run: wait for it, or name another file.")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # reading /dev/full, for one, never ends
            raise OutOfReachError(f"{path} is a device or a pipe, which cannot be continued: name a plain file.")
        file = OutputFile(path, descriptor)
        yield file
        file.sync()
    finally:
        os.close(descriptor)


class OutputFile:
    """One line for each puzzle, in their order, each written by one system call; opened by `continued`.

    Whatever stops the writer, the file holds whole lines 1 to n and at most one torn line after them, which is cut off
    when the file is opened again. Only a tail that this class can have begun is ever cut off.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._synced_s = time.monotonic()

    def skip_answered(self, entries: Iterator[Entry], tally: Tally) -> int:
        """Take the puzzles off `entries` whose answers are here, and count them; refuses answers to other puzzles."""
        num_kept = 0
        with self._path.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    if not line.startswith(BEGINNING[: len(line)]):
                        raise self._foreign("its last line")
                    os.ftruncate(self._descriptor, num_kept)
                    break
                self._count(line, number, next(entries, None), tally)
                num_kept += len(line)
        return tally.num_puzzles

    def write(self, record: Record) -> None:
        line = json.dumps(record).encode("ascii") + b"\n"
        try:
            if os.write(self._descriptor, line) < len(line):
                raise OSError("the disk is full")
            if time.monotonic() - self._synced_s > SYNC_EVERY_S:
                self.sync()
        except OSError as error:
            remedy = "make room and run the same command again to continue"
            raise OutOfReachError(f"{self._path} cannot be written ({error}): {remedy}.") from error

    def sync(self) -> None:
        os.fsync(self._descriptor)
        self._synced_s = time.monotonic()

    def _count(self, line: bytes, number: int, entry: Entry | None, tally: Tally) -> None:
        try:
            record = json.loads(line)
            is_own = record["number"] == number and ("answer" in record) != ("error" in record)
            if is_own and entry is not None and record["puzzle"] == entry.puzzle:
                return tally.add(record)
        except (ValueError, KeyError, TypeError):
            pass
        raise self._foreign(f"its line {number}")

    def _foreign(self, what: str) -> SolvingError:
        return SolvingError(
            f"{self._path} cannot be continued, for {what} is no answer to that puzzle of these: "
            "name another file, or give the puzzles it was begun with."
        )


def board(puzzle: Puzzle, question: object, solution: object) -> RenderableType | None:
    """A picture for a terminal, what was found unlike what was given; None for an answer that is no board."""
    try:
        asked = puzzle.parse(question).grid
        found = solvers.answered(puzzle, question, solution)
    except PuzzleError:
        return None
    if isinstance(puzzle, Sudoku):
        return _sudoku_board(puzzle, asked, found)
    if isinstance(puzzle, Coloured):
        return _coloured_board(puzzle, puzzle.palette, asked, found)
    return Text(puzzle.render(found, asked))


def _sudoku_board(puzzle: Sudoku, asked: Grid, answered: Grid) -> Text:
    side, rows, cols = len(asked), puzzle.box_rows, puzzle.box_cols
    bar = ["─" * (2 * cols + 1)] * (side // cols)
    edges = {0: "┌┬┐", side: "└┴┘"}
    text = Text()
    for row in range(side + 1):
        if row % rows == 0:
            left, middle, right = edges.get(row, "├┼┤")
            text.append(f"{left}{middle.join(bar)}{right}\n", style="dim")
        if row < side:
            for col, (given, found) in enumerate(zip(asked[row].tolist(), answered[row].tolist(), strict=True)):
                text.append("│ " if col % cols == 0 else "", style="dim")
                text.append(f"{found or '.'} ", style=GIVEN if given else FOUND)
            text.append("│\n", style="dim")
    text.rstrip()
    return text


def _coloured_board(puzzle: Puzzle, palette: Mapping[int, str], asked: Grid, answered: Grid) -> RenderableType:
    """Cells in the puzzle's colours; for puzzles without proof the question is beside its answer."""
    if not puzzle.proof_exists:
        pair = Table.grid(padding=(0, 3))
        signed = [(grid, [[f"{value} " for value in row] for row in grid.tolist()]) for grid in (asked, answered)]
        pair.add_row(*(_cells(palette, grid, signs) for grid, signs in signed))
        return pair
    # the letters of the puzzle's own text board, two to a cell, without its frame
    lines = puzzle.render(answered, asked).splitlines()[1:-1]
    signs = [[line[at : at + 2] for at in range(1, len(line) - 1, 2)] for line in lines]
    return _cells(palette, answered, signs)


def _cells(palette: Mapping[int, str], grid: Grid, signs: list[list[str]]) -> Text:
    """Dark letters on light colours, light ones on dark; a block, which shows without colours too, in its own."""
    lines: list[Text] = []
    for values, row in zip(grid.tolist(), signs, strict=True):
        line = Text()
        for value, sign in zip(values, row, strict=True):
            colour = palette.get(value, "#ffffff")
            red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
            ink = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 128 else "white"
            line.append(sign, style=f"{colour if '█' in sign else ink} on {colour}")
        lines.append(line)
    return Text("\n").join(lines)
