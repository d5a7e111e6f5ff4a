"""Contestants side by side: each in a process of its own and in turns, so that no allocator or cache is shared.

Shapes: R rounds, C contestants.
"""

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
"""Called in the child with a contestant: returns its greeting, and the step that is timed."""

RATIO = "{ratio:.2f} ({ratio_low:.2f} to {ratio_high:.2f})"


class Lap(NamedTuple):
    """The steps that one contestant took in its turn."""

    steps: int
    wall_s: float
    cpu_s: float


def take_turns(
    make: Make,
    contestants: Sequence[object],
    *,
    rounds: int,
    turn_s: float,
    tell: Callable[[str], object],
    greeted: Callable[[list[Any]], object] = lambda _: None,
) -> list[list[Lap]]:
    """Turns by round and contestant; `greeted` sees all greetings first, and what it raises ends the contest."""
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(_Worker(make, one))) for one in contestants]
        greeted([worker.greeting() for worker in workers])
        for worker in workers:
            worker.turn(0)  # what the first steps allocate and tune is not counted
        turns: list[list[Lap]] = []
        for number in range(1, rounds + 1):
            tell(f"round {number} of {rounds}")
            turns.append([worker.turn(turn_s) for worker in workers])
        return turns


def step_seconds(turns: Sequence[Sequence[Lap]], *, cpu_clock: bool) -> NDArray[np.float64]:
    """Seconds of one step, [R, C]."""
    return np.array([[(turn.cpu_s if cpu_clock else turn.wall_s) / turn.steps for turn in one] for one in turns])


def beside_first(rates_RC: NDArray[np.float64]) -> list[dict[str, float]]:
    """How many times as fast as the first contestant each is, in the same round: median and quartiles."""
    quartiles_3C = np.quantile(rates_RC / rates_RC[:, :1], (0.25, 0.5, 0.75), axis=0)
    return [{"ratio": middle, "ratio_low": low, "ratio_high": high} for low, middle, high in quartiles_3C.T.tolist()]


class _Worker:
    """A contestant in a process of its own."""

    def __init__(self, make: Make, contestant: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, contestant), daemon=True)
        self._process.start()
        theirs.close()  # so that a worker's death ends our waiting

    def greeting(self) -> Any:
        return self._pipe.recv()

    def turn(self, seconds: float) -> Lap:
        self._pipe.send(seconds)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def _serve(pipe: Connection, make: Make, contestant: object) -> None:
    greeting, step = make(contestant)
    pipe.send(greeting)
    while True:
        try:
            seconds = pipe.recv()
        except EOFError:
            return
        steps, wall_s, cpu_s = 0, time.perf_counter(), time.process_time()
        while steps == 0 or time.perf_counter() - wall_s < seconds:
            step()
            steps += 1
        pipe.send(Lap(steps, time.perf_counter() - wall_s, time.process_time() - cpu_s))
