"""A great many requests, single ones and batches mixed, every answer compared with the one that is known to be right.

What a long run would wear out is watched beside it: memory, descriptors and threads of both processes, and slots.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import numpy as np

from hrm_benchmarks.report import Row, paper, print_table
from hrm_benchmarks.server import SETTLED_S, RunningServer, Usage, client, post, stream, usage_of
from hrm_benchmarks.targets import Target

LINES_IN_A_BATCH = 5000
SAMPLE_EVERY_S = 5.0
WARM_UP = 0.5  # of all requests; before that caches, pools and the allocator still grow
AGAIN_S = 0.05
COLUMNS = [
    ("process", "{process}"),
    ("MB before", "{before.resident_mb:.1f}"),
    ("MB after", "{after.resident_mb:.1f}"),
    ("MB/h", "{mb_per_hour:.2f}"),
    ("MB per million", "{mb_per_million:.2f}"),
    ("descriptors", "{before.descriptors} -> {after.descriptors}"),
    ("threads", "{before.threads} -> {after.threads}"),
]


@dataclass(frozen=True, kw_only=True)
class UsageSample:
    """Both processes at a moment of the run."""

    at_s: float
    answered: int
    usage: dict[str, Usage]


async def soak(
    server: RunningServer,
    target: Target,
    *,
    num_requests: int,
    num_streams: int,
    num_singles: int,
    tell: Callable[[str], object],
) -> Row:
    """Half of the requests in batches over `num_streams` connections, half by themselves over `num_singles`.

    The account's `faults` are empty where every promise was kept.
    """
    run = _Run(target=target, url=server.url)
    began = time.monotonic()
    pids, before, first = server.pids(), server.usage(), server.counts()
    numbers = itertools.cycle(range(len(target.bodies)))
    num_lines = num_requests // 2
    batches = (
        list(itertools.islice(numbers, min(LINES_IN_A_BATCH, num_lines - start)))
        for start in range(0, num_lines, LINES_IN_A_BATCH)
    )
    singles = itertools.islice(numbers, num_requests - num_lines)
    watcher = asyncio.ensure_future(_watch(run, pids, began, num_requests, tell))
    async with client() as http:
        await asyncio.gather(
            *(run.stream_all(http, batches) for _ in range(num_streams)),
            *(run.ask_all(http, singles) for _ in range(num_singles)),
        )
    watcher.cancel()
    await asyncio.sleep(2 * SETTLED_S)
    seconds = time.monotonic() - began
    after, num_ended = server.usage(), (server.counts() - first).num_ended
    return {
        "faults": _faults(run, num_requests, num_ended, server.slots(), before, after),
        "requests": num_requests,
        "seconds": seconds,
        "refused_and_sent_again": run.refused,
        "mb_per_hour": {name: 3600 * run.slope(name, lambda one: one.at_s) for name in pids},
        "mb_per_million": {name: 1e6 * run.slope(name, lambda one: one.answered) for name in pids},
        "before": before,
        "after": after,
        "samples": run.samples,
    }


def print_report(found: Row) -> None:
    by_process = ("before", "after", "mb_per_hour", "mb_per_million")
    rows = [{"process": name, **{key: found[key][name] for key in by_process}} for name in found["before"]]
    print_table(f"{found['requests']} requests in {found['seconds']:.0f} s", COLUMNS, rows)
    paper().print("; ".join(found["faults"]) or "every request answered once and right, nothing left behind")


def print_report_json(found: Row) -> None:
    print(json.dumps(found, indent=1, default=asdict))


@dataclass(kw_only=True)
class _Run:
    """What became of the requests; `refused` counts 503s, which are sent again."""

    target: Target
    url: str
    answered: int = 0
    wrong: int = 0
    twice: int = 0
    failed: int = 0
    refused: int = 0
    samples: list[UsageSample] = field(default_factory=list[UsageSample])

    async def stream_all(self, http: aiohttp.ClientSession, batches: Iterator[list[int]]) -> None:
        for batch in batches:
            seen: set[int] = set()
            async for said in stream(http, self.url, [self.target.bodies[number] for number in batch]):
                self.twice += said["line"] in seen
                seen.add(said["line"])
                self._take(said, batch[said["line"] - 1])
            self.failed += len(batch) - len(seen)

    async def ask_all(self, http: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
        for number in numbers:
            said, status = await post(http, self.url, self.target.bodies[number])
            while status == 503:
                self.refused += 1
                await asyncio.sleep(AGAIN_S)
                said, status = await post(http, self.url, self.target.bodies[number])
            self._take({"answer": said} if status == 200 else said, number)

    def _take(self, said: dict[str, Any], number: int) -> None:
        self.answered += "answer" in said
        self.failed += "answer" not in said
        self.wrong += "answer" in said and said["answer"]["solution"] != self.target.solutions[number]

    def slope(self, name: str, along: Callable[[UsageSample], float]) -> float:
        """Resident MB per unit, a straight line through the samples after the warm-up; NaN where they are too few."""
        kept = [one for one in self.samples if one.answered > WARM_UP * self.answered]
        if len(kept) < 3:
            return float("nan")
        return float(np.polyfit([along(one) for one in kept], [one.usage[name].resident_mb for one in kept], 1)[0])


async def _watch(
    run: _Run, pids: dict[str, int], began: float, num_requests: int, tell: Callable[[str], object]
) -> None:
    told_s = 0.0
    while True:
        usage = {name: usage_of(pid) for name, pid in pids.items()}
        at_s = time.monotonic() - began
        run.samples.append(UsageSample(at_s=at_s, answered=run.answered, usage=usage))
        if at_s - told_s > 12 * SAMPLE_EVERY_S:
            memory = ", ".join(f"{name} {one.resident_mb:.1f} MB" for name, one in usage.items())
            tell(f"{at_s:.0f} s: {run.answered} of {num_requests} answered, {memory}")
            told_s = at_s
        await asyncio.sleep(SAMPLE_EVERY_S)


def _faults(
    run: _Run, num_requests: int, num_ended: int, slots: Any, before: dict[str, Usage], after: dict[str, Usage]
) -> list[str]:
    lane = slots["lanes"][0]["lane"]
    counts = {
        "answers missing": num_requests - run.answered,
        "requests failed": run.failed,
        "wrong answers": run.wrong,
        "lines answered twice": run.twice,
        "attempts in the engine's count that nobody asked for": num_ended - num_requests,
        "requests still waiting": slots["waiting"],
        "slots still taken": lane["num_active"],
        "attempts still in line": lane["num_queued"],
        "engines lost": slots["engine"]["losses"],
        **{f"descriptors left open ({name})": after[name].descriptors - before[name].descriptors for name in after},
    }
    return [f"{count} {what}" for what, count in counts.items() if count > 0]
