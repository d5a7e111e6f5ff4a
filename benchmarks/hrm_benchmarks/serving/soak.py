"""A great many requests, single ones and batches mixed, every answer compared with the one that is known to be right.

What a long run would wear out is watched beside it: memory, descriptors and threads of both processes, and slots.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import numpy as np
from rich.console import Console
from rich.table import Table

from hrm_benchmarks.serving.asking import client, stream
from hrm_benchmarks.serving.observing import SETTLED_S, ended_in, look
from hrm_benchmarks.serving.running import Running, Usage, usage_of

LINES_IN_A_BATCH = 5000
SAMPLE_EVERY_S = 5.0
WARM_UP = 0.5  # of all requests; before that caches, pools and the allocator still grow
AGAIN_S = 0.05
Tell = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A moment of the run."""

    at_s: float
    answered: int
    usage: dict[str, Usage]


@dataclass(kw_only=True)
class Tally:
    """What became of the requests; `refused` counts 503s, which are sent again."""

    answered: int = 0
    wrong: int = 0
    twice: int = 0
    failed: int = 0
    refused: int = 0
    samples: list[Sample] = field(default_factory=list[Sample])

    def take(self, said: dict[str, Any], solution: object) -> None:
        self.answered += "answer" in said
        self.failed += "answer" not in said
        self.wrong += "answer" in said and said["answer"]["solution"] != solution


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The account; `faults` is empty where every promise was kept."""

    faults: list[str]
    requests: int
    seconds: float
    refused_and_sent_again: int
    mb_per_hour: dict[str, float]
    mb_per_million: dict[str, float]
    before: dict[str, Usage]
    after: dict[str, Usage]
    samples: list[Sample]


async def soak(
    server: Running,
    bodies: Sequence[bytes],
    solutions: Sequence[object],
    *,
    num_requests: int,
    num_streams: int,
    num_singles: int,
    tell: Tell,
) -> Findings:
    """Half of the requests in batches over `num_streams` connections, half by themselves over `num_singles`."""
    tally, began = Tally(), time.monotonic()
    pids, before = server.pids(), server.usage()
    first = look(server)
    numbers = itertools.cycle(range(len(bodies)))
    batches = _batches(num_requests // 2, numbers)
    singles = itertools.islice(numbers, num_requests - num_requests // 2)
    watcher = asyncio.ensure_future(_watch(tally, pids, began, num_requests, tell))
    async with client() as http:
        await asyncio.gather(
            *(_stream_all(http, server.url, bodies, solutions, batches, tally) for _ in range(num_streams)),
            *(_ask_all(http, server.url, bodies, solutions, singles, tally) for _ in range(num_singles)),
        )
    watcher.cancel()
    await asyncio.sleep(2 * SETTLED_S)
    seconds = time.monotonic() - began
    last, after = look(server), server.usage()
    return Findings(
        faults=_faults(tally, num_requests, ended_in(last) - ended_in(first), server.slots(), before, after),
        requests=num_requests,
        seconds=seconds,
        refused_and_sent_again=tally.refused,
        mb_per_hour={name: 3600 * _slope(tally, name, lambda one: one.at_s) for name in pids},
        mb_per_million={name: 1e6 * _slope(tally, name, lambda one: one.answered) for name in pids},
        before=before,
        after=after,
        samples=tally.samples,
    )


def _batches(num_lines: int, numbers: Iterator[int]) -> Iterator[list[int]]:
    for start in range(0, num_lines, LINES_IN_A_BATCH):
        yield list(itertools.islice(numbers, min(LINES_IN_A_BATCH, num_lines - start)))


async def _stream_all(
    http: aiohttp.ClientSession,
    url: str,
    bodies: Sequence[bytes],
    solutions: Sequence[object],
    batches: Iterator[list[int]],
    tally: Tally,
) -> None:
    for batch in batches:
        seen: set[int] = set()
        async for said in stream(http, url, [bodies[number] for number in batch]):
            tally.twice += said["line"] in seen
            seen.add(said["line"])
            tally.take(said, solutions[batch[said["line"] - 1]])
        tally.failed += len(batch) - len(seen)


async def _ask_all(
    http: aiohttp.ClientSession,
    url: str,
    bodies: Sequence[bytes],
    solutions: Sequence[object],
    numbers: Iterator[int],
    tally: Tally,
) -> None:
    for number in numbers:
        while True:
            headers = {"content-type": "application/json"}
            async with http.post(f"{url}/solve", data=bodies[number], headers=headers) as response:
                said = json.loads(await response.read())
            if response.status != 503:
                break
            tally.refused += 1
            await asyncio.sleep(AGAIN_S)
        tally.take({"answer": said} if response.status == 200 else said, solutions[number])


async def _watch(tally: Tally, pids: dict[str, int], began: float, num_requests: int, tell: Tell) -> None:
    told_s = 0.0
    while True:
        usage = {name: usage_of(pid) for name, pid in pids.items()}
        at_s = time.monotonic() - began
        tally.samples.append(Sample(at_s=at_s, answered=tally.answered, usage=usage))
        if at_s - told_s > 12 * SAMPLE_EVERY_S:
            memory = ", ".join(f"{name} {one.resident_mb:.1f} MB" for name, one in usage.items())
            tell(f"{at_s:.0f} s: {tally.answered} of {num_requests} answered, {memory}")
            told_s = at_s
        await asyncio.sleep(SAMPLE_EVERY_S)


def _slope(tally: Tally, name: str, along: Callable[[Sample], float]) -> float:
    """Resident MB per unit, a straight line through the samples after the warm-up; NaN where they are too few."""
    kept = [one for one in tally.samples if one.answered > WARM_UP * tally.answered]
    if len(kept) < 3:
        return float("nan")
    return float(np.polyfit([along(one) for one in kept], [one.usage[name].resident_mb for one in kept], 1)[0])


def _faults(
    tally: Tally, num_requests: int, ended: int, slots: Any, before: dict[str, Usage], after: dict[str, Usage]
) -> list[str]:
    lane = slots["lanes"][0]["lane"]
    counts = {
        "answers missing": num_requests - tally.answered,
        "requests failed": tally.failed,
        "wrong answers": tally.wrong,
        "lines answered twice": tally.twice,
        "attempts in the engine's count that nobody asked for": ended - num_requests,
        "requests still waiting": slots["waiting"],
        "slots still taken": lane["num_active"],
        "attempts still in line": lane["num_queued"],
        "engines lost": slots["engine"]["losses"],
        **{f"descriptors left open ({name})": after[name].descriptors - before[name].descriptors for name in after},
    }
    return [f"{count} {what}" for what, count in counts.items() if count > 0]


def as_json(findings: Findings) -> str:
    return json.dumps(asdict(findings), indent=1)


def print_findings(findings: Findings, console: Console) -> None:
    table = Table(title=f"{findings.requests} requests in {findings.seconds:.0f} s", title_justify="left")
    for column in ("process", "MB before", "MB after", "MB/h", "MB per million", "descriptors", "threads"):
        table.add_column(column, justify="right")
    for name, before in findings.before.items():
        after = findings.after[name]
        table.add_row(
            name,
            f"{before.resident_mb:.1f}",
            f"{after.resident_mb:.1f}",
            f"{findings.mb_per_hour[name]:.2f}",
            f"{findings.mb_per_million[name]:.2f}",
            f"{before.descriptors} -> {after.descriptors}",
            f"{before.threads} -> {after.threads}",
        )
    console.print(table)
    console.print("; ".join(findings.faults) or "every request answered once and right, nothing left behind")
