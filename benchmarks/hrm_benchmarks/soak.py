"""Sends many requests to a server; each is answered once and correctly, and nothing leaks."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from hrm_benchmarks import client
from hrm_benchmarks.client import CheckedClient
from hrm_benchmarks.report import Row, paper, print_table, tell
from hrm_benchmarks.server import SETTLED_S, RunningServer, Target

LINES_PER_BATCH = 5000
SAMPLE_EVERY_S = 5.0
SAMPLES_PER_MESSAGE = 12  # seconds between lines of progress
# share of all requests that are warm-up: caches, pools and the allocator still grow
WARM_UP = 0.5
MIN_SAMPLES = 3  # fewest samples for a fit
COLUMNS = {
    "process": "{process}",
    "MB before": "{before[resident_mb]:.1f}",
    "MB after": "{after[resident_mb]:.1f}",
    "MB/h": "{mb_per_hour:.2f}",
    "MB per million": "{mb_per_million:.2f}",
    "descriptors": "{before[descriptors]} -> {after[descriptors]}",
    "threads": "{before[threads]} -> {after[threads]}",
}


async def measure(
    server: RunningServer,
    target: Target,
    num_requests: int,
    *,
    num_streams: int,
    num_singles: int,
) -> Row:
    """Send half of the requests in batches and half as single requests, and check every answer.

    The batches share `num_streams` connections and the single requests `num_singles`. `faults` is
    empty if the server kept every promise.
    """
    bodies = target.bodies()
    usage_before = server.usage()
    totals_before = server.totals()
    began_s = time.monotonic()
    async with client.session(server.url) as http:
        checked = CheckedClient(http, bodies, target.solutions())
        watch = Watch(server, checked.counts, num_requests)
        watching = asyncio.ensure_future(watch.run())
        await _send_all(checked, len(bodies), num_requests, num_streams, num_singles)
        watching.cancel()
    await asyncio.sleep(2 * SETTLED_S)
    seconds = time.monotonic() - began_s
    usage = server.usage()
    totals = server.totals().since(totals_before)
    faults = _lost_or_wrong(checked.counts, num_requests)
    faults += _left_behind(server, totals.num_ended - num_requests)
    faults += _left_open(usage_before, usage)
    figures: dict[str, Any] = {"faults": faults, "requests": num_requests, "seconds": seconds}
    figures["refused_and_sent_again"] = checked.counts["refused"]
    figures["mb_per_hour"] = {}
    figures["mb_per_million"] = {}
    for process in usage:
        figures["mb_per_hour"][process] = 3600 * watch.slope(process, "at_s")
        figures["mb_per_million"][process] = 1e6 * watch.slope(process, "answered")
    figures["before"] = usage_before
    figures["after"] = usage
    figures["samples"] = watch.samples
    return figures


async def _send_all(
    checked: CheckedClient, num_bodies: int, num_requests: int, num_streams: int, num_singles: int
) -> None:
    """Send the bodies over and over; the connections of a kind share one iterator."""
    numbers = itertools.cycle(range(num_bodies))
    num_lines = num_requests // 2
    batches = _batches(numbers, num_lines)
    singles = itertools.islice(numbers, num_requests - num_lines)
    streams = [checked.send_batches(batches) for _ in range(num_streams)]
    connections = [checked.send_singles(singles) for _ in range(num_singles)]
    await asyncio.gather(*streams, *connections)


def _batches(numbers: Iterator[int], num_lines: int) -> Iterator[list[int]]:
    for start in range(0, num_lines, LINES_PER_BATCH):
        size = min(LINES_PER_BATCH, num_lines - start)
        yield list(itertools.islice(numbers, size))


class Watch:
    """Samples what both processes use; `slope` fits a line through the samples."""

    def __init__(self, server: RunningServer, counts: Counter[str], num_requests: int) -> None:
        self.samples: list[Row] = []
        self._server = server
        self._counts = counts
        self._num_requests = num_requests

    async def run(self) -> None:
        began_s = time.monotonic()
        for number in itertools.count(1):
            usage = await asyncio.to_thread(self._server.usage)
            at_s = time.monotonic() - began_s
            answered = self._counts["answered"]
            self.samples.append({"at_s": at_s, "answered": answered, "usage": usage})
            if number % SAMPLES_PER_MESSAGE == 0:
                http_mb = usage["http"]["resident_mb"]
                engine_mb = usage["engine"]["resident_mb"]
                progress = f"{answered} of {self._num_requests} answered"
                memory = f"http {http_mb:.1f} MB, engine {engine_mb:.1f} MB"
                tell(f"{at_s:.0f} s: {progress}, {memory}")
            await asyncio.sleep(SAMPLE_EVERY_S)

    def slope(self, process: str, along: str) -> float:
        """Return resident MB per unit of `along` after the warm-up; NaN with too few samples."""
        warm = WARM_UP * self._counts["answered"]
        positions: list[float] = []
        resident_mb: list[float] = []
        for sample in self.samples:
            if sample["answered"] > warm:
                usage = sample["usage"][process]
                positions.append(sample[along])
                resident_mb.append(usage["resident_mb"])
        if len(positions) < MIN_SAMPLES:
            return float("nan")
        slope, _ = np.polyfit(positions, resident_mb, 1)
        return float(slope)


def _lost_or_wrong(counts: Counter[str], num_requests: int) -> list[str]:
    bad: dict[str, float] = {}
    bad["answers missing"] = num_requests - counts["answered"]
    bad["requests lost"] = counts["lost"]
    bad["wrong answers"] = counts["wrong"]
    bad["lines answered twice"] = counts["twice"]
    return positive(bad)


def _left_behind(server: RunningServer, num_unasked: float) -> list[str]:
    slots = server.slots()
    lane = slots["lanes"][0]["lane"]
    bad: dict[str, float] = {}
    bad["attempts in the engine's count that nobody requested"] = num_unasked
    bad["requests still waiting"] = slots["waiting"]
    bad["slots still taken"] = lane["num_active"]
    bad["attempts still in the queue"] = lane["num_queued"]
    bad["engines lost"] = slots["engine"]["losses"]
    return positive(bad)


def _left_open(before: Row, after: Row) -> list[str]:
    counts = {}
    for process in after:
        num_more = after[process]["descriptors"] - before[process]["descriptors"]
        counts[f"descriptors left open ({process})"] = num_more
    return positive(counts)


def positive(counts: dict[str, float]) -> list[str]:
    """Return a line for each count above zero."""
    return [f"{count:g} {what}" for what, count in counts.items() if count > 0]


def print_soak(figures: Row) -> None:
    rows: list[Row] = []
    for process in figures["before"]:
        row = {"process": process}
        for name in ("before", "after", "mb_per_hour", "mb_per_million"):
            row[name] = figures[name][process]
        rows.append(row)
    title = f"{figures['requests']} requests in {figures['seconds']:.0f} s"
    print_table(title, COLUMNS, rows)
    verdict = "; ".join(figures["faults"])
    paper().print(verdict or "every request answered once and correctly, nothing left behind")
