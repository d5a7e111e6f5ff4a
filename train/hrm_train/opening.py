"""What a run reports until its speed is known: its first step, then the time for the rest."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from hrm_host.progress import duration
from hrm_train.hardware import Say
from hrm_train.telemetry import MetricsRow

SLOW = (
    "the first step still runs after {seconds:.0f} s; it also compiles and warms up, "
    "so later steps are faster"
)


class Opening:
    """The first reports of a process. The speed excludes the first step, which is the slowest."""

    slow_s = 10.0  # seconds after which a first step is announced as slow
    speed_s = 20.0  # seconds after which the speed is reported, even after few steps

    def __init__(self, total_samples: int, say: Say) -> None:
        self._total_samples = total_samples
        self._say = say
        self._began_s = time.monotonic()
        self._rows = 0

    @property
    def is_due(self) -> bool:
        """Whether the run should report now, before its usual interval."""
        if self._rows == 0:
            return True
        return self._rows == 1 and time.monotonic() - self._began_s >= self.speed_s

    @contextmanager
    def watching(self) -> Generator[None]:
        """Announces the first step if it is slow; does nothing for later ones."""
        if self._rows:
            yield
            return
        self._began_s = time.monotonic()
        sentence = SLOW.format(seconds=self.slow_s)
        timer = threading.Timer(self.slow_s, self._say, [sentence])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def take(self, row: MetricsRow) -> None:
        """Prints the time of the first step and, at the second row, the time for the rest."""
        self._rows += 1
        if self._rows == 1:
            first_s = time.monotonic() - self._began_s
            self._say(f"first step: {first_s:.1f} s")
        if self._rows == 2:
            self._say_speed(row)

    def _say_speed(self, row: MetricsRow) -> None:
        num_left = self._total_samples - row.samples
        if num_left <= 0 or not row.samples_per_s:
            return
        left = duration(num_left / row.samples_per_s)
        speed = f"{row.samples_per_s:,.3g} samples/s"
        self._say(f"measured: {speed}; {num_left:,} samples to go take about {left}")
