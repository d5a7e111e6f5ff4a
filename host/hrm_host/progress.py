"""What a long command is at: a bar for each stage on a terminal, a line for each in a pipe."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import Progress, TaskID

LINE_AFTER_S = 5.0
"""A stage that takes less is not worth a line in a pipe."""


@dataclass(eq=False)
class Stages:
    """Hears how far each stage is; silent without a `bar` and a `console`."""

    bar: Progress | None = None
    console: Console | None = None
    _tasks: dict[str, TaskID] = field(default_factory=dict[str, TaskID])
    _started_s: dict[str, float] = field(default_factory=dict[str, float])

    def show(self, stage: str, done: int, total: int) -> None:
        if self.bar is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self.bar.add_task(stage)
            self.bar.update(self._tasks[stage], completed=done, total=total)
        elif self.console is not None:
            self._line(stage, done, total)

    def _line(self, stage: str, done: int, total: int) -> None:
        elapsed_s = time.monotonic() - self._started_s.setdefault(stage, time.monotonic())
        if done >= total and elapsed_s > LINE_AFTER_S and self.console is not None:
            self.console.print(f"{stage}: {total} done in {elapsed_s:.0f} s", highlight=False)
            del self._started_s[stage]


@contextmanager
def stages_on(console: Console) -> Generator[Stages]:
    """Stages that show on this console as its kind allows."""
    if not console.is_terminal:
        yield Stages(console=console)
        return
    with Progress(console=console, transient=True) as bar:
        yield Stages(bar=bar)
