"""A server under open-loop load: what it can do at most, and how long its clients wait at shares of that.

Shapes: N requests, Q questions.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import aiohttp
import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks.serving.asking import Outcome, answer_in, client, open_loop, stream
from hrm_benchmarks.serving.observing import SETTLED_S, Look, Stretch, between, ended_in, look, step_costs
from hrm_benchmarks.serving.running import Running
from hrm_benchmarks.serving.simulation import Model, Seconds, poisson, simulate

FILL_S = 1.0  # from the first line of a stream until the queue is full
SLO_FACTOR = 5
ALONE = 30  # requests one after another, whose latency beyond the engine's own is the overhead
Tell = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do with a running server; goodput counts answers within `slo_s`, else within `SLO_FACTOR` services."""

    shares: tuple[float, ...]
    seconds: float
    saturation_s: float
    num_slots: int
    queue_limit: int
    max_segments: int
    slo_s: float | None
    seed: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Capacity:
    """The server with never an empty queue. `bound_per_s` is B / (t(B) E[T]): full steps, one after another."""

    puzzles_per_s: float
    bound_per_s: float
    mean_segments: float
    stretch: Stretch
    segments_Q: NDArray[np.int64]

    @property
    def share_of_bound(self) -> float:
        """Occupancy times the engine's share of the time."""
        return self.stretch.occupancy * self.stretch.engine_share


@dataclass(frozen=True, kw_only=True)
class Level:
    """One load: measured at the client from the intended moment of sending, and simulated for the same arrivals."""

    share: float
    offered_per_s: float
    answered_per_s: float
    goodput_per_s: float
    drop_rate: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    simulated_mean_ms: float
    simulated_p50_ms: float
    simulated_p99_ms: float
    simulated_drop_rate: float
    send_lag_p99_ms: float
    requests: int

    @property
    def mean_off(self) -> float:
        """How far the measured mean lies above the simulated one, as a share."""
        return self.mean_ms / self.simulated_mean_ms - 1

    @property
    def p99_off(self) -> float:
        return self.p99_ms / self.simulated_p99_ms - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Everything a load run says; the latencies are kept for the picture."""

    ready_s: float
    step_ms_B: list[float]
    overhead_ms: float
    slo_ms: float
    capacity: Capacity
    levels: list[Level]
    measured_s: list[Seconds]
    simulated_s: list[Seconds]


async def measure(server: Running, bodies: Sequence[bytes], plan: Plan, tell: Tell) -> Found:
    """Cost of steps, capacity, then each share of it."""
    rng = np.random.default_rng(plan.seed)
    async with client() as http:
        tell("what a step costs, by its rows")
        step_s_B = await step_costs(
            server, http, bodies[0], num_slots=plan.num_slots, num_segments=min(16, plan.max_segments)
        )
        overhead_s = await _overhead(server, http, bodies)
        tell(f"capacity: {plan.saturation_s:.0f} s with a full queue")
        capacity = await _capacity(server, http, bodies, plan, float(step_s_B[-1]))
        model = Model(
            step_s_B=step_s_B + capacity.stretch.overhead_s, queue_limit=plan.queue_limit, overhead_s=overhead_s
        )
        slo_s = plan.slo_s or SLO_FACTOR * capacity.mean_segments * float(step_s_B[-1])
        levels, measured, simulated = list[Level](), list[Seconds](), list[Seconds]()
        for share in plan.shares:
            rate = share * capacity.puzzles_per_s
            tell(f"{share:.0%} of {capacity.puzzles_per_s:.1f} puzzles/s for {plan.seconds:.0f} s")
            arrivals_s = poisson(rate, plan.seconds, rng)
            asked = rng.integers(0, len(bodies), len(arrivals_s))
            outcomes = await open_loop(http, server.url, bodies, asked.tolist(), arrivals_s.tolist())
            predicted_s = simulate(model, arrivals_s, capacity.segments_Q[asked])
            levels.append(_level(share, outcomes, predicted_s, slo_s))
            measured.append(latencies(outcomes))
            simulated.append(predicted_s[~np.isnan(predicted_s)])
            await asyncio.sleep(2 * SETTLED_S)
    return Found(
        ready_s=server.ready_s,
        step_ms_B=(1e3 * step_s_B).tolist(),
        overhead_ms=1e3 * overhead_s,
        slo_ms=1e3 * slo_s,
        capacity=capacity,
        levels=levels,
        measured_s=measured,
        simulated_s=simulated,
    )


async def _overhead(server: Running, http: aiohttp.ClientSession, bodies: Sequence[bytes]) -> float:
    """Median of what a request that meets nobody takes beyond its time in a slot."""
    beyond_s: list[float] = []
    for question in itertools.islice(itertools.cycle(range(len(bodies))), ALONE):
        (outcome,) = await open_loop(http, server.url, bodies, [question], [0.0])
        beyond_s.append(outcome.done_s - outcome.sent_s - outcome.answer["compute_ms"] / 1e3)
    return float(np.median(beyond_s))


async def _capacity(
    server: Running, http: aiohttp.ClientSession, bodies: Sequence[bytes], plan: Plan, full_step_s: float
) -> Capacity:
    """Stream every question, again and again until the time is over; look while the queue is full."""
    segments_Q, total_segments, num_answers = np.zeros(len(bodies), np.int64), 0, 0
    ended = asyncio.Event()
    looks = asyncio.ensure_future(_looks(server, ended))
    lines = _until(bodies, FILL_S + plan.saturation_s, ended)
    async for said in stream(http, server.url, lines, window=plan.num_slots + plan.queue_limit):
        segments = answer_in(said)["segments"]
        segments_Q[(said["line"] - 1) % len(bodies)] = segments
        num_answers, total_segments = num_answers + 1, total_segments + segments
    first, last = await looks
    stretch, mean_segments = between(first, last), total_segments / num_answers
    return Capacity(
        puzzles_per_s=(ended_in(last) - ended_in(first)) / stretch.wall_s,
        bound_per_s=plan.num_slots / (full_step_s * mean_segments),
        mean_segments=mean_segments,
        stretch=stretch,
        segments_Q=segments_Q,
    )


async def _looks(server: Running, ended: asyncio.Event) -> tuple[Look, Look]:
    await asyncio.sleep(FILL_S)
    first = await asyncio.to_thread(look, server)
    await ended.wait()
    return first, await asyncio.to_thread(look, server)


def _until(bodies: Sequence[bytes], seconds: float, ended: asyncio.Event) -> Iterator[bytes]:
    """Every body at least once."""
    give_up_s = time.monotonic() + seconds
    for number in itertools.count():
        if number >= len(bodies) and time.monotonic() > give_up_s:
            ended.set()
            return
        yield bodies[number % len(bodies)]


def latencies(outcomes: Sequence[Outcome]) -> Seconds:
    """Of the requests that were answered."""
    return np.array([outcome.latency_s for outcome in outcomes if outcome.status == 200])


def _level(share: float, outcomes: Sequence[Outcome], predicted_s: Seconds, slo_s: float) -> Level:
    latency_s, span_s = latencies(outcomes), max(outcome.done_s for outcome in outcomes)
    lag_s = [outcome.sent_s - outcome.intended_s for outcome in outcomes]
    told_s = predicted_s[~np.isnan(predicted_s)]
    return Level(
        share=share,
        offered_per_s=len(outcomes) / outcomes[-1].intended_s,
        answered_per_s=len(latency_s) / span_s,
        goodput_per_s=int((latency_s <= slo_s).sum()) / span_s,
        drop_rate=1 - len(latency_s) / len(outcomes),
        mean_ms=1e3 * float(latency_s.mean()),
        p50_ms=1e3 * float(np.quantile(latency_s, 0.5)),
        p99_ms=1e3 * float(np.quantile(latency_s, 0.99)),
        simulated_mean_ms=1e3 * float(told_s.mean()),
        simulated_p50_ms=1e3 * float(np.quantile(told_s, 0.5)),
        simulated_p99_ms=1e3 * float(np.quantile(told_s, 0.99)),
        simulated_drop_rate=float(np.isnan(predicted_s).mean()),
        send_lag_p99_ms=1e3 * float(np.quantile(lag_s, 0.99)),
        requests=len(outcomes),
    )
