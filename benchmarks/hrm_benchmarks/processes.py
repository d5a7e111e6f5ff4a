"""What the server's two processes cost: CPU for a puzzle through HTTP, time and memory of a start; and what wears out.

CPU seconds are those of the server's two processes; this client's own do not count, but it shares the machine.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import aiohttp
import httpx
import numpy as np

from hrm_benchmarks import server as serving
from hrm_benchmarks.report import Row, paper, print_table, tell
from hrm_benchmarks.server import RunningServer, Target

STREAMS = 4
SOLVED_FIRST = 5  # so that memory is that of a server that has worked
LINES_IN_A_BATCH = 5000
SAMPLE_EVERY_S, SAMPLES_A_LINE = 5.0, 12
WARM_UP = 0.5  # of all requests; before that caches, pools and the allocator still grow
AGAIN_S = 0.05
PASSAGE_COLUMNS = [
    ("route", "{route}"),
    ("offered/s", "{offered}"),
    ("answered/s", "{answered_per_s:.0f}"),
    ("HTTP CPU us", "{http_cpu_us:.0f}"),
    ("engine CPU us", "{engine_cpu_us:.0f}"),
    ("HTTP core", "{http_cpu_share:.0%}"),
    ("per HTTP CPU s", "{per_http_cpu_second:.0f}"),
]
START_COLUMNS = [
    ("hrm-serve", "{server}"),
    ("ready s, median", "{median_s:.2f}"),
    ("best", "{best_s:.2f}"),
    ("CPU s", "{cpu_s:.2f}"),
    ("HTTP MB", "{http_mb:.0f}"),
    ("engine MB", "{engine_mb:.0f}"),
    ("both MB", "{both_mb:.0f}"),
]
SOAK_COLUMNS = [
    ("process", "{process}"),
    ("MB before", "{before[resident_mb]:.1f}"),
    ("MB after", "{after[resident_mb]:.1f}"),
    ("MB/h", "{mb_per_hour:.2f}"),
    ("MB per million", "{mb_per_million:.2f}"),
    ("descriptors", "{before[descriptors]} -> {after[descriptors]}"),
    ("threads", "{before[threads]} -> {after[threads]}"),
]


async def throughput(
    server: RunningServer, target: Target, offered: float, *, connections: int, seconds: float
) -> list[Row]:
    """The offered rate through batches, then the ceilings of batches and of single requests.

    `offered_per_s` is None where as much was offered as the server takes; `per_http_cpu_second` is the ceiling of the
    HTTP process on a core of its own.
    """
    ways = [
        ("/solve/batch", offered, partial(_streamed, rate=offered / STREAMS), STREAMS),
        ("/solve/batch", None, _streamed, STREAMS),
        ("/solve", None, _asked, connections),
    ]
    bodies, passages = target.bodies(), list[Row]()
    async with serving.client(server.url) as http:
        tell("warm-up")
        await _streamed(http, serving.again_and_again(bodies, min(2.0, seconds)))
        for route, rate, ask, num_tasks in ways:
            shown = "all it takes" if rate is None else f"{rate:.0f}"
            tell(f"{route}, offered each second: {shown}")
            before, began = server.usage(), time.monotonic()
            sent = [ask(http, serving.again_and_again(bodies, seconds)) for _ in range(num_tasks)]
            count, spent_s = sum(await asyncio.gather(*sent)), time.monotonic() - began
            cpu_s = {name: one["cpu_s"] - before[name]["cpu_s"] for name, one in server.usage().items()}
            passages.append(
                {
                    "route": route,
                    "offered": shown,
                    "offered_per_s": rate,
                    "answered_per_s": count / spent_s,
                    "http_cpu_us": 1e6 * cpu_s["http"] / count,
                    "engine_cpu_us": 1e6 * cpu_s["engine"] / count,
                    "http_cpu_share": cpu_s["http"] / spent_s,
                    "seconds": spent_s,
                    "per_http_cpu_second": count / cpu_s["http"],
                }
            )
    return passages


async def _streamed(http: aiohttp.ClientSession, bodies: Iterator[bytes], rate: float | None = None) -> int:
    return sum([bool(serving.answer_in(said)) async for said in serving.stream(http, bodies, rate=rate)])


async def _asked(http: aiohttp.ClientSession, bodies: Iterator[bytes]) -> int:
    return sum([(await serving.post(http, body))[1] == 200 for body in bodies])


def start(arguments: Sequence[str], *, rounds: int) -> Row:
    """Start `hrm-serve` with these arguments `rounds` times after a first one, which warms the disk.

    Memory is resident MB after some puzzles, `cpu_s` what the two processes used until ready.
    """
    ready_s: list[float] = []
    cpu_s, used_mb = 0.0, dict[str, float]()
    for _ in range(rounds + 1):
        with serving.running(serving.serve_command(*arguments)) as server:
            cpu_s = sum(one["cpu_s"] for one in server.usage().values())
            with httpx.Client(base_url=server.url, timeout=60.0) as http:
                for model in SOLVED_FIRST * http.get("/models").json()["models"]:
                    http.post("/solve", json={"puzzle": model["sample"], "model": model["name"]}).raise_for_status()
            used_mb = {f"{name}_mb": one["resident_mb"] for name, one in server.usage().items()}
        tell(f"{' '.join(arguments)}: ready after {server.ready_s:.2f} s")
        ready_s.append(server.ready_s)
    counted_s = ready_s[1:]
    return {
        "server": " ".join(arguments),
        "ready_s": counted_s,
        "median_s": float(np.median(counted_s)),
        "best_s": min(counted_s),
        "cpu_s": cpu_s,
        **used_mb,
        "both_mb": sum(used_mb.values()),
    }


async def soak(server: RunningServer, target: Target, num_requests: int, *, num_streams: int, num_singles: int) -> Row:
    """Half of the requests in batches over `num_streams` connections, half by themselves over `num_singles`.

    Every answer is compared with the one known to be right, and both processes are watched beside it. `faults` is empty
    where every promise was kept.
    """
    run = Soak(server, target)
    began = time.monotonic()
    before, first = server.usage(), server.totals()
    numbers = itertools.cycle(range(len(run.bodies)))
    num_lines = num_requests // 2
    batches = (
        list(itertools.islice(numbers, min(LINES_IN_A_BATCH, num_lines - start)))
        for start in range(0, num_lines, LINES_IN_A_BATCH)
    )
    singles = itertools.islice(numbers, num_requests - num_lines)
    watcher = asyncio.ensure_future(run.watch(began, num_requests))
    async with serving.client(server.url) as http:
        await asyncio.gather(
            *(run.stream_all(http, batches) for _ in range(num_streams)),
            *(run.ask_all(http, singles) for _ in range(num_singles)),
        )
    watcher.cancel()
    await asyncio.sleep(2 * serving.SETTLED_S)
    seconds, after = time.monotonic() - began, server.usage()
    num_ended = server.totals(since=first)["ended"]
    return {
        "faults": run.faults(num_requests, num_ended, before, after),
        "requests": num_requests,
        "seconds": seconds,
        "refused_and_sent_again": run.counts["refused"],
        "mb_per_hour": {name: 3600 * run.slope(name, "at_s") for name in before},
        "mb_per_million": {name: 1e6 * run.slope(name, "answered") for name in before},
        "before": before,
        "after": after,
        "samples": run.samples,
    }


class Soak:
    """What becomes of the requests; `refused` counts 503s, which are sent again where they are no lines of batches."""

    def __init__(self, server: RunningServer, target: Target) -> None:
        self.bodies, self.counts, self.samples = target.bodies(), Counter[str](), list[Row]()
        self.server, self.solutions = server, target.solutions()

    async def stream_all(self, http: aiohttp.ClientSession, batches: Iterator[list[int]]) -> None:
        for batch in batches:
            seen: set[int] = set()
            async for said in serving.stream(http, [self.bodies[number] for number in batch]):
                self.counts["twice"] += said["line"] in seen
                seen.add(said["line"])
                self._take(said, batch[said["line"] - 1])
            self.counts["lost"] += len(batch) - len(seen)

    async def ask_all(self, http: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
        for number in numbers:
            while (answered := await serving.post(http, self.bodies[number]))[1] == 503:
                self.counts["refused"] += 1
                await asyncio.sleep(AGAIN_S)
            said, status = answered
            self._take({"answer": said} if status == 200 else said, number)

    def _take(self, said: dict[str, Any], number: int) -> None:
        self.counts["answered" if "answer" in said else f"refused: {said['error']['reason']}"] += 1
        self.counts["wrong"] += "answer" in said and said["answer"]["solution"] != self.solutions[number]

    async def watch(self, began: float, num_requests: int) -> None:
        while True:
            usage = await asyncio.to_thread(self.server.usage)
            at_s, answered = time.monotonic() - began, self.counts["answered"]
            self.samples.append({"at_s": at_s, "answered": answered, "usage": usage})
            if len(self.samples) % SAMPLES_A_LINE == 0:
                memory = ", ".join(f"{name} {one['resident_mb']:.1f} MB" for name, one in usage.items())
                tell(f"{at_s:.0f} s: {answered} of {num_requests} answered, {memory}")
            await asyncio.sleep(SAMPLE_EVERY_S)

    def slope(self, name: str, along: str) -> float:
        """Resident MB per unit, a straight line through the samples after the warm-up; NaN where they are too few."""
        kept = [one for one in self.samples if one["answered"] > WARM_UP * self.counts["answered"]]
        if len(kept) < 3:
            return float("nan")
        resident_mb = [one["usage"][name]["resident_mb"] for one in kept]
        return float(np.polyfit([one[along] for one in kept], resident_mb, 1)[0])

    def faults(self, num_requests: int, num_ended: float, before: Row, after: Row) -> list[str]:
        slots = self.server.slots()
        lane = slots["lanes"][0]["lane"]
        counts = {
            "answers missing": num_requests - self.counts["answered"],
            "requests lost": self.counts["lost"],
            "wrong answers": self.counts["wrong"],
            "lines answered twice": self.counts["twice"],
            "attempts in the engine's count that nobody asked for": num_ended - num_requests,
            "requests still waiting": slots["waiting"],
            "slots still taken": lane["num_active"],
            "attempts still in line": lane["num_queued"],
            "engines lost": slots["engine"]["losses"],
        }
        for name in after:
            counts[f"descriptors left open ({name})"] = after[name]["descriptors"] - before[name]["descriptors"]
        return [f"{count} {what}" for what, count in counts.items() if count > 0]


def print_soak(found: Row) -> None:
    by_process = ("before", "after", "mb_per_hour", "mb_per_million")
    rows = [{"process": name, **{key: found[key][name] for key in by_process}} for name in found["before"]]
    print_table(f"{found['requests']} requests in {found['seconds']:.0f} s", SOAK_COLUMNS, rows)
    paper().print("; ".join(found["faults"]) or "every request answered once and right, nothing left behind")
