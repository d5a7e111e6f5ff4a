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

_steps: list[Step] = []  # the one of a contestant's process


class Lap(NamedTuple):
    """The steps that one contestant took in its turn."""

    steps: int
    wall_s: float
    cpu_s: float


def take_turns(
    contestants: Sequence[Make],
    *,
    rounds: int,
    turn_s: float,
    greeted: Callable[[list[Any]], object] = lambda _: None,
) -> list[list[Lap]]:
    """Turns by round and contestant; `greeted` sees all greetings first, and what it raises ends the contest."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        workers = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in contestants]
        begun = [worker.submit(_begin, make) for worker, make in zip(workers, contestants, strict=True)]
        greeted([one.result() for one in begun])
        for worker in workers:
            worker.submit(_turn, 0).result()  # what the first steps allocate and tune is not counted
        turns: list[list[Lap]] = []
        for number in range(1, rounds + 1):
            tell(f"round {number} of {rounds}")
            turns.append([worker.submit(_turn, turn_s).result() for worker in workers])
        return turns


def _begin(make: Make) -> Any:
    greeting, step = make()
    _steps.append(step)
    return greeting


def _turn(seconds: float) -> Lap:
    (step,) = _steps
    steps, wall_s, cpu_s = 0, time.perf_counter(), time.process_time()
    while steps == 0 or time.perf_counter() - wall_s < seconds:
        step()
        steps += 1
    return Lap(steps, time.perf_counter() - wall_s, time.process_time() - cpu_s)


def step_seconds(turns: Sequence[Sequence[Lap]], *, cpu_clock: bool) -> NDArray[np.float64]:
    """Seconds of one step, [R, C]."""
    return np.array([[(turn.cpu_s if cpu_clock else turn.wall_s) / turn.steps for turn in one] for one in turns])


def beside_first(rates_RC: NDArray[np.float64]) -> list[Row]:
    """How many times as fast as the first contestant each is, in the same round: median and quartiles."""
    quartiles_3C = np.quantile(rates_RC / rates_RC[:, :1], (0.25, 0.5, 0.75), axis=0)
    return [{"ratio": middle, "ratio_low": low, "ratio_high": high} for low, middle, high in quartiles_3C.T.tolist()]
