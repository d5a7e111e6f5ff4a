"""What a scripted step costs, and a clock that counts it without spending it."""

from collections.abc import Callable
from typing import Literal

Cost = Literal["flat", "half", "linear"]
COST_OF: dict[Cost, Callable[[int], float]] = {
    "flat": lambda num_rows: 1.0,  # noqa: ARG005 - a step costs the same however many rows it has
    "half": lambda num_rows: 0.5 + 0.5 * num_rows,
    "linear": float,
}


class VirtualClock:
    """Seconds that pass only when somebody sleeps: exact accounting in no time."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
