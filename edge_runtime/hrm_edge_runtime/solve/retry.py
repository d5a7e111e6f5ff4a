"""How a client waits: pauses that grow at random, for as long as somebody has patience."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


@dataclass(kw_only=True)
class Patience:
    """Pauses that grow, for as long as `limit_s` after the last success; never shorter than a server asks for.

    Each is drawn at random up to a bound that doubles: clients who were refused together do not return together.
    """

    limit_s: float
    rng: random.Random
    _num_pauses: int = 0
    _success_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """After a success everything begins anew."""
        self._num_pauses, self._success_s = 0, time.monotonic()

    def pause_s(self, retry_after_s: float = 0.0) -> float | None:
        """How long to wait before the next try; None where it would be too late."""
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._num_pauses)
        self._num_pauses += 1
        pause_s = retry_after_s + self.rng.uniform(0, bound_s)
        return pause_s if time.monotonic() + pause_s <= self._success_s + self.limit_s else None
