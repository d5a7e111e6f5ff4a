"""How often the holder of a key may ask: a bucket that fills at a steady rate and holds a burst.

A request that finds it empty is told when to come back; a line of a batch waits its turn, which slows its client down.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Allowance:
    """`rate` per second on average, `burst` at once."""

    rate: float
    burst: int
    now: Callable[[], float] = time.monotonic
    _left: float = field(init=False)
    _seen_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = float(self.burst)
        self._seen_s = self.now()

    def wait_s(self) -> float:
        """Take one, and 0; or take none, and the seconds until there will be one."""
        now_s = self.now()
        self._left = min(self.burst, self._left + self.rate * (now_s - self._seen_s))
        self._seen_s = now_s
        if self._left < 1:
            return (1 - self._left) / self.rate
        self._left -= 1
        return 0.0

    async def turn(self) -> None:
        """Take one, as soon as there is one."""
        while (wait_s := self.wait_s()) > 0:
            await asyncio.sleep(wait_s)
