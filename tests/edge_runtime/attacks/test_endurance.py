"""Many requests: each is answered once and correctly, and nothing is left behind."""

from __future__ import annotations

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripted_server import examples
from service_tools import PATIENCE_S, Server, resident_bytes, running, wait_for

import hrm_edge

pytestmark = pytest.mark.process

SOLUTIONS = examples()
NUM_STREAMS = 4  # connections that send batches
NUM_SINGLES = 16  # connections that send single puzzles
MAX_GROWTH_BYTES = 16 << 20  # while the second half of the requests is answered
MILLION = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.mark.parametrize("num_requests", [400, pytest.param(1_000_000, marks=MILLION)])
def test_every_request_is_answered_once_and_correctly_and_nothing_leaks(num_requests: int) -> None:
    with running(slots=32, queue_limit=256, step_s=0.0, segments=2) as server:
        pids = (server.process.pid, server.slots()["engine"]["pid"])
        descriptors = [num_descriptors(pid) for pid in pids]
        require_answers(server, num_requests // 2)
        warm_bytes = [resident_bytes(pid) for pid in pids]
        require_answers(server, num_requests // 2)
        for pid, before, before_bytes in zip(pids, descriptors, warm_bytes, strict=True):
            wait_for(lambda pid=pid, before=before: num_descriptors(pid) <= before)
            assert resident_bytes(pid) < before_bytes + MAX_GROWTH_BYTES
        wait_for(lambda: num_ended(server) == num_requests)
        slots = server.slots()
    assert slots["waiting"] == slots["engine"]["losses"] == 0
    (lane,) = slots["lanes"]
    assert lane["lane"]["num_active"] == lane["lane"]["num_queued"] == 0


def require_answers(server: Server, num_requests: int) -> None:
    """Send the puzzles over and over, half of them in batches."""
    questions = list(itertools.islice(itertools.cycle(SOLUTIONS), num_requests // 2))
    with (
        hrm_edge.Client(server.url, connections=NUM_STREAMS, patience_s=PATIENCE_S) as client,
        ThreadPoolExecutor(NUM_SINGLES) as pool,
    ):
        batches = pool.submit(client.solve_many, questions)
        singles = pool.map(client.solve, questions)
        solutions = [SOLUTIONS[question] for question in questions]
        for replies in (singles, batches.result()):
            assert [reply.solution for reply in replies] == solutions


def num_descriptors(pid: int) -> int:
    return len(os.listdir(Path(f"/proc/{pid}/fd")))


def num_ended(server: Server) -> int:
    (lane,) = server.slots()["lanes"]
    return sum(lane["lane"]["completed"].values())
