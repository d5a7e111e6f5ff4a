"""How long to wait before an engine is started again: briefly at first, longer while it keeps dying, never for ever."""

from __future__ import annotations

FIRST_S = 0.1
CAP_S = 30.0
HEALTHY_S = 10.0  # an engine that was ready this long has proved that it can run


class BackOff:
    """Doubles from `FIRST_S` to `CAP_S` with every loss in a row."""

    def __init__(self) -> None:
        self.num_in_a_row = 0
        self.delay_s = 0.0

    def after(self, ready_s: float) -> float:
        """The wait after an engine that was ready for `ready_s` seconds (0 where it never was)."""
        self.num_in_a_row = 1 if ready_s > HEALTHY_S else self.num_in_a_row + 1
        self.delay_s = min(CAP_S, FIRST_S * 2 ** (self.num_in_a_row - 1))
        return self.delay_s
