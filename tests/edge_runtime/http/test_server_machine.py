"""A real server under anything in any order: every request is answered once and right.

Requests come singly, in batches, ahead of answers, with trailers and offers of other protocols, or
their clients leave. The model is reloaded, the engine killed, and the whole server paused. No line
of a batch names its model. What was asked since the last settlement says which refusals may come.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from echo_bundle import write_echo_bundle
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from key_tools import ADMIN, write_key_file
from scripted_server import examples
from service_tools import Server, ask_and_stay, hrm_serve, wait_for

pytestmark = pytest.mark.process
MAX_SEGMENTS = {"one": 300, "two": 500}
PLACES = 6  # of two slots and four in line
HEALTHY_S = 10.0  # an engine that has lived so long is started again at once
NDJSON = {"content-type": "application/x-ndjson"}
ROUTES = ("/solve", "/solve/stream", "/solve/batch")


@dataclass(frozen=True, kw_only=True)
class Question:
    """A Sudoku or a maze that is complete, or lacks something and so takes all of its segments."""

    board: str
    is_proven: bool
    segments: int
    deadline_ms: int | None

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"puzzle": self.board, "max_segments": self.segments}
        if self.deadline_ms is not None:
            body["deadline_ms"] = self.deadline_ms
        return body

    def check(self, answer: Any, refusals: set[str]) -> None:
        if "error" in answer:
            allowed = refusals
            if self.deadline_ms is not None:
                allowed = refusals | {"deadline-missed", "cannot-make-deadline"}
            assert answer["error"]["reason"] in allowed, answer
            return
        status, segments = ("proven", 1) if self.is_proven else ("unfinished", self.segments)
        assert answer["solution"] == self.board
        assert (answer["status"], answer["segments"]) == (status, segments)


BOARDS = {
    **dict.fromkeys(examples().values(), True),
    **{board[:-1] + ".": False for board in examples().values()},
    "SG..." + 20 * "#": True,
    "S.G.." + 20 * "#": False,
}


@st.composite
def questions(draw: st.DrawFn) -> Question:
    board = draw(st.sampled_from(list(BOARDS)))
    segments = draw(st.integers(1, min(MAX_SEGMENTS.values())))
    deadline_ms = draw(st.none() | st.integers(1, 300))
    return Question(
        board=board, is_proven=BOARDS[board], segments=segments, deadline_ms=deadline_ms
    )


def head(*headers: str) -> bytes:
    lines = [
        "POST /solve HTTP/1.1",
        "host: x",
        f"x-api-key: {ADMIN}",
        "content-type: application/json",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(one: Question, *headers: str) -> bytes:
    body = json.dumps(one.body).encode()
    return head(f"content-length: {len(body)}", *headers) + body


def with_trailers(one: Question) -> bytes:
    body = json.dumps(one.body).encode()
    chunk = b"%x\r\n%s\r\n" % (len(body), body)
    return head("transfer-encoding: chunked") + chunk + b"0\r\norigin: http://x\r\n\r\n"


def answers_to(port: int, request: bytes, count: int) -> list[Any]:
    """Send these bytes in one piece, and read so many answers."""
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            return [next_answer(stream) for _ in range(count)]


def next_answer(stream: BinaryIO) -> Any:
    length = 0
    line = stream.readline()
    while line != b"\r\n":
        assert line, "the connection was closed"
        if line.lower().startswith(b"content-length:"):
            length = int(line.split()[1])
        line = stream.readline()
    return json.loads(stream.read(length))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Questions whose answers come in their order."""

    questions: list[Question]
    answers: Future[list[Any]]
    is_batch: bool


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
        healthy_s = time.monotonic() - self.ready_s
        return healthy_s > (0 if self.kills > 0 else HEALTHY_S)


class AnyServer(RuleBasedStateMachine):
    house: House

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def _forget(self) -> None:
        self.asked: list[Asked] = []
        self.num_asked = 0
        self.is_killed = False

    def _ask(
        self,
        answers: Callable[[], list[Any]],
        asked: list[Question],
        *,
        is_batch: bool = False,
    ) -> None:
        future = self.house.pool.submit(answers)
        self.asked.append(Asked(questions=asked, answers=future, is_batch=is_batch))
        self.num_asked += PLACES // 2 if is_batch else len(asked)

    @rule(asked=st.lists(questions(), min_size=1, max_size=8))
    def ask(self, asked: list[Question]) -> None:
        post = self.house.server.http.post
        for one in asked:
            self._ask(lambda one=one: [post("/solve", json=one.body).json()], [one])

    @rule(asked=st.lists(questions(), min_size=1, max_size=30))
    def ask_as_batch(self, asked: list[Question]) -> None:
        """No line names its model."""
        content = "\n".join(json.dumps(one.body) for one in asked)

        def answers() -> list[Any]:
            response = self.house.server.http.post("/solve/batch", content=content, headers=NDJSON)
            lines = list(map(json.loads, response.text.splitlines()))
            lines.sort(key=lambda line: line["line"])
            found: list[Any] = []
            for number, line in enumerate(lines, start=1):
                assert line["line"] == number
                found.append(line.get("answer", line))
            return found

        self._ask(answers, asked, is_batch=True)

    @rule(asked=st.lists(questions(), min_size=2, max_size=4))
    def ask_ahead(self, asked: list[Question]) -> None:
        request = b"".join(whole(one) for one in asked)
        self._ask(lambda: answers_to(self.house.server.port, request, len(asked)), asked)

    @rule(one=questions(), protocol=st.sampled_from(["h2c", "websocket", "x"]))
    def ask_with_upgrade(self, one: Question, protocol: str) -> None:
        request = whole(one, "connection: upgrade", f"upgrade: {protocol}")
        self._ask(lambda: answers_to(self.house.server.port, request, 1), [one])

    @rule(one=questions())
    def ask_with_trailers(self, one: Question) -> None:
        self._ask(lambda: answers_to(self.house.server.port, with_trailers(one), 1), [one])

    @rule(one=questions(), route=st.sampled_from(ROUTES), is_ahead=st.booleans())
    def ask_and_leave(self, one: Question, route: str, is_ahead: bool) -> None:
        connection = ask_and_stay(self.house.server, route=route, key=ADMIN, **one.body)
        if is_ahead:
            connection.sendall(whole(one))
        connection.close()
        self.num_asked += 2

    @rule(pause_s=st.sampled_from([0.01, 0.2]))
    def pause(self, pause_s: float) -> None:
        group = self.house.server.process.pid
        os.killpg(group, signal.SIGSTOP)
        time.sleep(pause_s)
        os.killpg(group, signal.SIGCONT)

    @rule(version=st.sampled_from(list(MAX_SEGMENTS)))
    def reload(self, version: str) -> None:
        done = self.house.server.http.put("/models/echo", json={"bundle": version})
        allowed = {200, 503} if self.is_killed else {200}
        assert done.status_code in allowed, done.text

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
        for asked in self.asked:
            refusals = self._refusals_of(asked)
            for one, answer in zip(asked.questions, asked.answers.result(60), strict=True):
                one.check(answer, refusals)
        if self.is_killed:
            wait_for(lambda: self.house.server.slots()["engine"]["losses"] == self.house.losses)
            self.house.server.wait_until_ready()
            self.house.ready_s = time.monotonic()
        wait_for(lambda: _is_idle(self.house.server.slots()))
        self._forget()

    def _refusals_of(self, asked: Asked) -> set[str]:
        refusals: set[str] = set()
        if self.is_killed:
            refusals |= {"engine-lost", "loading"}
        if self.num_asked > PLACES and not asked.is_batch:
            refusals.add("queue-full")
        return refusals

    def teardown(self) -> None:
        self.settle()
        assert self.house.server.process.poll() is None
        assert "Traceback" not in self.house.server.log


def _is_idle(slots: Any) -> bool:
    return slots["waiting"] == sum(lane["requests"] for lane in slots["lanes"]) == 0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("bundles")
    for name, max_segments in MAX_SEGMENTS.items():
        write_echo_bundle(folder / f"{name}.bundle", name="echo", max_segments=max_segments)
    mazes = folder / "mazes.bundle"
    write_echo_bundle(mazes, name="mazes", puzzle="maze-5x5", max_segments=300)
    bundles = [folder / "one.bundle", folder / "mazes.bundle"]
    options = [f"--keys={write_key_file(folder)}", f"--bundle-dir={folder}", "--threads=1"]
    serve = hrm_serve(*bundles, *options, "--slots=2", "--queue-limit=4", key=ADMIN)
    with ThreadPoolExecutor(64) as pool, serve as server:
        yield House(server=server, pool=pool)


@pytest.mark.parametrize(
    ("num_examples", "num_steps"),
    [(3, 10), pytest.param(30, 30, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_every_request_is_answered_once(house: House, num_examples: int, num_steps: int) -> None:
    AnyServer.house = house
    chosen = settings(
        max_examples=num_examples,
        stateful_step_count=num_steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(AnyServer, settings=chosen)
