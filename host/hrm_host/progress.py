"""How far a long command is: a bar for each stage on a terminal, plain lines in a pipe, on standard error.

with stages_on() as stages:
    stages.show("puzzles", done, total, "12 solved")
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

OnProgress = Callable[[int, int], None]
"""Called with how many are done and how many there are in all; `partial(stages.show, "puzzles")` is one."""


def unheard(_done: int, _total: int) -> None:
    """The `OnProgress` of a caller that shows nothing."""


@dataclass
class _Stage:
    """When and where a stage began, when its next line is due, and its bar."""

    began_s: float
    begun_with: int
    next_line_s: float
    task: TaskID | None = None


@dataclass(eq=False, kw_only=True)
class Stages:
    """Shows stages by their name (nothing without a `console`); in a pipe by lines, the first after `first_line_s`."""

    console: Console | None = None
    bars: Progress | None = None
    first_line_s: float = 5.0
    line_every_s: float = 10.0
    _stages: dict[str, _Stage] = field(default_factory=dict[str, _Stage])

    def show(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """`done` of `total` (None where the number is unknown); `note` is what else there is to say now."""
        if self.console is None:
            return
        now_s = time.monotonic()
        if stage not in self._stages:
            self._stages[stage] = _Stage(now_s, done, next_line_s=now_s + self.first_line_s)
        shown = self._stages[stage]
        if self.bars is not None:
            if shown.task is None:
                shown.task = self.bars.add_task(stage, total=total, completed=done, note=note)
            self.bars.update(shown.task, completed=done, total=total, note=note)
            return
        elapsed_s, left = now_s - shown.began_s, ""
        if total is not None and done >= total:
            del self._stages[stage]
            if elapsed_s >= self.first_line_s:
                _print(self.console, f"{stage}: {total} done in {elapsed_s:.0f} s", note)
        elif now_s >= shown.next_line_s:
            shown.next_line_s = now_s + self.line_every_s
            if total is not None and done > shown.begun_with:
                left = f"{duration((total - done) * elapsed_s / (done - shown.begun_with))} left"
            _print(
                self.console,
                f"{stage}: {done}{'' if total is None else f' of {total}'}",
                note,
                left,
            )

    def say(self, text: str) -> None:
        """A line of its own, above the bars."""
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
    """Stages that show on this console (by default on standard error) as its kind allows."""
    console = console or Console(stderr=True)
    if not console.is_terminal or console.quiet:
        yield Stages(console=console, first_line_s=first_line_s, line_every_s=line_every_s)
        return
    name, note = (
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[note]}", markup=False),
    )
    columns = (name, BarColumn(), MofNCompleteColumn(), note, TimeRemainingColumn())
    # rich would send what the command itself prints to this console, and lose it where the console is quiet
    bars = Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
    )
    with bars:
        yield Stages(console=console, bars=bars)


def _print(console: Console, *parts: str) -> None:
    console.print(", ".join(filter(None, parts)), markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """In the unit that a person would use."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
