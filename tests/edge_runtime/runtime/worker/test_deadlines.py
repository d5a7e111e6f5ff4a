"""Admission, deadlines, priorities and departures on all three routes that solve."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import Script, ScriptedEngine
from scripted_server import PUZZLE, QUESTION
from service_tools import Server, ask_and_stay, refusal, running, wait_for

from hrm_edge.client import Client
from hrm_edge.errors import ServerError
from hrm_edge_runtime.batching.task import Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import StepOutput

pytestmark = pytest.mark.process

ROUTES = ("/solve", "/solve/stream", "/solve/batch")
SEEN_S = 0.35  # the promise, and a segment


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """One slot, sixteen segments of a tenth of a second; each test leaves it empty."""
    with running(slots=1, queue_limit=32, step_s=0.1, segments=16) as server:
        assert server.solve(QUESTION).json()["verified"]
        yield server


def told(server: Server, route: str, **fields: object) -> Any:
    """The answer or the error that a client gets by a route."""
    with Client(server.url) as client:
        try:
            if route == "/solve":
                return client.solve(QUESTION, **fields)
            if route == "/solve/stream":
                *_, last = client.stream(QUESTION, **fields)
                return last
            (reply,) = client.solve_many([QUESTION], **fields)
            return reply
        except ServerError as error:
            return error.detail


@contextmanager
def crowd(server: Server, size: int, *, route: str = "/solve", **fields: object) -> Iterator[None]:
    """`size` requests wait in the engine until the test leaves this context."""
    with ExitStack() as stack:
        for _ in range(size):
            stack.enter_context(ask_and_stay(server, QUESTION, route, **fields))
        wait_for(lambda: server.num_waiting == size)
        yield
    wait_for(lambda: server.num_waiting == 0, every_s=0.005)


@pytest.mark.parametrize("route", ROUTES)
def test_best_so_far_comes_at_the_deadline(slow: Server, route: str):
    best = told(slow, route, deadline_ms=900, best_so_far=True)
    assert (best.halted_by, best.status, best.verified) == ("deadline", "unfinished", False)
    assert 1 <= best.segments < 16
    late = told(slow, route, deadline_ms=500)  # a stream has begun
    assert late.reason == "deadline-missed"


@pytest.mark.parametrize("route", ROUTES)
def test_a_puzzle_that_never_got_a_slot_has_no_best_so_far(slow: Server, route: str):
    with crowd(slow, 1):
        error = told(slow, route, deadline_ms=100, best_so_far=True, priority=-3)
    assert error.reason == "deadline-missed"


def test_only_an_impossible_deadline_is_rejected_at_once_and_greater_priority_goes_first(
    slow: Server,
):
    with crowd(slow, 12, priority=1):
        for route in ("/solve", "/solve/stream"):
            body = {"puzzle": QUESTION, "deadline_ms": 200}
            response = slow.http.post(route, json=body)
            assert refusal(response) == (503, "cannot-make-deadline")
            assert int(response.headers["retry-after"]) >= 1
        assert told(slow, "/solve/batch", deadline_ms=200).reason == "cannot-make-deadline"
        # nobody is ahead of it but the one in the slot
        urgent = slow.solve(QUESTION, deadline_ms=200, priority=3)
        assert refusal(urgent) == (504, "deadline-missed")
        patient = slow.solve(QUESTION, deadline_ms=60_000, max_segments=1, priority=3)
        assert patient.status_code == 200
        assert slow.num_waiting > 6


@pytest.mark.parametrize("route", ROUTES)
def test_a_closed_connection_is_seen_within_a_quarter_of_a_second(slow: Server, route: str):
    seen_s = []
    for _ in range(3):
        with crowd(slow, 3, route=route):
            left_s = time.monotonic()
        seen_s.append(time.monotonic() - left_s)
    assert min(seen_s) < SEEN_S


@given(
    segments=st.lists(st.integers(1, 6), min_size=1, max_size=24),
    num_slots=st.integers(1, 4),
    num_at_once=st.integers(1, 24),
)
@settings(max_examples=60)
def test_least_wait_is_lower_bound(segments: list[int], num_slots: int, num_at_once: int):
    """So admission refuses nothing that could have begun in time."""
    lane, engine = timed_lane(num_slots, segments)
    bound_s = {}
    waited_s = {}
    todo = list(range(len(segments)))
    while todo or lane.has_work:
        for task_id in todo[:num_at_once]:
            num_ahead = len(bound_s) - len(waited_s)
            bound_s[task_id] = lane.snapshot().least_wait_s(num_ahead)
            lane.submit(_ask(task_id, engine.now))
        del todo[:num_at_once]
        for one in lane.step()[0]:
            waited_s[one.task_id] = one.queue_s
    for task_id in range(len(segments)):
        assert bound_s[task_id] <= waited_s[task_id]


def test_the_best_so_far_of_several_attempts_is_told_in_time():
    lane, engine = timed_lane(2, [9] * 4)
    lane.submit(_ask(0, 0.0, deadline_s=4.25, best_effort=True))
    lane.submit(_ask(1, 0.0, deadline_s=4.25))
    results = {}
    ended_s = {}
    while lane.has_work:
        for one in lane.step()[0]:
            results[one.task_id] = one
            ended_s[one.task_id] = engine.now
    best = results[0]
    assert (best.halted_by, best.segments, ended_s[0]) == ("deadline", 4, 4.5)
    assert best.queue_s + best.compute_s <= 4.25
    assert results[1].halted_by == "deadline"


class Timed(ScriptedEngine):
    """Has a clock, on which a segment takes a second with all slots and half of one with fewer."""

    now = 0.0

    def step(self, num_active: int) -> StepOutput:
        self.now += 1.0 if num_active == self.num_slots else 0.5
        return super().step(num_active)


def timed_lane(num_slots: int, segments: list[int]) -> tuple[TaskLane, Timed]:
    plays = iter(segments)

    def play(tokens_T: np.ndarray) -> Script:
        return Script(answer_T=tokens_T, segments=next(plays))

    engine = Timed(num_slots=num_slots, seq_len=16, play=play)
    table_PE = np.zeros((1, 4), np.float32)
    lane = TaskLane(engine, PUZZLE, table_PE, queue_limit=64, clock=lambda: engine.now)
    return lane, engine


def _ask(task_id: int, arrival_s: float, **fields: Any) -> Task:
    tokens_T = np.ones(16, np.int32)
    policy = HaltingPolicy(kind="learned", max_segments=16)
    return Task(task_id=task_id, tokens_T=tokens_T, policy=policy, arrival_s=arrival_s, **fields)
