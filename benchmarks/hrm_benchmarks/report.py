"""What the benchmarks share: tables of figures, and contestants that take turns.

Each contestant runs in a process of its own, with its own allocator and caches. A row is a mapping
with the keys of `--json`.
Shapes: R rounds, C contestants.
"""

import contextlib
import json
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Annotated, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from typer import Option

from hrm_host import machine, system

LIBRARIES = ("numpy", "onnxruntime", "tensorrt", "torch")

Row = Mapping[str, Any]


class Table(NamedTuple):
    """The result of a command; `columns` maps each heading to a format of a row."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Row]
    legend: str

    def text(self) -> str:
        """Return the table as Markdown, with its title and legend."""
        lines = [list(self.columns), ["---"] * len(self.columns)]
        for row in self.rows:
            lines.append(self._cells(row))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = f"{self.title}\n\n"
        for line in lines:
            padded = map(str.ljust, line, widths)
            text += f"| {' | '.join(padded)} |\n"
        return f"{text}\n{self.legend}\n"

    def as_json(self, settings: Row) -> str:
        figures = {
            "title": self.title,
            "environment": environment(),
            "settings": settings,
            "rows": self.rows,
        }
        return json.dumps(figures, indent=2, default=str)

    def _cells(self, row: Row) -> list[str]:
        """Return the text of each column; a figure that is None becomes a dash."""
        cells: list[str] = []
        for form in self.columns.values():
            try:
                cells.append(form.format_map(row))
            except TypeError:  # the format of a number rejects None
                cells.append("-")
        return cells


def environment() -> dict[str, object]:
    """Return the machine, the libraries, and the load from other processes."""
    seen: dict[str, object] = {
        "machine": platform.machine(),
        "system": platform.platform(),
        "processor": machine.Host().cpu_model or platform.processor(),
        "cores": os.cpu_count(),
        "load_average": system.load_average(),
        "python": platform.python_version(),
    }
    for library in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            seen[library] = version(library)
    return seen


def medians_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the median of each figure of the rows; None stays None."""
    found = dict(rows[0])
    for name, figure in rows[0].items():
        if figure is not None:
            found[name] = median(row[name] for row in rows)
    return found


def tell(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def leaving_at_sigterm() -> Generator[None]:
    """Turn SIGTERM into SystemExit, so that it does not leave a server behind."""

    def leave(signal_number: int, _: object) -> NoReturn:
        sys.exit(128 + signal_number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Step = Callable[[], object]
Make = Callable[[], tuple[Any, Step]]
"""Called in a process of its own; returns a greeting and the step to time."""

RATIO = "{ratio:.2f} ({ratio_low:.2f} to {ratio_high:.2f})"

_steps: list[Step] = []  # holds one step in the process of a contestant


TurnRounds = Annotated[int, Option(min=1, help="Rounds; figures are medians.")]
TurnS = Annotated[float, Option(min=0, help="Seconds per contestant and round.")]
CpuClock = Annotated[
    bool, Option(help="Measure CPU time instead of wall time, for a busy machine.")
]


@dataclass(frozen=True, kw_only=True)
class TurnOptions:
    """How often the contestants take turns, and how long a turn lasts."""

    rounds: TurnRounds = 9
    turn_s: TurnS = 1.0
    cpu_clock: CpuClock = False

    @property
    def title(self) -> str:
        clock = "CPU" if self.cpu_clock else "wall"
        return f"{self.rounds} rounds, {clock} seconds"


def take_turns(
    contestants: Sequence[Make],
    options: TurnOptions,
    check_greetings: Callable[[list[Any]], object] = lambda _: None,
) -> NDArray[np.float64]:
    """Return the seconds of one step, [R, C].

    `check_greetings` sees all greetings first; if it raises, the contest ends.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        workers: list[ProcessPoolExecutor] = []
        for _ in contestants:
            worker = ProcessPoolExecutor(1, context)
            workers.append(stack.enter_context(worker))
        # All contestants prepare at the same time.
        pairs = zip(workers, contestants, strict=True)
        beginning = [worker.submit(_begin, make) for worker, make in pairs]
        check_greetings([future.result() for future in beginning])
        _turns(workers, 0.0, cpu_clock=False)  # not counted: first steps allocate and tune
        seconds_RC: list[list[float]] = []
        for number in range(1, options.rounds + 1):
            tell(f"round {number} of {options.rounds}")
            seconds_RC.append(_turns(workers, options.turn_s, cpu_clock=options.cpu_clock))
    return np.array(seconds_RC)


def _turns(
    workers: Sequence[ProcessPoolExecutor], turn_s: float, *, cpu_clock: bool
) -> list[float]:
    """Let one contestant run after another."""
    return [worker.submit(_turn, turn_s, cpu_clock).result() for worker in workers]


def _begin(make: Make) -> Any:
    greeting, step = make()
    _steps.append(step)
    return greeting


def _turn(turn_s: float, cpu_clock: bool) -> float:
    (step,) = _steps
    return step_seconds(step, turn_s, cpu_clock=cpu_clock)


def step_seconds(step: Step, turn_s: float, *, cpu_clock: bool) -> float:
    """Repeat a step for `turn_s` wall seconds, at least once; return the mean seconds of a step."""
    clock = time.process_time if cpu_clock else time.perf_counter
    num_steps = 0
    began_s = clock()
    end_s = time.perf_counter() + turn_s
    while num_steps == 0 or time.perf_counter() < end_s:
        step()
        num_steps += 1
    return (clock() - began_s) / num_steps


def speeds(seconds_RC: NDArray[np.float64], work_C: Sequence[int]) -> list[Row]:
    """Return the median of each contestant's step, and its speed over the first: median, quartiles.

    The speed is the work of a step per second. Ratios are taken inside a round, so that a machine
    that slows down slows every contestant.
    """
    rates_RC = np.array(work_C) / seconds_RC
    ratios_RC = rates_RC / rates_RC[:, :1]
    steps_ms = 1e3 * np.median(seconds_RC, axis=0)
    quartiles_3C = np.quantile(ratios_RC, (0.25, 0.5, 0.75), axis=0)
    rows: list[Row] = []
    for step_ms, low, middle, high in np.vstack([steps_ms, quartiles_3C]).T.tolist():
        row = {"step_ms": step_ms, "ratio": middle, "ratio_low": low, "ratio_high": high}
        rows.append(row)
    return rows
