"""What the engine did between two looks at /slots, and what a step of each size costs in the running server.

Shapes: B rows of a step.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.serving.asking import answer_in, stream
from hrm_benchmarks.serving.running import Running

SETTLED_S = 0.3  # the engine shows itself ten times a second
MEASURE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Look:
    """The totals of the first lane at a moment of `time.monotonic`."""

    at_s: float
    lane: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """What happened between two looks; `occupancy` is that of the slots while somebody waited."""

    wall_s: float
    steps: int
    rows: int
    step_s: float
    host_s: float
    occupancy: float

    @property
    def engine_share(self) -> float:
        return self.step_s / self.wall_s

    @property
    def overhead_s(self) -> float:
        """Of one step: everything that is not the engine's, between steps that follow each other at once."""
        return (self.wall_s - self.step_s) / self.steps


def look(server: Running) -> Look:
    slots = server.slots()
    return Look(at_s=time.monotonic() - slots["snapshot_age_ms"] / 1e3, lane=slots["lanes"][0]["lane"])


def ended_in(seen: Look) -> int:
    """How many attempts have ended, in whatever way, since the engine began."""
    return sum(seen.lane["completed"].values())


def between(first: Look, last: Look) -> Stretch:
    gone = {name: last.lane[name] - first.lane[name] for name in _TOTALS}
    return Stretch(
        wall_s=last.at_s - first.at_s,
        steps=gone["steps"],
        rows=gone["slot_segments"],
        step_s=gone["step_seconds_total"],
        host_s=gone["host_seconds_total"],
        occupancy=gone["slot_segments_used"] / max(1, gone["slot_segments_offered"]),
    )


_TOTALS = (
    "steps", "slot_segments", "step_seconds_total", "host_seconds_total", "slot_segments_used", "slot_segments_offered",
)  # fmt: skip


async def step_costs(
    server: Running, http: aiohttp.ClientSession, body: bytes, *, num_slots: int, num_segments: int
) -> NDArray[np.float64]:
    """Seconds of a step of 1, 2, ... rows, as the server's own engine counts them while nobody else asks.

    Batches of B lines that all run the same number of segments keep B rows busy from their first step to their last.
    """
    line = json.dumps({**json.loads(body), "policy": "fixed", "max_segments": num_segments}).encode()
    costs_s: list[float] = []
    for num_rows in range(1, num_slots + 1):
        first = await asyncio.to_thread(look, server)
        began = time.monotonic()
        while time.monotonic() - began < MEASURE_S:
            async for said in stream(http, server.url, [line] * num_rows):
                answer_in(said)
        await asyncio.sleep(SETTLED_S)
        seen = between(first, await asyncio.to_thread(look, server))
        costs_s.append(_at_rows(seen, num_rows, costs_s))
    return np.array(costs_s)


def _at_rows(seen: Stretch, num_rows: int, smaller_s: Sequence[float]) -> float:
    """The cost of a step of `num_rows`, where some steps of the stretch had one row less."""
    mean_s, short = seen.step_s / seen.steps, num_rows - seen.rows / seen.steps
    if not smaller_s or short <= 0:
        return mean_s
    return (mean_s - min(short, 0.9) * smaller_s[-1]) / (1 - min(short, 0.9))
