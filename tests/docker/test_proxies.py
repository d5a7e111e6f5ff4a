"""The shipped configurations of the proxies in front of a server: page, stream, batch, restart."""

import contextlib
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from proxy_tools import proxied
from scripted_server import examples
from service_tools import PATIENCE_S, Server, running, scripted_command, wait_for

import hrm_edge

PUZZLES = examples()
GONE = {"nginx.conf": 502, "Caddyfile": 502, "haproxy.cfg": 503}  # without its server
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def board() -> Iterator[Server]:
    with running() as board:
        yield board


@pytest.mark.parametrize("name", GONE)
def test_a_proxy_passes_page_answers_streams_and_batches(
    name: str, board: Server, tmp_path: Path
) -> None:
    with proxied(name, board, tmp_path) as url, hrm_edge.Client(url) as client:
        assert "<html" in httpx.get(url).text
        replies = client.solve_many([*PUZZLES])
        assert [reply.solution for reply in replies] == [*PUZZLES.values()]
        *segments, answer = client.stream(next(iter(PUZZLES)))
        assert len(segments) == answer.segments
        own_page = {"origin": url, "sec-fetch-site": "same-origin"}
        sent = httpx.post(f"{url}/solve", json={"puzzle": next(iter(PUZZLES))}, headers=own_page)
        assert sent.status_code == 200


def test_a_restart_behind_a_proxy_loses_no_answer(tmp_path: Path) -> None:
    with (
        running() as board,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(len(GONE)) as pool,
    ):
        solving = []
        for name, status in GONE.items():
            url = stack.enter_context(proxied(name, board, tmp_path))
            client = hrm_edge.Client(url, patience_s=PATIENCE_S, connections=2)
            stack.enter_context(client)
            solving.append((url, status, pool.submit(client.solve_many, [*PUZZLES] * 12)))
        wait_for(lambda: board.slots()["waiting"] > 2 * len(GONE))
        board.process.send_signal(signal.SIGTERM)
        assert board.exit_status() == 0
        for url, status, solved in solving:
            assert httpx.get(f"{url}/livez", timeout=PATIENCE_S).status_code == status
            assert not solved.done()
        with Server(scripted_command(), port=board.port):
            for _, _, solved in solving:
                assert [reply.solution for reply in solved.result()] == [*PUZZLES.values()] * 12
