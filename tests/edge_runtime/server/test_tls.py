"""HTTPS through uvicorn's own options, with a certificate made here."""

import contextlib
import select
import socket
from collections.abc import Iterator

import httpx
import pytest
from scripted_server import examples
from service_tools import Server, secure_server

from hrm_edge_server.connections import HEADER_SECONDS

pytestmark = pytest.mark.process

GOOD = next(iter(examples()))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with secure_server(tmp_path_factory.mktemp("tls")) as server:
        yield server


def test_puzzles_are_solved_over_https_alone(secure: Server) -> None:
    assert secure.solve(GOOD).json()["verified"]
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https:", "http:") + "/livez")
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(secure.url + "/livez")
    assert secure.solve(GOOD).status_code == 200


@pytest.mark.slow
def test_handshake_that_does_not_come_is_cut_off(secure: Server) -> None:
    with socket.create_connection(("127.0.0.1", secure.port)) as silent:
        assert secure.solve(GOOD).status_code == 200
        assert not select.select([silent], [], [], 0)[0], "the server still waits for it"
        silent.settimeout(5 * HEADER_SECONDS)
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""
