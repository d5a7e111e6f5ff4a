"""A server under open-loop load: what it can do at most, and how long its clients wait at shares of that.

Shapes: N requests, Q questions.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks import server as serving
from hrm_benchmarks.report import Row, paper, print_table, pyplot
from hrm_benchmarks.scripted import Seconds, poisson, simulate
from hrm_benchmarks.server import Exchange, LaneCounts, RunningServer

Latencies = tuple[Seconds, Seconds]
"""Measured and simulated, of the requests that were answered."""

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


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """What to do with a running server; goodput counts answers within `slo_s`, else within `SLO_FACTOR` services."""

    shares: tuple[float, ...]
    seconds: float
    saturation_s: float
    num_slots: int
    queue_limit: int
    max_segments: int
    slo_s: float | None
    seed: int


async def measure(
    server: RunningServer, bodies: Sequence[bytes], plan: LoadPlan, tell: Callable[[str], object]
) -> tuple[Row, list[Latencies]]:
    """Cost of steps, capacity, then each share of it: the figures, and the latencies of each load for the picture."""
    rng = np.random.default_rng(plan.seed)
    async with serving.client() as http:
        tell("what a step costs, by its rows")
        num_segments = min(16, plan.max_segments)
        step_s_B = await serving.step_costs(
            server, http, bodies[0], num_slots=plan.num_slots, num_segments=num_segments
        )
        overhead_s = await _overhead(server, http, bodies)
        tell(f"capacity: {plan.saturation_s:.0f} s with a full queue")
        capacity, segments_Q, between_s = await _capacity(server, http, bodies, plan, float(step_s_B[-1]))
        slo_s = plan.slo_s or SLO_FACTOR * plan.num_slots / capacity["bound_per_s"]
        levels, latencies = list[Row](), list[Latencies]()
        for share in plan.shares:
            rate = share * capacity["puzzles_per_s"]
            tell(f"{share:.0%} of {capacity['puzzles_per_s']:.1f} puzzles/s for {plan.seconds:.0f} s")
            arrivals_s = poisson(rate, plan.seconds, rng)
            asked = rng.integers(0, len(bodies), len(arrivals_s))
            exchanges = await serving.open_loop(http, server.url, bodies, asked.tolist(), arrivals_s.tolist())
            simulated_s = simulate(
                arrivals_s,
                segments_Q[asked],
                step_s_B=step_s_B + between_s,
                queue_limit=plan.queue_limit,
                overhead_s=overhead_s,
            )
            latency_s = np.array([one.latency_s for one in exchanges if one.status == 200])
            levels.append({"share": share, **_level(exchanges, latency_s, simulated_s, slo_s)})
            latencies.append((latency_s, simulated_s[~np.isnan(simulated_s)]))
            await asyncio.sleep(2 * serving.SETTLED_S)
    cost = {"step_ms": (1e3 * step_s_B).tolist(), "overhead_ms": 1e3 * overhead_s, "slo_ms": 1e3 * slo_s}
    return {"ready_s": server.ready_s, **cost, "capacity": capacity, "levels": levels}, latencies


async def _overhead(server: RunningServer, http: aiohttp.ClientSession, bodies: Sequence[bytes]) -> float:
    """Median of what a request that meets no other takes beyond its time in a slot."""
    beyond_s: list[float] = []
    for question in itertools.islice(itertools.cycle(range(len(bodies))), ALONE):
        (one,) = await serving.open_loop(http, server.url, bodies, [question], [0.0])
        beyond_s.append(one.done_s - one.sent_s - one.answer["compute_ms"] / 1e3)
    return float(np.median(beyond_s))


async def _capacity(
    server: RunningServer, http: aiohttp.ClientSession, bodies: Sequence[bytes], plan: LoadPlan, full_step_s: float
) -> tuple[Row, NDArray[np.int64], float]:
    """The server with never an empty queue: every question is streamed, again and again until the time is over.

    Returns the figures, the segments of each question, and the seconds between two steps.
    """
    segments_Q, total_segments, num_answers = np.zeros(len(bodies), np.int64), 0, 0
    ended = asyncio.Event()

    def lines() -> Iterator[bytes]:
        yield from serving.again_and_again(bodies, FILL_S + plan.saturation_s, num_least=len(bodies))
        ended.set()

    async def watched() -> LaneCounts:
        await asyncio.sleep(FILL_S)
        first = await asyncio.to_thread(server.counts)
        await ended.wait()
        return await asyncio.to_thread(server.counts) - first

    watching = asyncio.ensure_future(watched())
    async for said in serving.stream(http, server.url, lines(), window=plan.num_slots + plan.queue_limit):
        segments = serving.answer_in(said)["segments"]
        segments_Q[(said["line"] - 1) % len(bodies)] = segments
        num_answers, total_segments = num_answers + 1, total_segments + segments
    seen, mean_segments = await watching, total_segments / num_answers
    figures = {
        "puzzles_per_s": seen.num_ended / seen.at_s,
        "bound_per_s": plan.num_slots / (full_step_s * mean_segments),  # full steps, one after another
        "share_of_bound": seen.occupancy * seen.engine_share,
        "occupancy": seen.occupancy,
        "engine_share": seen.engine_share,
        "mean_segments": mean_segments,
        "segments_histogram": np.bincount(segments_Q).tolist(),
    }
    return figures, segments_Q, seen.overhead_s


def _level(exchanges: Sequence[Exchange], latency_s: Seconds, simulated_s: Seconds, slo_s: float) -> Row:
    """One load: measured at the client from the intended moment of sending, and simulated for the same arrivals."""
    span_s = max(one.done_s for one in exchanges)
    measured = _summary("", latency_s)
    simulated = _summary("simulated_", simulated_s[~np.isnan(simulated_s)])
    lag_s = [one.sent_s - one.intended_s for one in exchanges]
    return {
        "offered_per_s": len(exchanges) / exchanges[-1].intended_s,
        "answered_per_s": len(latency_s) / span_s,
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


def save_picture(path: Path, title: str, levels: Sequence[Row], latencies: Sequence[Latencies]) -> None:
    """The share of requests that took longer than a given time, measured and simulated, for each load."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4.2))
    for level, (measured_s, simulated_s) in zip(levels, latencies, strict=True):
        drawn = axes.ecdf(1e3 * measured_s, complementary=True, label=f"{level['share']:.0%} of capacity")
        axes.ecdf(1e3 * simulated_s, complementary=True, color=drawn.get_color(), linestyle=":")
    axes.set(
        xscale="log", yscale="log", xlabel="latency from the intended send time, ms", ylabel="share that took longer"
    )
    axes.set_title(f"{title}\n(dotted: simulated)", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
