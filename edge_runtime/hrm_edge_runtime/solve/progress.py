"""How far a run is: a bar on a terminal, a line now and then in a pipe, both on standard error."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hrm_edge_runtime.solve.tally import Tally

LINE_EVERY_S = 10.0

Tell = Callable[[], None]


@contextlib.contextmanager
def shown(tally: Tally, total: int | None, console: Console, *, line_every_s: float = LINE_EVERY_S) -> Generator[Tell]:
    """Something to call after each puzzle; the tally says what to show."""
    if console.is_terminal:
        with _bar(tally, total, console) as tell:
            yield tell
    else:
        yield _lines(tally, total, console, line_every_s)


@contextlib.contextmanager
def _bar(tally: Tally, total: int | None, console: Console) -> Generator[Tell]:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total, completed=tally.num_puzzles)
        yield lambda: progress.update(task, completed=tally.num_puzzles, description=_said(tally))


def _lines(tally: Tally, total: int | None, console: Console, every_s: float) -> Tell:
    began_s, begun_with = time.monotonic(), tally.num_puzzles
    told_s = began_s

    def tell() -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= every_s:
            told_s = now_s
            rate = (tally.num_puzzles - begun_with) / (now_s - began_s)
            of = "" if total is None else f" of {total}"
            left = "" if total is None else f", {(total - tally.num_puzzles) / rate:.0f} s left"
            line = f"{tally.num_puzzles}{of}: {_said(tally)}, {rate:.1f} puzzles/s{left}"
            console.print(line, highlight=False, soft_wrap=True)

    return tell


def _said(tally: Tally) -> str:
    refused = f", {tally.refused.total()} refused" if tally.refused else ""
    return f"{tally.solved} solved{refused}"
