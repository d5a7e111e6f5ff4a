"""The bounded places for requests, so many for each model; a request holds one from before its parsing to its answer.

Only the event loop touches them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import anyio

LOOK_AGAIN_S = 1.0
BATCH_SHARE = 0.5  # batches leave the other half of the places to those who ask for one answer


class AdmissionLimits:
    """How many places each model has, and how many are taken."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.limits = dict(limits)
        self._taken = dict.fromkeys(limits, 0)
        self._used_s = dict.fromkeys(limits, time.monotonic())
        self._empty, self._freed = asyncio.Event(), asyncio.Event()
        self._empty.set()

    def take(self, model: str) -> None:
        """Take a place and `leave` it once; the caller has looked whether one is free."""
        self._taken[model] += 1
        self._used_s[model] = time.monotonic()
        self._empty.clear()

    def leave(self, model: str) -> None:
        self._taken[model] -= 1
        self._used_s[model] = time.monotonic()
        self._freed.set()
        if not any(self._taken.values()):
            self._empty.set()

    def is_full(self, model: str, *, for_batch: bool = False) -> bool:
        """True as well where a model's places have been closed."""
        return model not in self.limits or self._taken[model] >= (
            self.batch_limit(model) if for_batch else self.limits[model]
        )

    def open(self, model: str, limit: int) -> None:
        """So many places from now on, whether there were some before or not."""
        self.limits[model] = limit
        self._taken.setdefault(model, 0)
        self._used_s.setdefault(model, time.monotonic())

    def close(self, model: str) -> None:
        """No more places there; nobody holds one."""
        assert not self._taken.get(model), f"{self._taken[model]} requests hold places of {model}"
        for record in (self.limits, self._taken, self._used_s):
            record.pop(model, None)

    def num_taken(self, model: str) -> int:
        return self._taken.get(model, 0)

    def idle(self) -> list[str]:
        """Those without a request, the longest unused first."""
        return sorted((one for one, taken in self._taken.items() if not taken), key=self._used_s.__getitem__)

    def batch_limit(self, model: str) -> int:
        """How many places there may be taken for a batch to take another."""
        return max(1, int(BATCH_SHARE * self.limits[model]))

    async def freed(self, patience_s: float) -> None:
        """Wait until somebody leaves a place, but not for ever."""
        self._freed.clear()
        with anyio.move_on_after(patience_s):  # never loses a cancel, unlike wait_for before Python 3.12
            await self._freed.wait()

    async def vacant(self, model: str) -> None:
        """Wait until no place of one model is taken."""
        while self.num_taken(model):
            await self.freed(LOOK_AGAIN_S)

    async def empty(self) -> None:
        """Wait until no place is taken."""
        await self._empty.wait()
