"""Progress of a long command on standard error: bars on a terminal, plain lines in a pipe.

with stages_on() as stages:
    stages.show("puzzles", done, total, "12 solved")
"""

import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

NAME_WIDTH = 28  # characters of a stage's name, at most
BAR_WIDTH = 20  # characters; the name, the bar, the count and the time fit into 80
REFRESHES_PER_S = 1  # few, because drawing takes time from the command

OnProgress = Callable[[int, int], None]
"""Called with the number done and the total; `partial(stages.show, "puzzles")` is one."""


def unheard(_done: int, _total: int) -> None:
    """The `OnProgress` of a caller that shows nothing."""


@dataclass
class _Stage:
    """Start time and count of a stage, when its next line is due, and its bar."""

    began_s: float
    begun_with: int
    next_line_s: float
    task: TaskID | None = None


@dataclass(eq=False, kw_only=True)
class Stages:
    """Shows stages by name, or nothing without a `console`.

    In a pipe the first line of a stage comes after `first_line_s`.
    """

    console: Console | None = None
    bars: Progress | None = None
    first_line_s: float = 5.0
    line_every_s: float = 10.0
    _stages: dict[str, _Stage] = field(default_factory=dict[str, _Stage])

    def show(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Show `done` of `total` (None if unknown) with a `note`."""
        if self.console is None:
            return
        now_s = time.monotonic()
        shown = self._stages.get(stage)
        if shown is None:
            shown = _Stage(now_s, done, next_line_s=now_s + self.first_line_s)
            self._stages[stage] = shown
        if self.bars is not None:
            if shown.task is None:
                shown.task = self.bars.add_task(stage, total=total, completed=done, note=note)
            self.bars.update(shown.task, completed=done, total=total, note=note)
        elif total is not None and done >= total:
            del self._stages[stage]
            elapsed_s = now_s - shown.began_s
            if elapsed_s >= self.first_line_s:
                _print(self.console, f"{stage}: {total} done in {elapsed_s:.0f} s", note)
        elif now_s >= shown.next_line_s:
            shown.next_line_s = now_s + self.line_every_s
            count = str(done)
            if total is not None:
                count = f"{done} of {total}"
            _print(self.console, f"{stage}: {count}", note, _time_left(shown, done, total, now_s))

    def say(self, text: str) -> None:
        """Print a line of its own, above the bars."""
        if self.console is not None:
            _print(self.console, text)

    def remove(self, stage: str) -> None:
        """Forget a stage and take its bar off the terminal."""
        removed = self._stages.pop(stage, None)
        if self.bars is not None and removed is not None and removed.task is not None:
            self.bars.remove_task(removed.task)


@contextmanager
def stages_on(
    console: Console | None = None, *, first_line_s: float = 5.0, line_every_s: float = 10.0
) -> Generator[Stages]:
    """Stages on this console, by default on standard error."""
    console = console or Console(stderr=True)
    if not console.is_terminal or console.quiet:
        yield Stages(console=console, first_line_s=first_line_s, line_every_s=line_every_s)
        return
    # At its first start matplotlib logs a note on its font cache, which would break a bar.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    whole = partial(Column, no_wrap=True)
    bars = Progress(
        TextColumn("{task.description}", markup=False, table_column=whole(max_width=NAME_WIDTH)),
        BarColumn(bar_width=BAR_WIDTH, table_column=whole()),
        MofNCompleteColumn(table_column=whole()),
        TimeRemainingColumn(table_column=whole()),
        # the note takes the width that remains, so a narrow terminal cuts it
        TextColumn(
            "{task.fields[note]}",
            markup=False,
            table_column=whole(ratio=1, overflow="ellipsis"),
        ),
        expand=True,
        refresh_per_second=REFRESHES_PER_S,
        console=console,
        transient=True,
        # otherwise rich sends the command's own output to this console
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bars:
        yield Stages(console=console, bars=bars)


def _time_left(stage: _Stage, done: int, total: int | None, now_s: float) -> str:
    num_new = done - stage.begun_with
    if total is None or num_new <= 0:
        return ""
    seconds = (total - done) * (now_s - stage.began_s) / num_new
    return f"{duration(seconds)} left"


def _print(console: Console, *parts: str) -> None:
    print_line(console, ", ".join(filter(None, parts)))


def print_line(console: Console, text: str) -> None:
    """Print a line; a terminal breaks it between words, a pipe gets it whole."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours, whichever is easiest to read."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
