"""Many requests: each is answered once and correctly, and nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from checked_client import CheckedClient, session_of
from scripted_server import examples
from service_tools import Server, resident_bytes, running, wait_for

pytestmark = pytest.mark.process

SOLUTIONS = examples()
NUM_STREAMS = 4  # connections that send batches
NUM_SINGLES = 16  # connections that send single puzzles
LINES_PER_BATCH = 500
MAX_GROWTH_BYTES = 16 << 20  # while the second half of the requests is answered
MILLION = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.mark.parametrize("num_requests", [400, pytest.param(1_000_000, marks=MILLION)])
def test_every_request_is_answered_once_and_correctly_and_nothing_leaks(num_requests: int) -> None:
    with running(slots=32, queue_limit=256, step_s=0.0, segments=2) as server:
        pids = (server.process.pid, server.slots()["engine"]["pid"])
        descriptors = [num_descriptors(pid) for pid in pids]
        counts = asyncio.run(answered(server, num_requests // 2))
        warm_bytes = [resident_bytes(pid) for pid in pids]
        counts += asyncio.run(answered(server, num_requests // 2))
        for pid, before, before_bytes in zip(pids, descriptors, warm_bytes, strict=True):
            wait_for(lambda pid=pid, before=before: num_descriptors(pid) <= before)
            assert resident_bytes(pid) < before_bytes + MAX_GROWTH_BYTES
        wait_for(lambda: num_ended(server) == num_requests)
        slots = server.slots()
    del counts["refused"]
    assert counts == {"answered": num_requests}
    assert slots["waiting"] == slots["engine"]["losses"] == 0
    (lane,) = slots["lanes"]
    assert lane["lane"]["num_active"] == lane["lane"]["num_queued"] == 0


async def answered(server: Server, num_requests: int) -> Counter[str]:
    """Send the puzzles over and over, half of them in batches; return what the client counted."""
    numbers = itertools.cycle(range(len(SOLUTIONS)))
    num_lines = num_requests // 2
    batches = batches_of(numbers, num_lines)
    singles = itertools.islice(numbers, num_requests - num_lines)
    async with session_of(server.url) as http:
        client = CheckedClient(http, SOLUTIONS)
        sending = [client.send_batches(batches) for _ in range(NUM_STREAMS)]
        sending += [client.send_singles(singles) for _ in range(NUM_SINGLES)]
        await asyncio.gather(*sending)
    return client.counts


def batches_of(numbers: Iterator[int], num_lines: int) -> Iterator[list[int]]:
    for start in range(0, num_lines, LINES_PER_BATCH):
        size = min(LINES_PER_BATCH, num_lines - start)
        yield list(itertools.islice(numbers, size))


def num_descriptors(pid: int) -> int:
    return len(os.listdir(Path(f"/proc/{pid}/fd")))


def num_ended(server: Server) -> int:
    (lane,) = server.slots()["lanes"]
    return sum(lane["lane"]["completed"].values())
