"""Processes that are killed, stopped, drained and interrupted: what clients see of it."""

import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest
from scripted_server import QUESTION
from service_tools import PATIENCE_S, Server, asking, is_gone, refusal, running, starting, wait_for

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def mortal() -> Iterator[Server]:
    """A server whose engine may be killed; each test leaves it ready."""
    with starting(step_s=0.3, segments=16, load_s=0.5, stall_seconds=2.0) as server:
        yield server


def test_killed_engine_fails_its_requests_at_once_and_comes_back(mortal: Server):
    mortal.wait_until_ready()
    losses = mortal.engine["losses"]
    begun = len(mortal.log)
    with asking(mortal, [QUESTION] * 6) as futures:
        os.kill(mortal.engine["pid"], signal.SIGKILL)
        answers = [future.result() for future in futures]
    for answer in answers:
        assert refusal(answer) == (503, "engine-lost")
        assert int(answer.headers["retry-after"]) >= 1
    assert mortal.status("/livez") == 200
    mortal.wait_until_ready()
    engine = mortal.engine
    assert engine["losses"] == losses + 1
    assert "was killed by signal 9 (SIGKILL), usually out of memory" in engine["last_error"]
    said = mortal.log[begun:]
    assert "engine lost: it was killed by signal 9 (SIGKILL)" in said
    assert said.rindex("refused: engine-lost") < said.index("engine ready")
    assert mortal.solve(QUESTION, max_segments=1).status_code == 200


def test_hung_engine_is_killed_and_replaced(mortal: Server):
    mortal.wait_until_ready()
    os.kill(mortal.engine["pid"], signal.SIGSTOP)
    with asking(mortal, [QUESTION]) as futures:
        assert refusal(futures[0].result()) == (503, "engine-lost")
    mortal.wait_until_ready()
    assert "engine lost: it was killed by this server" in mortal.log
    assert mortal.solve(QUESTION, max_segments=1).status_code == 200


def test_engine_dies_with_a_killed_server_even_in_a_long_step():
    with running(step_s=600.0) as server:
        pid = server.engine["pid"]
        with asking(server, [QUESTION]) as futures:
            time.sleep(0.5)  # now the step has begun
            server.process.kill()
            wait_for(lambda: is_gone(pid))
            assert isinstance(futures[0].exception(), httpx.TransportError)


def test_drain_answers_what_was_admitted_and_exits_with_0():
    with running(segments=8, drain_seconds=PATIENCE_S) as server:
        engine_pid = server.engine["pid"]
        os.kill(engine_pid, signal.SIGSTOP)  # nothing is answered before the server drains
        with asking(server, [QUESTION] * 6) as futures:
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.status("/readyz") == 503)
            assert server.http.get("/readyz").json()["error"]["reason"] == "draining"
            assert refusal(server.solve(QUESTION)) == (503, "draining")
            os.kill(engine_pid, signal.SIGCONT)
            for future in futures:
                assert future.result().json()["verified"]
        assert server.exit_status() == 0


def test_ctrl_c_ends_what_exceeds_the_drain_limit_with_503_and_leaves_no_traceback():
    with running(step_s=1.0, segments=16, drain_seconds=0.3) as server:
        pid = server.engine["pid"]
        with asking(server, [QUESTION] * 3) as futures:
            _interrupt_group(server)
            for future in futures:
                assert refusal(future.result()) == (503, "draining")
        assert server.exit_status() == 0
        assert "Traceback" not in server.log
        assert is_gone(pid)


def test_ctrl_c_while_loading_leaves_at_once_and_quietly():
    with starting(load_s=600.0) as server:
        _interrupt_group(server)
        assert server.exit_status() == 0
        assert "Traceback" not in server.log


def _interrupt_group(server: Server) -> None:
    """What a terminal does on Ctrl-C: every process of the group gets the signal."""
    os.killpg(server.process.pid, signal.SIGINT)
