"""A server in trouble: its engine is killed and stopped, its model reloaded, and clients flood, stall, crumble and go.

Others ask as usual beside them. Each of their requests must get the answer that the quiet server gave, once, or a
refusal that says why; and `/livez` must answer soon.
"""

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np

from hrm_benchmarks import attacks
from hrm_benchmarks import server as serving
from hrm_benchmarks.processes import Soak
from hrm_benchmarks.report import Row, tell
from hrm_benchmarks.server import RunningServer, Target
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.http import auth
from hrm_puzzles.data.sources import Questions

STALL_S = 2  # an engine without a step for so long is killed
SINGLES, STREAMS, LINES = 8, 2, 100
FLOOD, CRUMBLING, LEAVING = 500, 8, 20
DWELL_S = 3.0  # how long slow readers and floods stay
CRUMBS = b"transfer-encoding: chunked\r\n\r\n", b"1\r\n\n\r\n" * 20_000


def measure(bundle: Bundle, asked: Questions, *, seconds: float, every_s: float, seed: int) -> Row:
    """Serve a bundle among troubles, one `every_s`; `faults` is empty where every promise was kept."""
    key, rng = auth.new_secret(), np.random.default_rng(seed)
    target = serving.bundle_target(bundle, asked, "cpu", threads=1, num_slots=4, queue_limit=16)
    with tempfile.TemporaryDirectory() as folder:
        auth.write_keys(Path(folder) / "keys", [auth.Key(label="chaos", role="admin", sha256=auth.hash_of(key))])
        named = f"--bundle-dir={bundle.path.parent}", f"--keys={folder}/keys", f"--stall-seconds={STALL_S}"
        with serving.running([*target.command, *named], {"x-api-key": key}) as server:
            return asyncio.run(_Chaos(server, target, bundle, key, rng).run(seconds, every_s))


class _Chaos(Soak):
    def __init__(
        self, server: RunningServer, target: Target, bundle: Bundle, key: str, rng: np.random.Generator
    ) -> None:
        super().__init__(server, target)
        self._bundle, self._rng, self._end_s = bundle, rng, 0.0
        self._head = f"POST /solve/batch HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n".encode()
        self._head += b"content-type: application/x-ndjson\r\n"
        self._key = key

    async def run(self, seconds: float, every_s: float) -> Row:
        async with serving.client(self.server.url, {"x-api-key": self._key}) as self._http:
            self.solutions = [(await serving.post(self._http, body))[0]["solution"] for body in self.bodies]
            self._end_s = time.monotonic() + seconds
            singles = (batch[0] for batch in self._numbers(1))
            probe = asyncio.ensure_future(attacks.probe(self.server.url, self._end_s))
            await asyncio.gather(
                self._make_trouble(every_s),
                *(self.ask_all(self._http, singles) for _ in range(SINGLES)),
                *(self.stream_all(self._http, self._numbers(LINES)) for _ in range(STREAMS)),
            )
            times_s = await probe
        await asyncio.sleep(STALL_S + 2 * serving.SETTLED_S)
        slots = self.server.slots()
        bad = {what: self.counts[what] for what in ("wrong", "twice", "lost")}
        bad |= {"waiting": slots["waiting"], "places held": sum(one["requests"] for one in slots["lanes"])}
        return {
            "counts": dict(sorted(self.counts.items())),
            "livez": attacks.livez_row(times_s),
            "engines_lost": slots["engine"]["losses"],
            "faults": [f"{count} {what}" for what, count in bad.items() if count],
        }

    def _numbers(self, size: int) -> Iterator[list[int]]:
        while time.monotonic() < self._end_s:
            yield self._rng.integers(len(self.bodies), size=size).tolist()

    async def _make_trouble(self, every_s: float) -> None:
        """One trouble after another in random order, each of them once before any comes again."""
        troubles = self.kill, self.stop, self.reload, self.flood, self.crumble, self.read_slowly, self.leave
        made, order = set[asyncio.Task[None]](), list[int]()
        for _ in self._numbers(0):
            order = order or self._rng.permutation(len(troubles)).tolist()
            trouble = troubles[order.pop()]
            self.counts[f"made: {trouble.__name__}"] += 1
            made.add(asyncio.ensure_future(trouble()))
            tell(f"{trouble.__name__}: {self.counts['answered']} answered, {self.counts['wrong']} wrong")
            await asyncio.sleep(every_s)
        await asyncio.gather(*made)

    async def kill(self, number: int = signal.SIGKILL) -> None:
        engine = (await asyncio.to_thread(self.server.slots))["engine"]
        if engine["state"] == "ready":  # one that is stopped while it starts is not missed
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine["pid"], number)

    async def stop(self) -> None:
        await self.kill(signal.SIGSTOP)

    async def reload(self) -> None:
        path, bundle = f"/models/{self._bundle.manifest.name}", str(self._bundle.path)
        async with self._http.put(path, json={"bundle": bundle}) as response:
            self.counts[f"reload: {response.status}"] += 1

    async def flood(self) -> None:
        await asyncio.gather(*(self._say(b"GET / HT") for _ in range(FLOOD)))

    async def crumble(self) -> None:
        await asyncio.gather(*(self._say(self._head + b"".join(CRUMBS)) for _ in range(CRUMBLING)))

    async def read_slowly(self) -> None:
        lines = b"\n".join(self.bodies * 20)
        await self._say(self._head + b"content-length: %d\r\n\r\n" % len(lines) + lines)

    async def leave(self) -> None:
        said = self._head + b"content-length: 9999\r\n\r\n" + self.bodies[0] + b"\n"
        await asyncio.gather(*(self._say(said, dwell_s=number / LEAVING) for number in range(LEAVING)))

    async def _say(self, what: bytes, dwell_s: float = DWELL_S) -> None:
        """Say something, read nothing, and leave after a while."""
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(self.server.url).port, limit=1)
            writer.write(what)
            await asyncio.sleep(dwell_s)
            writer.transport.abort()
