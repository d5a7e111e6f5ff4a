"""Contestants side by side: each in a process of its own and in turns, so that no allocator or cache is shared.

Shapes: R rounds, C contestants.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.report import Row, tell

Step = Callable[[], object]
Make = Callable[[], tuple[Any, Step]]
"""Called in a process of its own: returns a greeting, and the step that is timed."""

RATIO = "{ratio:.2f} ({ratio_low:.2f} to {ratio_high:.2f})"

_steps: list[Step] = []  # in a contestant's process, its own


class Rounds(NamedTuple):
    """How many there are, and how long a turn takes; a step's seconds are those of the wall or of the CPU."""

    number: int
    turn_s: float
    cpu_clock: bool

    @property
    def title(self) -> str:
        return f"{self.number} rounds, {'CPU' if self.cpu_clock else 'wall'} seconds"


def take_turns(
    contestants: Sequence[Make], rounds: Rounds, greeted: Callable[[list[Any]], object] = lambda _: None
) -> NDArray[np.float64]:
    """Seconds of one step, [R, C]; `greeted` sees all greetings first, and what it raises ends the contest."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
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


def beside_first(rates_RC: NDArray[np.float64]) -> list[Row]:
    """How many times as fast as the first contestant each is, in the same round: median and quartiles."""
    quartiles_3C = np.quantile(rates_RC / rates_RC[:, :1], (0.25, 0.5, 0.75), axis=0)
    return [{"ratio": middle, "ratio_low": low, "ratio_high": high} for low, middle, high in quartiles_3C.T.tolist()]
