"""HTTPS through uvicorn's own options, with a certificate made here."""

import contextlib
import select
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from scripted_server import examples
from service_tools import Server, scripted_command

from hrm_edge_runtime.http.connections import HEADER_SECONDS

pytestmark = pytest.mark.process

GOOD = next(iter(examples()))
CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -out cert.pem -keyout key.pem"
)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl on this machine to make a certificate with")
    folder: Path = tmp_path_factory.mktemp("tls")
    subprocess.run([openssl, *CERTIFICATE.split()], check=True, capture_output=True, cwd=folder)
    command = scripted_command(tls_cert=folder / "cert.pem", tls_key=folder / "key.pem")
    trusting = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    with Server(command, "https", verify=trusting) as server:
        server.wait_until_ready()
        yield server


def test_puzzles_are_solved_over_https_alone(secure: Server) -> None:
    assert secure.solve(GOOD).json()["solved"]
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
