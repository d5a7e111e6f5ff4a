"""A server under open-loop load: what it can do at most, and how long its clients wait at shares of that.

Shapes: N requests, Q questions, B rows of a step (`step_s_B[b]` is what b + 1 rows take).
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence

import aiohttp
import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks import server as serving
from hrm_benchmarks.report import Row, paper, print_table, tell
from hrm_benchmarks.scripted import VirtualClock
from hrm_benchmarks.server import Exchange, RunningServer, Target
from hrm_edge_runtime.batching import task
from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.contract import halting
from hrm_edge_runtime.contract.arrays import Int32
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_puzzles.puzzle import UNKNOWN

Seconds = NDArray[np.float64]

MEASURE_S = 0.5  # at least, for the cost of a step of so many rows
FILL_S = 1.0  # from the first line of a stream until the queue is full
SLO_FACTOR = 5
ALONE = 30  # requests one after another, whose latency beyond the engine's own is the overhead
COLUMNS = [
    ("load", "{share:.0%}"),
    ("offered/s", "{offered_per_s:.2f}"),
    ("goodput/s", "{goodput_per_s:.2f}"),
    ("dropped", "{drop_rate:.2%}"),
    ("p50 ms", "{p50_ms:.1f}"),
    ("mean ms", "{mean_ms:.1f}"),
    ("simulated", "{simulated_mean_ms:.1f}"),
    ("off", "{mean_off:+.1%}"),
    ("p99 ms", "{p99_ms:.1f}"),
    ("simulated", "{simulated_p99_ms:.1f}"),
    ("off", "{p99_off:+.1%}"),
    ("lag ms", "{send_lag_p99_ms:.1f}"),
]
LEGEND = """\
Latency counts from the intended moment of sending. simulated: the same lane in simulated time, with the same
arrivals, the recorded segments and the measured cost of a step; off: measured against simulated.
lag: how late this client sent, p99."""


async def measure(
    server: RunningServer,
    target: Target,
    shares: Sequence[float],
    *,
    seconds: float,
    saturation_s: float,
    slo_s: float | None,
    seed: int,
) -> Row:
    """Cost of steps, capacity, then each share of it; goodput is within `slo_s`, else within `SLO_FACTOR` services."""
    rng, bodies = np.random.default_rng(seed), target.bodies()
    async with serving.client(server.url) as http:
        tell("what a step costs, by its rows")
        step_s_B = await _step_costs(server, http, bodies[0], target)
        overhead_s = await _overhead(http, bodies)
        tell(f"capacity: {saturation_s:.0f} s with a full queue")
        capacity, segments_Q, between_s = await _capacity(server, http, bodies, target, saturation_s, step_s_B[-1])
        good_s = slo_s or SLO_FACTOR * target.num_slots / capacity["bound_per_s"]
        levels = list[Row]()
        for share in shares:
            rate = share * capacity["puzzles_per_s"]
            tell(f"{share:.0%} of {capacity['puzzles_per_s']:.1f} puzzles/s for {seconds:.0f} s")
            arrivals_s = poisson(rate, seconds, rng)
            asked = rng.integers(0, len(bodies), len(arrivals_s))
            exchanges = await serving.open_loop(http, [bodies[question] for question in asked], arrivals_s)
            simulated_s = simulate(
                arrivals_s, segments_Q[asked], step_s_B + between_s, target.queue_limit, overhead_s=overhead_s
            )
            levels.append({"share": share, **_level(exchanges, simulated_s, good_s)})
            await asyncio.sleep(2 * serving.SETTLED_S)
    cost = {"step_ms": (1e3 * step_s_B).tolist(), "overhead_ms": 1e3 * overhead_s, "slo_ms": 1e3 * good_s}
    return {"ready_s": server.ready_s, **cost, "capacity": capacity, "levels": levels}


async def _step_costs(server: RunningServer, http: aiohttp.ClientSession, body: bytes, target: Target) -> Seconds:
    """Seconds of a step of 1, 2, ... rows, as the server's own engine counts them while nothing else is asked.

    Batches of B lines that all run the same number of segments keep B rows busy from their first step to their last.
    """
    num_segments = min(16, target.max_segments)
    line = json.dumps({**json.loads(body), "policy": "fixed", "max_segments": num_segments}).encode()
    costs_s: list[float] = []
    for num_rows in range(1, target.num_slots + 1):
        before = await asyncio.to_thread(server.totals)
        began = time.monotonic()
        while time.monotonic() - began < MEASURE_S:
            async for said in serving.stream(http, [line] * num_rows):
                serving.answer_in(said)
        await asyncio.sleep(serving.SETTLED_S)
        seen = await asyncio.to_thread(server.totals, since=before)
        mean_s = seen["step_seconds_total"] / seen["steps"]
        short = min(num_rows - seen["slot_segments"] / seen["steps"], 0.9)
        if costs_s and short > 0:  # some steps had one row less
            mean_s = (mean_s - short * costs_s[-1]) / (1 - short)
        costs_s.append(mean_s)
    return np.array(costs_s)


async def _overhead(http: aiohttp.ClientSession, bodies: Sequence[bytes]) -> float:
    """Median of what a request that meets no other takes beyond its time in a slot."""
    beyond_s: list[float] = []
    for number in range(ALONE):
        (one,) = await serving.open_loop(http, [bodies[number % len(bodies)]], [0.0])
        beyond_s.append(one.done_s - one.sent_s - one.answer["compute_ms"] / 1e3)
    return float(np.median(beyond_s))


async def _capacity(
    server: RunningServer,
    http: aiohttp.ClientSession,
    bodies: Sequence[bytes],
    target: Target,
    saturation_s: float,
    full_step_s: float,
) -> tuple[Row, Int32, float]:
    """The server with never an empty queue: every question is streamed, again and again until the time is over.

    Returns the figures, the segments of each question, and the seconds between two steps.
    """
    segments_Q, total_segments, num_answers = np.zeros(len(bodies), np.int32), 0, 0
    ended = asyncio.Event()

    def lines() -> Iterator[bytes]:
        yield from serving.again_and_again(bodies, FILL_S + saturation_s, num_least=len(bodies))
        ended.set()

    async def watched() -> dict[str, float]:
        await asyncio.sleep(FILL_S)
        first = await asyncio.to_thread(server.totals)
        await ended.wait()
        return await asyncio.to_thread(server.totals, since=first)

    watching = asyncio.ensure_future(watched())
    async for said in serving.stream(http, lines(), window=target.num_slots + target.queue_limit):
        segments = serving.answer_in(said)["segments"]
        segments_Q[(said["line"] - 1) % len(bodies)] = segments
        num_answers, total_segments = num_answers + 1, total_segments + segments
    seen, mean_segments = await watching, total_segments / num_answers
    occupancy = seen["slot_segments_used"] / max(1, seen["slot_segments_offered"])
    engine_share = seen["step_seconds_total"] / seen["at_s"]
    figures = {
        "puzzles_per_s": seen["ended"] / seen["at_s"],
        "bound_per_s": target.num_slots / (full_step_s * mean_segments),  # full steps, one after another
        "share_of_bound": occupancy * engine_share,
        "occupancy": occupancy,
        "engine_share": engine_share,
        "mean_segments": mean_segments,
        "segments_histogram": np.bincount(segments_Q).tolist(),
    }
    return figures, segments_Q, (seen["at_s"] - seen["step_seconds_total"]) / seen["steps"]


def _level(exchanges: Sequence[Exchange], simulated_s: Seconds, slo_s: float) -> Row:
    """One load: measured at the client from the intended moment of sending, and simulated for the same arrivals."""
    latency_s = np.array([one.done_s - one.intended_s for one in exchanges if one.status == 200])
    span_s = max(one.done_s for one in exchanges)
    measured = _summary("", latency_s)
    simulated = _summary("simulated_", simulated_s[~np.isnan(simulated_s)])
    lag_s = [one.sent_s - one.intended_s for one in exchanges]
    return {
        "offered_per_s": len(exchanges) / exchanges[-1].intended_s,
        "goodput_per_s": int((latency_s <= slo_s).sum()) / span_s,
        "drop_rate": 1 - len(latency_s) / len(exchanges),
        **measured,
        **simulated,
        "simulated_drop_rate": float(np.isnan(simulated_s).mean()),
        "send_lag_p99_ms": 1e3 * float(np.quantile(lag_s, 0.99)),
        "requests": len(exchanges),
        "mean_off": measured["mean_ms"] / simulated["simulated_mean_ms"] - 1,
        "p99_off": measured["p99_ms"] / simulated["simulated_p99_ms"] - 1,
    }


def _summary(prefix: str, latency_s: Seconds) -> dict[str, float]:
    return {
        f"{prefix}mean_ms": 1e3 * float(latency_s.mean()),
        f"{prefix}p50_ms": 1e3 * float(np.quantile(latency_s, 0.5)),
        f"{prefix}p99_ms": 1e3 * float(np.quantile(latency_s, 0.99)),
    }


def print_report(title: str, found: Row) -> None:
    capacity, steps_ms = found["capacity"], ", ".join(f"{ms:.2f}" for ms in found["step_ms"])
    paper().print(
        f"{title}\nready in {found['ready_s']:.2f} s; a step of 1, 2, ... rows takes {steps_ms} ms; HTTP adds "
        f"{found['overhead_ms']:.2f} ms\n"
        f"capacity {capacity['puzzles_per_s']:.2f} puzzles/s of {capacity['mean_segments']:.2f} segments; bound "
        f"{capacity['bound_per_s']:.2f}; share of bound {capacity['share_of_bound']:.3f} (occupancy "
        f"{capacity['occupancy']:.3f} x engine {capacity['engine_share']:.3f})",
        highlight=False,
    )
    print_table("", COLUMNS, found["levels"], caption=f"{LEGEND}\ngoodput: answered within {found['slo_ms']:.0f} ms")


class _Unproven:
    """A puzzle whose one token says how many segments it takes; nothing is ever proven."""

    vocab_size = 1 << 30

    def check_BT(self, inputs_BT: NDArray[np.int32], answers_BT: NDArray[np.int32]) -> NDArray[np.int8]:
        del answers_BT
        return np.full(len(inputs_BT), UNKNOWN, np.int8)


def simulate(
    arrivals_s_N: Seconds, segments_N: Int32, step_s_B: Seconds, queue_limit: int, *, overhead_s: float = 0.0
) -> Seconds:
    """What a server should do from first principles: the latency of each request, NaN where the queue was full.

    The very lane that serves runs over an engine whose steps only pass time; `overhead_s` is spent on the way there.
    What a real server takes longer is the host's, the network's or other work on the machine.
    """
    clock, latency_s_N = VirtualClock(), np.full(len(arrivals_s_N), np.nan)
    engine = ScriptedEngine(
        num_slots=len(step_s_B),
        seq_len=1,
        play=lambda tokens_T: Script(answer_T=tokens_T, segments=int(tokens_T[0])),
        step_s=lambda num_rows: float(step_s_B[num_rows - 1]),
        sleep=clock.sleep,
    )
    max_inside = len(step_s_B) + queue_limit
    lane = Lane(engine, _Unproven(), queue_limit=max_inside, clock=clock)
    reached_s_N = arrivals_s_N + overhead_s
    next_one = num_inside = num_leaving = 0
    while next_one < len(arrivals_s_N) or lane.has_work:
        if not lane.has_work and reached_s_N[next_one] > clock():
            num_inside = num_leaving = 0
            clock.sleep(float(reached_s_N[next_one]) - clock())
        while next_one < len(arrivals_s_N) and reached_s_N[next_one] <= clock():
            if num_inside < max_inside:  # those that leave now were still there when these came
                num_segments = int(segments_N[next_one])
                attempt = task.Attempt(
                    attempt_id=next_one,
                    tokens_T=np.array([num_segments], np.int32),
                    puzzle_vector_E=np.zeros(1, np.float32),
                    policy=halting.HaltingPolicy(kind="learned", max_segments=num_segments),
                    arrival_s=float(reached_s_N[next_one]),
                )
                lane.submit(attempt)
                num_inside += 1
            next_one += 1
        num_inside -= num_leaving
        results = lane.step()
        num_leaving = len(results)
        for result in results:
            latency_s_N[result.attempt_id] = clock() - arrivals_s_N[result.attempt_id]
    return latency_s_N


def poisson(rate: float, seconds: float, rng: np.random.Generator) -> Seconds:
    return np.cumsum(rng.exponential(1 / rate, size=max(1, int(rate * seconds))))
