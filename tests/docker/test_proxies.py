"""The shipped configurations of the proxies in front of a server: page, stream, batch, restart."""

import signal
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
pytestmark = [pytest.mark.process, pytest.mark.parametrize("name", GONE)]


def test_a_proxy_passes_page_answers_streams_and_batches(name: str, tmp_path: Path) -> None:
    with running() as board, proxied(name, board, tmp_path) as url, hrm_edge.Client(url) as client:
        assert "<html" in httpx.get(url).text
        for puzzle, reply in zip(PUZZLES, client.solve_many([*PUZZLES]), strict=True):
            assert isinstance(reply, hrm_edge.Answer)
            assert reply.solution == PUZZLES[puzzle]
        *segments, answer = client.stream(next(iter(PUZZLES)))
        assert isinstance(answer, hrm_edge.Answer)
        assert len(segments) == answer.segments
        own_page = {"origin": url, "sec-fetch-site": "same-origin"}
        sent = httpx.post(f"{url}/solve", json={"puzzle": next(iter(PUZZLES))}, headers=own_page)
        assert sent.status_code == 200


def test_a_restart_behind_a_proxy_loses_no_answer(name: str, tmp_path: Path) -> None:
    puzzles = [*PUZZLES] * 12
    with (
        running(step_s=0.01) as board,
        proxied(name, board, tmp_path) as url,
        hrm_edge.Client(url, patience_s=PATIENCE_S, connections=2) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        solving = pool.submit(client.solve_many, puzzles)
        wait_for(lambda: board.slots()["waiting"] > 0)
        board.process.send_signal(signal.SIGTERM)
        assert board.exit_status() == 0
        assert httpx.get(f"{url}/livez", timeout=PATIENCE_S).status_code == GONE[name]
        assert not solving.done()
        with Server(scripted_command(step_s=0.01), port=board.port):
            for puzzle, reply in zip(puzzles, solving.result(), strict=True):
                assert isinstance(reply, hrm_edge.Answer)
                assert reply.solution == PUZZLES[puzzle]
