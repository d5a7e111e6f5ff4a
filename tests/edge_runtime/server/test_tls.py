"""A connection to an HTTPS server that never begins; test_connection.py solves over one."""

import contextlib
import select
import socket
from pathlib import Path

import pytest
from scripted_server import examples
from service_tools import secure_server

from hrm_edge_server.connections import HEADER_SECONDS

pytestmark = pytest.mark.process

GOOD = next(iter(examples()))


@pytest.mark.slow
def test_handshake_that_does_not_come_is_cut_off(tmp_path: Path) -> None:
    with (
        secure_server(tmp_path) as secure,
        socket.create_connection(("127.0.0.1", secure.port)) as silent,
    ):
        assert secure.solve(GOOD).status_code == 200
        assert not select.select([silent], [], [], 0)[0], "the server still waits for it"
        silent.settimeout(5 * HEADER_SECONDS)
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""
