"""What benchmarks share: what they print, and contestants in turns, each in a process (allocator, caches) of its own.

A row of figures is a mapping with the keys of `--json`; a column is a heading and a format of such a row.
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
from importlib.metadata import version
from typing import Any, NamedTuple, NoReturn

import numpy as np
from rich.console import Console
from rich.table import Table

from hrm_host import board, system

PAPER_WIDTH = 160  # characters

Row = Mapping[str, Any]
Columns = Sequence[tuple[str, str]]


def environment() -> dict[str, object]:
    """The machine and the libraries, and how busy the machine is with other work."""
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "processor": board.Host().cpu_model or platform.processor(),
        "cores": os.cpu_count(),
        "load_average": system.load_average(),
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "numpy": version("numpy"),
    }


def print_json(settings: Row, *, machine: Row | None = None, **found: object) -> None:
    content = {"environment": {**environment(), **(machine or {})}, "settings": settings, **found}
    print(json.dumps(content, indent=2, default=str))


def print_table(
    title: str, columns: Columns, rows: Iterable[Row], *, caption: str = "", left: Collection[str] = ()
) -> None:
    """Print a line for each row; the columns named in `left` are aligned there."""
    table = Table(title=title or None, caption=caption or None, title_justify="left", caption_justify="left")
    for heading, _ in columns:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        shown = {name: _shown(value) for name, value in row.items()}
        table.add_row(*(form.format(**shown) for _, form in columns))
    paper().print(table)


def paper() -> Console:
    """Standard output; in a pipe it is wide enough that no figure is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=PAPER_WIDTH)


def tell(line: str) -> None:
    Console(file=sys.stderr).print(line, style="dim", highlight=False)


@contextlib.contextmanager
def leaving_at_sigterm() -> Generator[None]:
    """Meanwhile SIGTERM raises, so that it does not leave a server behind."""

    def leave(signal_number: int, _: object) -> NoReturn:
        sys.exit(128 + signal_number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _Missing() if value is None else value


class _Missing:
    """A figure that there is not, in any format."""

    def __format__(self, spec: str) -> str:
        return "-"


Step = Callable[[], object]
Make = Callable[[], tuple[Any, Step]]
"""Called in a process of its own: returns a greeting, and the step that is timed."""

RATIO = "{ratio:.2f} ({ratio_low:.2f} to {ratio_high:.2f})"

_steps: list[Step] = []  # in a contestant's process, its own


class Rounds(NamedTuple):
    number: int
    turn_s: float
    cpu_clock: bool  # a step's seconds are those of the CPU, else of the wall

    @property
    def title(self) -> str:
        return f"{self.number} rounds, {'CPU' if self.cpu_clock else 'wall'} seconds"


def take_turns(
    contestants: Sequence[Make], rounds: Rounds, greeted: Callable[[list[Any]], object] = lambda _: None
) -> np.typing.NDArray[np.float64]:
    """Seconds of one step, [R, C]; `greeted` sees all greetings first, and what it raises ends the contest."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in contestants]
        begun = [worker.submit(_begin, make) for worker, make in zip(workers, contestants, strict=True)]
        greeted([one.result() for one in begun])
        for worker in workers:
            worker.submit(_turn, 0.0, False).result()  # what the first steps allocate and tune is not counted
        seconds_RC: list[list[float]] = []
        for number in range(1, rounds.number + 1):
            tell(f"round {number} of {rounds.number}")
            seconds_RC.append([worker.submit(_turn, rounds.turn_s, rounds.cpu_clock).result() for worker in workers])
    return np.array(seconds_RC)


def _begin(make: Make) -> Any:
    greeting, step = make()
    _steps.append(step)
    return greeting


def _turn(turn_s: float, cpu_clock: bool) -> float:
    (step,) = _steps
    return step_seconds(step, turn_s, cpu_clock=cpu_clock)


def step_seconds(step: Step, turn_s: float, *, cpu_clock: bool) -> float:
    """Mean seconds of a step that is repeated until so much time has passed on the wall, at least once."""
    clock = time.process_time if cpu_clock else time.perf_counter
    num_steps, began, until_s = 0, clock(), time.perf_counter() + turn_s
    while num_steps == 0 or time.perf_counter() < until_s:
        step()
        num_steps += 1
    return (clock() - began) / num_steps


def beside_first(rates_RC: np.typing.NDArray[np.float64]) -> list[Row]:
    """How many times as fast as the first contestant each is, in the same round: median and quartiles."""
    quartiles_3C = np.quantile(rates_RC / rates_RC[:, :1], (0.25, 0.5, 0.75), axis=0)
    return [{"ratio": middle, "ratio_low": low, "ratio_high": high} for low, middle, high in quartiles_3C.T.tolist()]
