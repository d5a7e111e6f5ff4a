"""The whole run of `hrm-solve`, once somebody who solves is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from hrm_edge_runtime.http.schema import SolveAnswer
from hrm_edge_runtime.solve import reading
from hrm_edge_runtime.solve.boards import board
from hrm_edge_runtime.solve.ledger import Ledger, continued
from hrm_edge_runtime.solve.progress import shown
from hrm_edge_runtime.solve.reading import Entry, SolvingError
from hrm_edge_runtime.solve.running import Options, solve_in_order
from hrm_edge_runtime.solve.solvers import Outcome, Solver
from hrm_edge_runtime.solve.tally import Tally, json_line, record_of, summary, text_line

ALL_SOLVED, NOT_ALL_SOLVED = 0, 1


@dataclass(frozen=True, kw_only=True)
class Printer:
    """Where outcomes go without an output file: standard output, as boards on a terminal where there is one puzzle."""

    solver: Solver
    as_json: bool
    as_board: bool

    def show(self, entry: Entry, outcome: Outcome) -> None:
        picture = self._picture(entry, outcome) if self.as_board and not self.as_json else None
        if picture is not None and isinstance(outcome, SolveAnswer):
            console = Console()
            console.print(picture)
            console.print(summary(outcome), highlight=False, markup=False)
        else:
            print(json_line(outcome) if self.as_json else text_line(outcome), flush=True)

    def _picture(self, entry: Entry, outcome: Outcome) -> object | None:
        puzzle = self.solver.puzzles.get(outcome.model) if isinstance(outcome, SolveAnswer) else None
        if puzzle is None or not isinstance(outcome, SolveAnswer):
            return None
        return board(puzzle, entry.puzzle, outcome.solution)


def run(argument: str, solver: Solver, options: Options, *, out: Path | None, as_json: bool) -> int:
    """Solve what an argument names; the exit status."""
    many = reading.is_many(argument)
    with reading.opened(argument, solver.shortest) as entries:
        if out is not None:
            with continued(out) as ledger:
                tally = _into_ledger(ledger, solver, entries, options, _total(argument, solver))
        else:
            printer = Printer(solver=solver, as_json=as_json, as_board=not many and Console().is_terminal)
            tally = _to_output(printer, entries, options, _total(argument, solver))
    if not tally.num_puzzles:
        raise SolvingError(f"{argument!r} holds no puzzle: write one in each line.")
    if out is not None and as_json:
        print(tally.as_json())
    elif many or out is not None:
        print(tally.text(), file=sys.stderr)
    return ALL_SOLVED if tally.solved == tally.num_puzzles else NOT_ALL_SOLVED


def _into_ledger(
    ledger: Ledger, solver: Solver, entries: Iterator[Entry], options: Options, total: int | None
) -> Tally:
    tally = Tally()
    if num_there := ledger.skip_answered(entries, tally):
        print(f"{num_there} puzzles are answered there already", file=sys.stderr)
    with shown(tally, total, Console(stderr=True)) as tell:
        for entry, outcome in solve_in_order(solver, entries, options):
            record = record_of(entry, outcome)
            ledger.write(record)
            tally.add(record)
            tell()
    return tally


def _to_output(printer: Printer, entries: Iterator[Entry], options: Options, total: int | None) -> Tally:
    tally = Tally()
    console = Console(stderr=True, quiet=total == 1 or sys.stdout.isatty())  # a bar would run through the answers
    with shown(tally, total, console) as tell:
        for entry, outcome in solve_in_order(printer.solver, entries, options):
            printer.show(entry, outcome)
            tally.add(record_of(entry, outcome))
            tell()
    return tally


def _total(argument: str, solver: Solver) -> int | None:
    """How many puzzles there are; None where only reading them all would tell."""
    if argument == "-":
        return None
    with reading.opened(argument, solver.shortest) as entries:
        return sum(1 for _ in entries)
