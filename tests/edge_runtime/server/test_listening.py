"""Where a server listens, how long it keeps a connection, and how it pauses and stops."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from files import lines_in
from scripted_server import QUESTION
from service_tools import (
    PATIENCE_S,
    Server,
    ask_and_stay,
    command,
    head,
    running,
    starting,
    wait_for,
)

from hrm_edge_server.server import bound_sockets

pytestmark = pytest.mark.process
LINE = json.dumps({"puzzle": QUESTION}).encode() + b"\n"
BATCH = head("POST /solve/batch", "transfer-encoding: chunked")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_are_those_of_both_families_and_idle_ones_are_kept_as_promised(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("WEB_CONCURRENCY", "all")  # as platforms set it; one process serves
    with starting(host="[::]", keep_alive_seconds=1) as server:
        answer = httpx.get(f"http://[::1]:{server.port}/livez", timeout=PATIENCE_S)
        assert answer.status_code == 200
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            asked_s = time.monotonic()
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            answer.read()
            assert answer.getheader("keep-alive") == "timeout=1"
            assert connection.sock.recv(1) == b""
            assert time.monotonic() - asked_s > 0.9


def test_localhost_needs_no_ipv6_and_other_names_need_all_their_addresses(
    monkeypatch: pytest.MonkeyPatch,
):
    """A container without IPv6 lacks the ::1 that its hosts file gives to localhost."""
    created = socket.create_server

    def created_here(address: tuple[str, int], **_: object) -> socket.socket:
        return created((address[0].replace("::1", "192.0.2.1"), 0))

    def resolved(names: str, *_: object, **__: object) -> object:
        return [(socket.AF_INET, 0, 0, "", (name, 0)) for name in names.split()]

    monkeypatch.setattr(socket, "create_server", created_here)
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    (listener,) = bound_sockets("::1 127.0.0.1", 0)
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    for names in ("::1", "127.0.0.1 192.0.2.1"):
        with pytest.raises(OSError, match=r"\(Cannot assign requested address\)"):
            bound_sockets(names, 0)


def test_every_connection_sends_at_once():
    (listener,) = bound_sockets("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()), listener.accept()[0] as ours:
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


SIGTERM_IN_NATIVE_CODE = """
import os, signal
from hrm_edge_runtime.contract import logs
from hrm_edge_server.cli import serve

def configure(_form):
    try:
        signal.raise_signal(signal.SIGTERM)
    except BaseException:  # as native code that looks up a name clears what it meets
        os._exit(1)

logs.configure = configure
serve()
"""


def test_sigterm_while_modules_load_ends_the_server():
    done = subprocess.run([sys.executable, "-c", SIGTERM_IN_NATIVE_CODE], timeout=PATIENCE_S)
    assert done.returncode == 0


def test_a_server_that_stops_says_what_it_did_and_writes_no_traceback():
    """Batches that never end, blank lines, a half body and a puzzle in progress do not hold it."""
    named = {"x-request-id": "from-outside"}
    half_body = head("POST /solve", "content-length: 9") + b"{"
    with (
        running(step_s=0.2, drain_seconds=1.0, log="json") as server,
        contextlib.ExitStack() as endless,
    ):
        server.http.post("/solve", json={"puzzle": QUESTION}, headers=named)
        endless.enter_context(ask_and_stay(server, QUESTION))
        line = b"%x\r\n%s\r\n" % (len(LINE), LINE)
        for sent in (BATCH, BATCH + b"1\r\n\n\r\n" * 50, BATCH + line, half_body):
            connection = socket.create_connection(("127.0.0.1", server.port), PATIENCE_S)
            endless.enter_context(connection)
            connection.sendall(sent)
        wait_for(lambda: server.num_waiting > 0)
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_status() == 0
        wait_for(lambda: "stopped: " in server.log)
    lines = lines_in(server.log)
    messages = " ".join(line["message"] for line in lines)
    for part in ("engine ready", "draining: "):  # of both processes
        assert part in messages
    assert "Traceback" not in server.log, server.log
    (access,) = (line for line in lines if line.get("request") == "from-outside")
    assert (access["logger"], access["route"]) == ("hrm_edge_runtime.access", "/solve")


@pytest.mark.parametrize(
    "num_rounds", [1, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_a_pause_of_the_whole_server_kills_no_engine(num_rounds: int):
    """As `docker pause` does. Each pause is longer than --stall-seconds 1."""
    with (
        running(step_s=0.3, segments=8, stall_seconds=1.0) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        for _ in range(num_rounds):
            answer = pool.submit(server.solve, QUESTION)
            wait_for(lambda: server.num_waiting == 1)
            os.killpg(server.process.pid, signal.SIGSTOP)
            time.sleep(1.6)
            os.killpg(server.process.pid, signal.SIGCONT)
            assert server.status("/livez") == 200
            assert answer.result().status_code == 200
        assert server.engine["losses"] == 0


def test_a_signal_while_the_server_starts_ends_it_cleanly(tmp_path: Path):
    """As `docker stop` soon after `docker run`; the key file holds the start up."""
    keys = tmp_path / "keys"
    os.mkfifo(keys)
    with Server(command("serve", "sudoku-6x6", "--keys", keys)) as server, keys.open("w"):
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_status() == 0


def test_a_server_that_chose_its_port_names_it():
    program = command("serve", "sudoku-6x6", "--port", 0)
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        ready = next(line for line in process.stderr if " ready: " in line)
        _, _, url = ready.strip().partition(" ready: ")
        try:
            assert httpx.get(f"{url}/livez").status_code == 200
        finally:
            process.terminate()
            process.communicate()


def test_a_second_signal_ends_the_server_without_a_traceback():
    with running(step_s=600.0) as server, contextlib.closing(ask_and_stay(server, QUESTION)):
        wait_for(lambda: server.num_waiting == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.status("/readyz") == 503)
        server.process.send_signal(signal.SIGTERM)
        server.exit_status()
    assert "Traceback" not in server.log
