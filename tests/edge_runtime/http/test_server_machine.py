"""A real server under anything in any order, beside a model of the truth: every request is answered once and right.

Its requests run while others are asked, leave, its model is reloaded and its engine is killed. What was asked since the
last settlement says which refusals may come.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo_bundle import write_echo_bundle
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from scripted_server import examples
from service_tools import Server, ask_and_stay, command, wait_for

from hrm_edge_runtime.http.auth import Key, hash_of, new_secret, write_keys

pytestmark = pytest.mark.process
KEY = new_secret()
BOARDS = list(examples().values())  # complete, so that the echo model solves them
MAX_SEGMENTS = {"one": 300, "two": 500}
PLACES = 6  # of two slots and four in line
HEALTHY_S = 10.0  # an engine that has lived so long is started again at once
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A board that is complete, or lacks its last cell and so takes all of its segments."""

    board: str
    is_open: bool
    segments: int
    deadline_ms: int | None

    @property
    def body(self) -> dict[str, Any]:
        puzzle = self.board[:-1] + "." if self.is_open else self.board
        body = {"puzzle": puzzle, "max_segments": self.segments}
        return body if self.deadline_ms is None else {**body, "deadline_ms": self.deadline_ms}

    def check(self, said: Any, refusals: set[str]) -> None:
        if "error" in said:
            allowed = refusals | ({"deadline-missed", "cannot-make-deadline"} if self.deadline_ms else set())
            assert said["error"]["reason"] in allowed, said
        else:
            assert said["solution"] == self.body["puzzle"]
            assert said["status"] == ("unfinished" if self.is_open else "proven")
            assert said["segments"] == (self.segments if self.is_open else 1)


questions = st.builds(
    Question,
    board=st.sampled_from(BOARDS),
    is_open=st.booleans(),
    segments=st.integers(1, min(MAX_SEGMENTS.values())),
    deadline_ms=st.none() | st.integers(1, 300),
)


@dataclass(kw_only=True)
class House:
    """The server that all examples share, and how often its engine may be killed at once."""

    server: Server
    pool: ThreadPoolExecutor
    kills: int = 1
    losses: int = 0
    ready_s: float = field(default_factory=time.monotonic)

    @property
    def may_kill(self) -> bool:
        return self.ready_s < time.monotonic() - (0 if self.kills > 0 else HEALTHY_S)


class AnyServer(RuleBasedStateMachine):
    house: House

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Future[httpx.Response], list[Question], bool]] = []
        self.num_asked, self.is_killed = 0, False

    @rule(asked=st.lists(questions, min_size=1, max_size=8))
    def ask(self, asked: list[Question]) -> None:
        for one in asked:
            answer = self.house.pool.submit(self.house.server.http.post, "/solve", json=one.body)
            self.asked.append((answer, [one], False))
        self.num_asked += len(asked)

    @rule(asked=st.lists(questions, min_size=1, max_size=30))
    def ask_as_batch(self, asked: list[Question]) -> None:
        lines = "\n".join(json.dumps(one.body) for one in asked)
        post = self.house.server.http.post
        self.asked.append((self.house.pool.submit(post, "/solve/batch", content=lines, headers=NDJSON), asked, True))
        self.num_asked += PLACES // 2

    @rule(one=questions, is_batch=st.booleans())
    def ask_and_leave(self, one: Question, is_batch: bool) -> None:
        route = "/solve/batch" if is_batch else "/solve"
        ask_and_stay(self.house.server, route=route, key=KEY, **one.body).close()
        self.num_asked += 1

    @rule(version=st.sampled_from(list(MAX_SEGMENTS)))
    def reload(self, version: str) -> None:
        done = self.house.server.http.put("/models/echo", json={"bundle": version})
        assert done.status_code == 200 or (self.is_killed and done.status_code == 503), done.text

    @rule()
    def kill(self) -> None:
        if not self.house.may_kill:  # no precondition: Hypothesis must not see what depends on time
            return
        self.house.kills -= 1
        self.house.losses += 1
        self.house.ready_s = float("inf")
        self.is_killed = True
        os.kill(self.house.server.slots()["engine"]["pid"], signal.SIGKILL)

    @rule()
    def settle(self) -> None:
        refusals = {"engine-lost", "loading"} if self.is_killed else set[str]()
        for answer, asked, is_batch in self.asked:
            response = answer.result(60)
            if is_batch:
                said = {line["line"]: line.get("answer", line) for line in map(json.loads, response.text.splitlines())}
                assert len(said) == len(response.text.splitlines()) == len(asked)
                for number, one in enumerate(asked, 1):
                    one.check(said[number], refusals)
            else:
                asked[0].check(response.json(), refusals | ({"queue-full"} if self.num_asked > PLACES else set()))
        if self.is_killed:
            wait_for(lambda: self.house.server.slots()["engine"]["losses"] == self.house.losses)
            self.house.server.wait_until_ready()
            self.house.ready_s = time.monotonic()
        wait_for(lambda: _is_idle(self.house.server.slots()))
        self.asked, self.num_asked, self.is_killed = [], 0, False

    def teardown(self) -> None:
        self.settle()
        assert self.house.server.process.poll() is None
        assert "Traceback" not in self.house.server.log


def _is_idle(slots: Any) -> bool:
    (lane,) = slots["lanes"]
    return slots["waiting"] == lane["requests"] == 0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("bundles")
    for name, max_segments in MAX_SEGMENTS.items():
        write_echo_bundle(folder / f"{name}.bundle", name="echo", max_segments=max_segments)
    write_keys(folder / "keys", [Key(label="a", role="admin", sha256=hash_of(KEY))])
    options = ["--threads=1", "--slots=2", "--queue-limit=4", f"--keys={folder}/keys", f"--bundle-dir={folder}"]
    with (
        ThreadPoolExecutor(64) as pool,
        Server(command("serve", folder / "one.bundle", *options), headers={"x-api-key": KEY}) as server,
    ):
        server.wait_until_ready()
        yield House(server=server, pool=pool)


@pytest.mark.parametrize(
    ("num_examples", "num_steps"), [(3, 10), pytest.param(30, 30, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_every_request_is_answered_once_and_right_whatever_happens(
    house: House, num_examples: int, num_steps: int
) -> None:
    AnyServer.house = house
    run_state_machine_as_test(
        AnyServer,
        settings=settings(
            max_examples=num_examples,
            stateful_step_count=num_steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
