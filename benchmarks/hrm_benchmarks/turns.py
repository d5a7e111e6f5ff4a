"""Contestants side by side: each in a process of its own and in turns, so that no allocator or cache is shared."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Step = Callable[[], object]
Make = Callable[..., tuple[Any, Step]]
"""Called with what a Worker was given: what it has to say beforehand, and the step that is timed."""


class Turn(NamedTuple):
    steps: int
    wall_s: float
    cpu_s: float


class Worker:
    """A contestant in a process of its own; `greeting` is what it had to say before its first turn."""

    def __init__(self, make: Make, *given: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, given), daemon=True)
        self._process.start()
        theirs.close()  # so that a worker's death ends our waiting

    def greeting(self) -> Any:
        return self._pipe.recv()

    def turn(self, seconds: float) -> Turn:
        self._pipe.send(seconds)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def take_turns(
    make: Make,
    contestants: Sequence[object],
    *,
    rounds: int,
    turn_s: float,
    tell: Callable[[str], object],
    greeted: Callable[[list[Any]], object] = lambda _: None,
) -> list[list[Turn]]:
    """Turns by round and contestant; `greeted` sees all greetings first, and what it raises ends the contest."""
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(Worker(make, one))) for one in contestants]
        greeted([worker.greeting() for worker in workers])
        for worker in workers:
            worker.turn(0)  # what the first steps allocate and tune is not counted
        turns: list[list[Turn]] = []
        for number in range(1, rounds + 1):
            tell(f"round {number} of {rounds}")
            turns.append([worker.turn(turn_s) for worker in workers])
        return turns


def step_seconds(turns: Sequence[Sequence[Turn]], *, cpu_clock: bool) -> NDArray[np.float64]:
    """Seconds of one step, [rounds, contestants]."""
    return np.array([[(turn.cpu_s if cpu_clock else turn.wall_s) / turn.steps for turn in one] for one in turns])


def spread(ratios_R: NDArray[np.float64]) -> tuple[float, float, float]:
    """Median and quartiles over the rounds."""
    low, middle, high = np.quantile(ratios_R, (0.25, 0.5, 0.75)).tolist()
    return middle, low, high


def spread_text(middle: float, low: float, high: float) -> str:
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _serve(pipe: Connection, make: Make, given: tuple[object, ...]) -> None:
    greeting, step = make(*given)
    pipe.send(greeting)
    while True:
        try:
            seconds = pipe.recv()
        except EOFError:
            return
        pipe.send(_turn(step, seconds))


def _turn(step: Step, seconds: float) -> Turn:
    """Steps until the time is over, at least one."""
    steps, wall_s, cpu_s = 0, time.perf_counter(), time.process_time()
    while steps == 0 or time.perf_counter() - wall_s < seconds:
        step()
        steps += 1
    return Turn(steps, time.perf_counter() - wall_s, time.process_time() - cpu_s)
