"""When to send a request again that a server refused for a temporary reason."""

import random
import time
from dataclasses import dataclass, field

from hrm_edge_runtime.solve.errors import ServerError

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
MAX_DOUBLINGS = 10  # doublings of the pause; unbounded, a float overflows after half a day


@dataclass(kw_only=True)
class RetryPolicy:
    """Random pauses with a bound that doubles; gives up `limit_s` after the last success."""

    limit_s: float
    rng: random.Random
    _num_pauses: int = 0
    _success_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """Start over after a success."""
        self._num_pauses = 0
        self._success_s = time.monotonic()

    def pause_s(self, retry_after_s: float = 0.0) -> float | None:
        """Seconds until the next try, at least `retry_after_s`; None after the limit."""
        num_doublings = min(self._num_pauses, MAX_DOUBLINGS)
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**num_doublings)
        self._num_pauses += 1
        pause_s = retry_after_s + self.rng.uniform(0, bound_s)
        next_try_s = time.monotonic() + pause_s
        if next_try_s > self._success_s + self.limit_s:
            return None
        return pause_s

    def wait(self, failure: Exception | None) -> bool:
        """Sleep until the next try; returns False after the limit."""
        retry_after_s = 0.0
        if isinstance(failure, ServerError):
            retry_after_s = failure.retry_after_s
        pause_s = self.pause_s(retry_after_s)
        if pause_s is None:
            return False
        time.sleep(pause_s)
        return True
