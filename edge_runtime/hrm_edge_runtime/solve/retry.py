"""When to send a request again that a server refused for a temporary reason."""

import random
import time
from dataclasses import dataclass, field

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

    def wait(self, failure: Exception | None = None) -> bool:
        """Sleep until the next try, at least as long as a server asks; False after the limit."""
        pause_s = self.pause_s(getattr(failure, "retry_after_s", None) or 0.0)
        if time.monotonic() + pause_s > self._success_s + self.limit_s:
            return False
        time.sleep(pause_s)
        return True

    def pause_s(self, retry_after_s: float = 0.0) -> float:
        """Seconds until the next try."""
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._num_pauses)
        self._num_pauses = min(self._num_pauses + 1, MAX_DOUBLINGS)
        return retry_after_s + self.rng.uniform(0, bound_s)
