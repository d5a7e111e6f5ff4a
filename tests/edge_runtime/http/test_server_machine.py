"""A real server under anything in any order, beside a model of the truth: every request is answered once and right.

Its requests run while others are asked, sent ahead, with offers of other protocols and with trailers, or leave. Its
model is reloaded, its engine killed, and the whole server paused. No line of a batch names its model. What was asked
since the last settlement says which refusals may come.
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
from typing import Any

import pytest
from echo_bundle import write_echo_bundle, write_echo_mazes
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from scripted_server import examples
from service_tools import Server, ask_and_stay, command, wait_for

from hrm_edge_runtime.http.auth import Key, hash_of, new_secret, write_keys

pytestmark = pytest.mark.process
KEY = new_secret()
MAX_SEGMENTS = {"one": 300, "two": 500}
PLACES = 6  # of two slots and four in line
HEALTHY_S = 10.0  # an engine that has lived so long is started again at once
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """A Sudoku or a maze that is complete, or lacks something and so takes all of its segments."""

    board: str
    is_proven: bool
    segments: int
    deadline_ms: int | None

    @property
    def body(self) -> dict[str, Any]:
        body = {"puzzle": self.board, "max_segments": self.segments}
        return body if self.deadline_ms is None else {**body, "deadline_ms": self.deadline_ms}

    def check(self, said: Any, refusals: set[str]) -> None:
        if "error" in said:
            allowed = refusals | (
                {"deadline-missed", "cannot-make-deadline"} if self.deadline_ms else set()
            )
            assert said["error"]["reason"] in allowed, said
        else:
            assert said["solution"] == self.board
            assert said["status"] == ("proven" if self.is_proven else "unfinished")
            assert said["segments"] == (1 if self.is_proven else self.segments)


BOARDS = {
    **dict.fromkeys(examples().values(), True),
    **{board[:-1] + ".": False for board in examples().values()},
    "SG..." + 20 * "#": True,
    "S.G.." + 20 * "#": False,
}
questions = st.builds(
    lambda board, segments, deadline_ms: Question(
        board=board, is_proven=BOARDS[board], segments=segments, deadline_ms=deadline_ms
    ),
    board=st.sampled_from(list(BOARDS)),
    segments=st.integers(1, min(MAX_SEGMENTS.values())),
    deadline_ms=st.none() | st.integers(1, 300),
)


def head(*headers: str) -> bytes:
    lines = [
        "POST /solve HTTP/1.1",
        "host: x",
        f"x-api-key: {KEY}",
        "content-type: application/json",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def whole(one: Question, *headers: str) -> bytes:
    body = json.dumps(one.body).encode()
    return head(f"content-length: {len(body)}", *headers) + body


def with_trailers(one: Question) -> bytes:
    body = json.dumps(one.body).encode()
    return head("transfer-encoding: chunked") + b"%x\r\n%s\r\n0\r\norigin: http://x\r\n\r\n" % (
        len(body),
        body,
    )


def answers_to(port: int, request: bytes, count: int) -> list[Any]:
    """Send these bytes in one piece, and read so many answers."""
    found: list[Any] = []
    with (
        socket.create_connection(("127.0.0.1", port), 60) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(request)
        for _ in range(count):
            length = 0
            while (line := answers.readline()) != b"\r\n":
                assert line, "the connection was closed"
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split()[1])
            found.append(json.loads(answers.read(length)))
    return found


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
        self.asked: list[tuple[Future[list[Any]], list[Question], bool]] = []
        self.num_asked, self.is_killed = 0, False

    def _ask(
        self, said: Callable[[], list[Any]], asked: list[Question], *, is_batch: bool = False
    ) -> None:
        self.asked.append((self.house.pool.submit(said), asked, is_batch))
        self.num_asked += PLACES // 2 if is_batch else len(asked)

    @rule(asked=st.lists(questions, min_size=1, max_size=8))
    def ask(self, asked: list[Question]) -> None:
        post = self.house.server.http.post
        for one in asked:
            self._ask(lambda one=one: [post("/solve", json=one.body).json()], [one])

    @rule(asked=st.lists(questions, min_size=1, max_size=30))
    def ask_as_batch(self, asked: list[Question]) -> None:
        """No line names its model."""
        lines = "\n".join(json.dumps(one.body) for one in asked)

        def said() -> list[Any]:
            response = self.house.server.http.post("/solve/batch", content=lines, headers=NDJSON)
            found = sorted(
                map(json.loads, response.text.splitlines()), key=lambda line: line["line"]
            )
            assert [line["line"] for line in found] == list(range(1, len(asked) + 1))
            return [line.get("answer", line) for line in found]

        self._ask(said, asked, is_batch=True)

    @rule(asked=st.lists(questions, min_size=2, max_size=4))
    def ask_ahead(self, asked: list[Question]) -> None:
        request = b"".join(whole(one) for one in asked)
        self._ask(lambda: answers_to(self.house.server.port, request, len(asked)), asked)

    @rule(one=questions, protocol=st.sampled_from(["h2c", "websocket", "x"]))
    def ask_with_upgrade(self, one: Question, protocol: str) -> None:
        request = whole(one, "connection: upgrade", f"upgrade: {protocol}")
        self._ask(lambda: answers_to(self.house.server.port, request, 1), [one])

    @rule(one=questions)
    def ask_with_trailers(self, one: Question) -> None:
        self._ask(lambda: answers_to(self.house.server.port, with_trailers(one), 1), [one])

    @rule(one=questions, is_batch=st.booleans(), is_ahead=st.booleans())
    def ask_and_leave(self, one: Question, is_batch: bool, is_ahead: bool) -> None:
        route = "/solve/batch" if is_batch else "/solve"
        connection = ask_and_stay(self.house.server, route=route, key=KEY, **one.body)
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
        for future, asked, is_batch in self.asked:
            full = {"queue-full"} if self.num_asked > PLACES and not is_batch else set[str]()
            for one, said in zip(asked, future.result(60), strict=True):
                one.check(said, refusals | full)
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
    return slots["waiting"] == sum(lane["requests"] for lane in slots["lanes"]) == 0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("bundles")
    for name, max_segments in MAX_SEGMENTS.items():
        write_echo_bundle(folder / f"{name}.bundle", name="echo", max_segments=max_segments)
    write_echo_mazes(folder / "mazes.bundle", name="mazes", max_segments=min(MAX_SEGMENTS.values()))
    write_keys(folder / "keys", [Key(label="a", role="admin", sha256=hash_of(KEY))])
    options = [
        "--threads=1",
        "--slots=2",
        "--queue-limit=4",
        f"--keys={folder}/keys",
        f"--bundle-dir={folder}",
    ]
    bundles = folder / "one.bundle", folder / "mazes.bundle"
    with (
        ThreadPoolExecutor(64) as pool,
        Server(command("serve", *bundles, *options), headers={"x-api-key": KEY}) as server,
    ):
        server.wait_until_ready()
        yield House(server=server, pool=pool)


@pytest.mark.parametrize(
    ("num_examples", "num_steps"),
    [(3, 10), pytest.param(30, 30, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
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
