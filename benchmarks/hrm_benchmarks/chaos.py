"""A server in trouble: its engine is killed or stopped, its model is reloaded, clients misbehave.

Well-behaved clients send puzzles meanwhile. Each of their requests must get the answer that the
quiet server gave, exactly once, or an error that names the reason. `/livez` must answer quickly.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np

from hrm_benchmarks import attacks, client
from hrm_benchmarks import server as serving
from hrm_benchmarks.client import CheckedClient
from hrm_benchmarks.report import Row, tell
from hrm_benchmarks.server import RunningServer
from hrm_benchmarks.soak import positive
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.http import auth
from hrm_puzzles.data.sources import Questions

STALL_S = 2  # seconds without a step after which the engine is killed
SLOTS = 4
QUEUE_LIMIT = 16  # a small queue, so that it fills up
SINGLES = 8  # connections with single puzzles
STREAMS = 2  # connections with batches
LINES = 100  # of a batch
FLOOD = 500  # connections of a flood
CRUMBLING = 8  # clients that send a body in chunks of one byte
LEAVING = 20  # clients that leave before their answer
DWELL_S = 3.0  # seconds that floods and slow readers stay
CRUMBS = b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n\n\r\n" * 20_000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long the chaos lasts, the pause between two faults, and the seed of their order."""

    seconds: float
    every_s: float
    seed: int


def measure(bundle: Bundle, questions: Questions, plan: Plan) -> Row:
    """Serve a bundle and inject faults; `faults` is empty if the server kept every promise."""
    key = auth.new_secret()
    target = serving.bundle_target(
        bundle, questions, engine="cpu", threads=1, slots=SLOTS, queue_limit=QUEUE_LIMIT
    )
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        admin = auth.Key(label="chaos", role="admin", sha256=auth.hash_of(key))
        auth.write_keys(keys, [admin])
        options = [
            f"--bundle-dir={bundle.path.parent}",
            f"--keys={keys}",
            f"--stall-seconds={STALL_S}",
        ]
        with serving.running([*target.command, *options], {"x-api-key": key}) as server:
            chaos = _run(server, target.bodies(), bundle, key, plan)
            return asyncio.run(chaos)


async def _run(
    server: RunningServer, bodies: Sequence[bytes], bundle: Bundle, key: str, plan: Plan
) -> Row:
    rng = np.random.default_rng(plan.seed)
    async with client.session(server.url, {"x-api-key": key}) as http:
        solutions = await _quiet_solutions(http, bodies)
        checked = CheckedClient(http, bodies, solutions)
        end_s = time.monotonic() + plan.seconds
        draws = Draws(rng, len(bodies), end_s)
        troubles = Troubles(
            server=server, http=http, bodies=bodies, bundle=bundle, key=key, counts=checked.counts
        )
        probing = asyncio.ensure_future(attacks.probe(server.url, end_s))
        sending = [troubles.make(rng, plan.every_s, end_s)]
        for _ in range(SINGLES):
            sending.append(checked.send_singles(draws.numbers()))
        for _ in range(STREAMS):
            sending.append(checked.send_batches(draws.batches(LINES)))
        await asyncio.gather(*sending)
        livez_s = await probing
    await asyncio.sleep(STALL_S + 2 * serving.SETTLED_S)
    return _figures(server, checked.counts, livez_s)


async def _quiet_solutions(http: aiohttp.ClientSession, bodies: Sequence[bytes]) -> list[object]:
    solutions: list[object] = []
    for body in bodies:
        answer, _ = await client.post(http, body)
        solutions.append(answer["solution"])
    return solutions


def _figures(server: RunningServer, counts: Counter[str], livez_s: list[float]) -> Row:
    slots = server.slots()
    bad: dict[str, float] = {}
    bad["wrong"] = counts["wrong"]
    bad["twice"] = counts["twice"]
    bad["lost"] = counts["lost"]
    bad["waiting"] = slots["waiting"]
    bad["places held"] = sum(lane["requests"] for lane in slots["lanes"])
    figures: dict[str, Any] = {"counts": dict(sorted(counts.items()))}
    figures["livez"] = attacks.livez_row(livez_s)
    figures["engines_lost"] = slots["engine"]["losses"]
    figures["faults"] = positive(bad)
    return figures


@dataclass(frozen=True)
class Draws:
    """Yield random puzzle numbers until `end_s`."""

    rng: np.random.Generator
    num_puzzles: int
    end_s: float

    def numbers(self) -> Iterator[int]:
        for (number,) in self.batches(1):
            yield number

    def batches(self, size: int) -> Iterator[list[int]]:
        while time.monotonic() < self.end_s:
            yield self.rng.integers(self.num_puzzles, size=size).tolist()


class Troubles:
    """The faults, one method each; `counts` records how often each was injected."""

    def __init__(
        self,
        *,
        server: RunningServer,
        http: aiohttp.ClientSession,
        bodies: Sequence[bytes],
        bundle: Bundle,
        key: str,
        counts: Counter[str],
    ) -> None:
        self._server = server
        self._http = http
        self._bodies = bodies
        self._bundle = bundle
        self._counts = counts
        self._head = (
            "POST /solve/batch HTTP/1.1\r\n"
            "host: x\r\n"
            f"x-api-key: {key}\r\n"
            "content-type: application/x-ndjson\r\n"
        ).encode()

    async def make(self, rng: np.random.Generator, every_s: float, end_s: float) -> None:
        """Inject the faults in random order, each of them once before any repeats."""
        troubles = [
            self.kill,
            self.stop,
            self.reload,
            self.flood,
            self.crumble,
            self.read_slowly,
            self.leave,
        ]
        making: list[asyncio.Task[None]] = []
        order: list[int] = []
        while time.monotonic() < end_s:
            if not order:
                order = rng.permutation(len(troubles)).tolist()
            trouble = troubles[order.pop()]
            name = trouble.__name__
            self._counts[f"made: {name}"] += 1
            making.append(asyncio.ensure_future(trouble()))
            tell(f"{name}: {self._counts['answered']} answered, {self._counts['wrong']} wrong")
            await asyncio.sleep(every_s)
        await asyncio.gather(*making)

    async def kill(self) -> None:
        await self._signal_engine(signal.SIGKILL)

    async def stop(self) -> None:
        await self._signal_engine(signal.SIGSTOP)

    async def _signal_engine(self, number: int) -> None:
        slots = await asyncio.to_thread(self._server.slots)
        engine = slots["engine"]
        if engine["state"] != "ready":  # the server cannot notice that a starting engine stops
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(engine["pid"], number)

    async def reload(self) -> None:
        path = f"/models/{self._bundle.manifest.name}"
        content = {"bundle": str(self._bundle.path)}
        async with self._http.put(path, json=content) as response:
            self._counts[f"reload: {response.status}"] += 1

    async def flood(self) -> None:
        await self._visit_often(b"GET / HT", FLOOD)

    async def crumble(self) -> None:
        await self._visit_often(self._head + CRUMBS, CRUMBLING)

    async def read_slowly(self) -> None:
        lines = b"\n".join(self._bodies) + b"\n"
        await self._visit(self._request(20 * lines))

    async def leave(self) -> None:
        line = self._bodies[0] + b"\n"
        unfinished = self._head + b"content-length: 9999\r\n\r\n" + line
        visits = [self._visit(unfinished, number / LEAVING) for number in range(LEAVING)]
        await asyncio.gather(*visits)

    async def _visit_often(self, content: bytes, count: int) -> None:
        visits = [self._visit(content) for _ in range(count)]
        await asyncio.gather(*visits)

    def _request(self, body: bytes) -> bytes:
        return self._head + b"content-length: %d\r\n\r\n" % len(body) + body

    async def _visit(self, content: bytes, dwell_s: float = DWELL_S) -> None:
        """Connect, send the content, read nothing, and leave after a while."""
        port = httpx.URL(self._server.url).port
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.write(content)
            await asyncio.sleep(dwell_s)
            writer.transport.abort()
