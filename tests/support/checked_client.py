"""A client that sends puzzles by their numbers, checks every answer, and counts."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp

READ_TIMEOUT_S = 300.0  # a puzzle may wait behind a long queue
RETRY_S = 0.05  # seconds until a refused puzzle is sent again
AS_JSON = {"content-type": "application/json"}
AS_LINES = {"content-type": "application/x-ndjson"}

Reply = dict[str, Any]


def session_of(url: str, key: str = "none") -> aiohttp.ClientSession:
    """Return a session with any number of connections, all kept alive."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=READ_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"x-api-key": key}
    return aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=timeout)


class CheckedClient:
    """`counts` holds answered, wrong, twice and lost.

    It also holds `refused` for each 503 that is sent again, and `refused: REASON` for each error.
    """

    def __init__(self, http: aiohttp.ClientSession, solutions: dict[str, str]) -> None:
        self.counts = Counter[str]()
        self._http = http
        self._bodies = [json.dumps({"puzzle": question}).encode() for question in solutions]
        self._solutions = list(solutions.values())

    async def send_batches(self, batches: Iterable[Sequence[int]]) -> None:
        """Send one batch after another over one connection."""
        for batch in batches:
            seen: set[int] = set()
            lines = b"\n".join(self._bodies[number] for number in batch)
            async with self._http.post("/solve/batch", data=lines, headers=AS_LINES) as response:
                async for raw in response.content:
                    reply = json.loads(raw)
                    line = reply["line"]
                    self.counts["twice"] += line in seen
                    seen.add(line)
                    self._count(reply, batch[line - 1])
            self.counts["lost"] += len(batch) - len(seen)

    async def send_singles(self, numbers: Iterable[int]) -> None:
        """Send one puzzle after another over one connection; send a puzzle again after a 503."""
        for number in numbers:
            reply, status = await self._accepted(number)
            if status == 200:
                reply = {"answer": reply}
            self._count(reply, number)

    async def _accepted(self, number: int) -> tuple[Reply, int]:
        while True:
            body = self._bodies[number]
            async with self._http.post("/solve", data=body, headers=AS_JSON) as response:
                reply = await response.json()
            if response.status != 503:
                return reply, response.status
            self.counts["refused"] += 1
            await asyncio.sleep(RETRY_S)

    def _count(self, reply: Reply, number: int) -> None:
        if "answer" in reply:
            solution = reply["answer"]["solution"]
            self.counts["answered"] += 1
            self.counts["wrong"] += solution != self._solutions[number]
        else:
            reason = reply["error"]["reason"]
            self.counts[f"refused: {reason}"] += 1
