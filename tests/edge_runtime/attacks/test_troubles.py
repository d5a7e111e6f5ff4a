"""A server in trouble: its engine is killed or stopped, its model is reloaded, clients misbehave.

Well-behaved clients send puzzles meanwhile. Each of their requests gets the known solution, exactly
once, or an error that names the reason. `/livez` answers throughout.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from attackers import ATTACKS, CHUNKED, endless
from bundle_tools import shipped
from checked_client import CheckedClient, session_of
from key_tools import ADMIN, write_key_file
from service_tools import Server, hrm_serve, seconds_of_livez, wait_for

from hrm_puzzles.data.sources import questions_made

pytestmark = pytest.mark.process

MODEL = "sudoku-6x6"
NUM_PUZZLES = 20
STALL_S = 2  # seconds without a step after which the engine is killed
QUEUE_LIMIT = 16  # a small queue, so that it fills up
NUM_SINGLES = 8  # connections with single puzzles
NUM_STREAMS = 2  # connections with batches
LINES = 100  # of a batch
FLOOD = 500  # connections of a flood
CRUMBLING = 8  # clients that send a body in chunks of one byte
LEAVING = 20  # clients that leave before their answer
ANSWERS_BETWEEN = 100  # correct answers that each trouble must let through
PROMISED_S = 0.1  # p99 of /livez in docs/promises.md
MANY_ROUNDS = pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


def known_solutions() -> dict[str, str]:
    puzzle = shipped(MODEL).puzzle
    solutions: dict[str, str] = {}
    for question in questions_made(puzzle, NUM_PUZZLES, difficulty="easy", seed=0):
        asked = puzzle.asked(puzzle.decode(question.tokens_T), "")
        solutions[str(asked)] = str(puzzle.asked(puzzle.decode(question.labels_T), ""))
    return solutions


SOLUTIONS = known_solutions()


@pytest.mark.parametrize("num_rounds", [1, MANY_ROUNDS])
def test_in_all_troubles_each_request_is_answered_once_and_correctly_or_told_why_not(
    tmp_path: Path, num_rounds: int
) -> None:
    path = shipped(MODEL).path
    sizes = ("--engine=cpu", "--threads=1", "--slots=4", f"--queue-limit={QUEUE_LIMIT}")
    rights = (f"--bundle-dir={path.parent}", f"--keys={write_key_file(tmp_path)}")
    stall = f"--stall-seconds={STALL_S}"
    with hrm_serve(path, *sizes, *rights, stall, key=ADMIN) as server:
        counts = asyncio.run(in_trouble(server, num_rounds))
        wait_for(lambda: server.slots()["waiting"] == 0)
        slots = server.slots()
        assert "Traceback" not in server.log
    assert (counts["wrong"], counts["twice"], counts["lost"]) == (0, 0, 0)
    reasons = {name for name in counts if name.startswith("refused: ")}
    assert reasons <= {"refused: engine-lost", "refused: queue-full"}
    assert slots["engine"]["losses"] == 2 * num_rounds
    assert sum(lane["requests"] for lane in slots["lanes"]) == 0


async def in_trouble(server: Server, num_rounds: int) -> Counter[str]:
    """Make every trouble in each round, in a random order; return what the clients counted."""
    rng = np.random.default_rng(0)
    is_over = asyncio.Event()
    livez_s: list[float] = []

    def batches(size: int) -> Iterator[list[int]]:
        while not is_over.is_set():
            yield rng.integers(NUM_PUZZLES, size=size).tolist()

    async with session_of(server.url, ADMIN) as http:
        client = CheckedClient(http, SOLUTIONS)
        sending: list[asyncio.Task[None]] = []
        for _ in range(NUM_SINGLES):
            singles = itertools.chain.from_iterable(batches(1))
            sending.append(asyncio.create_task(client.send_singles(singles)))
        for _ in range(NUM_STREAMS):
            sending.append(asyncio.create_task(client.send_batches(batches(LINES))))
        troubles = Troubles(server)
        for _ in range(num_rounds):
            for number in rng.permutation(len(troubles.all)):
                await troubles.all[number]()
                goal = client.counts["answered"] + ANSWERS_BETWEEN
                while client.counts["answered"] < goal:
                    livez_s.append(await asyncio.to_thread(seconds_of_livez, server))
                troubles.leave()
        is_over.set()
        await asyncio.gather(*sending)
    assert np.percentile(livez_s, 99) < PROMISED_S
    return client.counts


class Troubles:
    """The faults, one method each; `leave` ends the connections that the last one has opened."""

    def __init__(self, server: Server) -> None:
        self.all = [
            self.kill,
            self.stop,
            self.reload,
            self.flood,
            self.crumble,
            self.read_slowly,
            self.leave_early,
        ]
        self._server = server
        self._visitors: list[asyncio.StreamWriter] = []

    async def kill(self) -> None:
        await asyncio.to_thread(self._lose_engine, signal.SIGKILL)

    async def stop(self) -> None:
        await asyncio.to_thread(self._lose_engine, signal.SIGSTOP)

    def _lose_engine(self, number: int) -> None:
        engine = self._server.slots()["engine"]
        os.kill(engine["pid"], number)
        wait_for(lambda: self._server.slots()["engine"]["losses"] > engine["losses"])
        self._server.wait_until_ready()

    async def reload(self) -> None:
        content = {"bundle": str(shipped(MODEL).path)}
        put = self._server.http.put
        answer = await asyncio.to_thread(put, f"/models/{MODEL}", json=content)
        assert answer.status_code == 200

    async def flood(self) -> None:
        await self._visit(b"GET / HT", FLOOD)

    async def crumble(self) -> None:
        crumbs = ATTACKS["crumbs"].rest
        await self._visit(
            endless("/solve/batch", f"x-api-key: {ADMIN}", CHUNKED) + crumbs, CRUMBLING
        )

    async def read_slowly(self) -> None:
        await self._visit(self._batch(200 * NUM_PUZZLES), 1)

    async def leave_early(self) -> None:
        await self._visit(self._batch(1), LEAVING)
        self.leave()

    def leave(self) -> None:
        for writer in self._visitors:
            writer.transport.abort()
        self._visitors.clear()

    def _batch(self, num_lines: int) -> bytes:
        """Return a batch that ends before its promised length."""
        question = next(iter(SOLUTIONS))
        lines = num_lines * f'{{"puzzle":"{question}"}}\n'.encode()
        length = f"content-length: {len(lines) + 1}"
        return endless("/solve/batch", f"x-api-key: {ADMIN}", length) + lines

    async def _visit(self, content: bytes, count: int) -> None:
        """Connect and send the content, and read nothing."""
        for _ in range(count):
            _, writer = await asyncio.open_connection("127.0.0.1", self._server.port, limit=1)
            self._visitors.append(writer)
            writer.write(content)
