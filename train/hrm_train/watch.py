"""Signs of trouble during a run: each is said once, with what to do; a value that is no number ends the run.

Pure logic: what was measured goes in, sentences come out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hrm_train.meter import Reading

STARVED = 0.15
"""Share of a step spent waiting for rows above which the data is the bottleneck."""
SPIKE = 10.0
"""Robust standard deviations above the median of the last losses."""
WINDOW, LEAST = 400, 100
LASTING = 3
"""Readings in a row that make a state of it: the first ones carry warm-up, a single one an accident."""

THROTTLED = {
    "power": "the GPU is held at its power limit; raise it with 'nvidia-smi -pl WATTS' or accept the lower clock",
    "thermal": "the GPU slows down because it is hot; clear its air path, raise its fan speed or lower its power limit",
    "brake": "the GPU is braked by its power supply; check the power connectors and the supply's rating",
    "hardware": "the GPU slows itself down (heat or power supply); look at 'nvidia-smi -q -d PERFORMANCE'",
}


class Watch:
    """Sees every reading of a run."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._lasted: dict[str, int] = {}
        self._said: set[str] = set()

    def see(self, reading: Reading, losses: Sequence[float], throttled: Iterable[str]) -> list[str]:
        """The warnings that are new after this reading; `throttled` holds keys of THROTTLED."""
        warnings = [self._starved(reading), self._spiked(losses)]
        names = set(throttled)
        warnings += [
            self._once(name, self._lasts(name, name in names), sentence) for name, sentence in THROTTLED.items()
        ]
        return [warning for warning in warnings if warning]

    def _starved(self, reading: Reading) -> str | None:
        share = reading.share("data")
        sentence = (
            f"training waits for rows during {100 * share:.0f} % of each step; give more threads to them "
            "(--set workers=N), or put the data set on a faster disk"
        )
        return self._once("data", self._lasts("data", share > STARVED), sentence)

    def _spiked(self, losses: Sequence[float]) -> str | None:
        sentence = None
        for loss in losses:
            height = spike_height(loss, self._losses)
            self._losses.append(loss)
            if height > SPIKE:
                sentence = (
                    f"the loss jumped to {loss:.4g}, {height:.0f} robust deviations above its median; "
                    "if it does not fall back, go on from an earlier checkpoint with a lower lr (--init, --set lr=...)"
                )
        return self._once("spike", sentence is not None, sentence or "")

    def _lasts(self, name: str, now: bool) -> bool:
        self._lasted[name] = self._lasted.get(name, 0) + 1 if now else 0
        return self._lasted[name] >= LASTING

    def _once(self, name: str, now: bool, sentence: str) -> str | None:
        if not now or name in self._said:
            return None
        self._said.add(name)
        return sentence


def spike_height(loss: float, before: Sequence[float] | deque[float]) -> float:
    """How far a loss lies above the median of those before it, in units of 1.4826 x their median absolute deviation.

    0 while there are too few to judge; the deviation counts as at least 1 % of the median, so that a flat loss is calm.
    """
    if len(before) < LEAST:
        return 0.0
    values = np.asarray(before)
    median = float(np.median(values))
    spread = max(1.4826 * float(np.median(np.abs(values - median))), 0.01 * abs(median), 1e-12)
    return (loss - median) / spread


def require_finite(values: Mapping[str, float], step: int, advice: str) -> None:
    """Raises FloatingPointError for the first value that is no finite number."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise FloatingPointError(f"{name} is {value} at step {step}, training cannot go on; {advice}")
