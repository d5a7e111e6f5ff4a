"""How a run shows on the console: a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol

from rich.console import Console

from hrm_train.telemetry import Moment


class Display(Protocol):
    """Open while training runs."""

    def __enter__(self) -> Display: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def advance(self, samples: int) -> None: ...
    def show(self, moment: Moment) -> None: ...


def display_for(console: Console, total: int, done: int) -> Display:
    return Bar(console, total, done) if console.is_terminal else Lines(console, total)


def line(moment: Moment) -> str:
    """Speed, loss, exact share, wait for rows, the present limit on segments, and the GPU's load where it is known."""
    wait = 100 * moment.phase_ms.get("data", 0.0) / moment.step_ms if moment.step_ms else 0.0
    parts = [
        f"{moment.samples_per_s:.0f} samples/s",
        f"loss {moment.train['loss']:.3f}",
        f"exact {100 * moment.train['exact']:.0f} %",
        f"data wait {wait:.0f} %",
        f"at most {moment.train['max_segments']:.0f} segments",
    ]
    if moment.train.get("revealed"):
        parts.append(f"{moment.train['revealed']:.0f} cells revealed")
    if "gpu_utilisation_percent" in moment.system:
        parts.append(f"GPU {moment.system['gpu_utilisation_percent']:.0f} %")
    return ", ".join(parts)


class Bar:
    def __init__(self, console: Console, total: int, done: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), TextColumn("{task.percentage:.1f} %"), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[line]}"), console=console)
        self._task = self._progress.add_task("training", total=total, completed=done, line="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, samples: int) -> None:
        self._progress.update(self._task, completed=samples)

    def show(self, moment: Moment) -> None:
        self._progress.update(self._task, line=line(moment))


class Lines:
    """The first moment as a sign of life, then one line a minute."""

    EVERY_S = 60.0

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total, self._next_s = console, total, 0.0

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, samples: int) -> None:
        pass

    def show(self, moment: Moment) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self.EVERY_S
            self._console.print(f"{moment.samples} of {self._total} samples, {line(moment)}", soft_wrap=True)
