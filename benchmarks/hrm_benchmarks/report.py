"""What the benchmarks share: printed figures, and contestants that take turns.

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
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hrm_host import machine, system

PIPE_WIDTH = 160  # characters; wide enough for every figure

Row = Mapping[str, Any]
Columns = Mapping[str, str]
"""The headings of a table, each with a format of a row."""


def environment() -> dict[str, object]:
    """Return the machine, the libraries, and the load from other processes."""
    seen: dict[str, object] = {}
    seen["machine"] = platform.machine()
    seen["system"] = platform.platform()
    seen["processor"] = machine.Host().cpu_model or platform.processor()
    seen["cores"] = os.cpu_count()
    seen["load_average"] = system.load_average()
    seen["python"] = platform.python_version()
    seen["onnxruntime"] = version("onnxruntime")
    seen["numpy"] = version("numpy")
    return seen


def print_json(settings: Row, *, machine: Row | None = None, **figures: object) -> None:
    seen = {**environment(), **(machine or {})}
    content = {"environment": seen, "settings": settings, **figures}
    print(json.dumps(content, indent=2, default=str))


def print_table(
    title: str,
    columns: Columns,
    rows: Iterable[Row],
    *,
    caption: str = "",
    left: Collection[str] = (),
) -> None:
    """Print a line for each row; align the columns named in `left` on the left."""
    table = Table(
        title=title or None, caption=caption or None, title_justify="left", caption_justify="left"
    )
    for heading in columns:
        justify = "left" if heading in left else "right"
        table.add_column(heading, justify=justify)
    for row in rows:
        table.add_row(*cells(columns, row))
    paper().print(table)


def cells(columns: Columns, row: Row) -> list[str]:
    """Return the text of each column; a value that is None becomes a dash."""
    values = {name: _shown(value) for name, value in row.items()}
    return [form.format(**values) for form in columns.values()]


def markdown(columns: Columns, rows: Iterable[Row]) -> str:
    """Return the table that `print_table` prints as Markdown."""
    lines = [list(columns), ["---"] * len(columns)]
    for row in rows:
        lines.append(cells(columns, row))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def paper() -> Console:
    """Return standard output as a console."""
    console = Console()
    if console.is_terminal:
        return console
    return Console(width=PIPE_WIDTH)


def tell(line: str) -> None:
    """Print a line of progress to standard error."""
    Console(file=sys.stderr).print(line, style="dim", highlight=False)


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


def _shown(value: object) -> object:
    if value is None:
        return _Missing()
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value


class _Missing:
    """A missing figure; prints as a dash in any format."""

    def __format__(self, spec: str) -> str:
        return "-"


Step = Callable[[], object]
Make = Callable[[], tuple[Any, Step]]
"""Called in a process of its own; returns a greeting and the step to time."""

RATIO = "{ratio:.2f} ({ratio_low:.2f} to {ratio_high:.2f})"

_steps: list[Step] = []  # holds one step in the process of a contestant


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How often the contestants take turns, and how long a turn lasts."""

    number: int
    turn_s: float
    cpu_clock: bool  # count CPU seconds instead of wall seconds

    @property
    def title(self) -> str:
        clock = "CPU" if self.cpu_clock else "wall"
        return f"{self.number} rounds, {clock} seconds"


def take_turns(
    contestants: Sequence[Make],
    rounds: Rounds,
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
        check_greetings(_greetings(workers, contestants))
        _turns(workers, 0.0, cpu_clock=False)  # not counted: first steps allocate and tune
        seconds_RC: list[list[float]] = []
        for number in range(1, rounds.number + 1):
            tell(f"round {number} of {rounds.number}")
            seconds_RC.append(_turns(workers, rounds.turn_s, cpu_clock=rounds.cpu_clock))
    return np.array(seconds_RC)


def _greetings(workers: Sequence[ProcessPoolExecutor], contestants: Sequence[Make]) -> list[Any]:
    """Let all contestants prepare at the same time."""
    pairs = zip(workers, contestants, strict=True)
    beginning = [worker.submit(_begin, make) for worker, make in pairs]
    return [future.result() for future in beginning]


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


def beside_first(rates_RC: NDArray[np.float64]) -> list[Row]:
    """Return how many times as fast as the first contestant each is: median and quartiles.

    Ratios are taken inside a round, so that a machine that slows down slows every contestant.
    """
    ratios_RC = rates_RC / rates_RC[:, :1]
    quartiles_3C = np.quantile(ratios_RC, (0.25, 0.5, 0.75), axis=0)
    rows: list[Row] = []
    for low, median, high in quartiles_3C.T.tolist():
        rows.append({"ratio": median, "ratio_low": low, "ratio_high": high})
    return rows
