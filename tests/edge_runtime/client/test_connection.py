"""What stands between a client and its server: proxies, certificates, and other people's errors."""

import contextlib
import json
import select
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest
from cli_tools import invoked, ran, rejected, succeeded, tool
from odd_server import (
    MODEL,
    OPEN,
    REFUSAL,
    SOLVED,
    Reply,
    body,
    lines,
    odd_server,
    refused,
    solved,
)
from scripted_server import QUESTION
from service_tools import Server, free_port, scripted_command, wait_for

from hrm_edge import (
    Client,
    Error,
    ServerError,
    UnavailableError,
    UnreachableError,
    connection,
)
from hrm_edge.cli import main
from hrm_edge.push_cli import main as push_main
from hrm_edge.requests import MAX_AHEAD, NUM_PUZZLES, Numbered, Piece, merged, pieces_of
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_server import auth
from hrm_edge_server.connections import HEADER_SECONDS

PAGE = "<html><head><title>502 Bad Gateway</title></head></html>"
ANOTHER_SHAPE = '{"error": "upstream connect error"}'
OURS = json.dumps({"error": refused(1, reason="deadline-missed")["error"]})
TOO_LATE = OURS.replace("deadline-missed", "cannot-make-deadline")
MODELS = json.dumps({"models": [MODEL]})
TEMPORARY = (502, 503, 504, 520, 521, 522, 523, 524, 530)


def failure(reply: Reply) -> Error:
    with (
        odd_server(reply) as url,
        Client(url) as client,
        pytest.raises(Error) as raised,
    ):
        client.solve(OPEN)
    return raised.value


@pytest.mark.parametrize("content", [PAGE, ANOTHER_SHAPE, ""])
@pytest.mark.parametrize("status", TEMPORARY)
def test_a_proxy_without_its_server_is_named_and_temporary(status: int, content: str):
    error = failure(body(content, status, Via="1.1 nginx"))
    assert isinstance(error, UnreachableError)
    assert error.retry_after_s is not None
    assert f"answers {status}, not hrm-serve: start hrm-serve there" in str(error)
    assert "BaseHTTP" in str(error)  # the header Server of this stand-in


@pytest.mark.parametrize(
    ("status", "content", "kind", "said"),
    [
        (500, OURS, ServerError, "no; fix it"),
        (502, OURS, ServerError, "no; fix it"),
        (503, TOO_LATE, ServerError, "no; fix it"),
        (504, OURS, ServerError, "no; fix it"),
        (404, OURS.replace("deadline-missed", "not-found"), ServerError, "without /solve behind"),
        (413, PAGE, ServerError, "nginx: client_max_body_size"),
        (429, PAGE, UnavailableError, "answered 429 without a reason"),
        (429, OURS, UnavailableError, "no; fix it"),
    ],
)
def test_an_error_in_our_shape_and_other_answers_of_a_proxy_are_told_apart(
    status: int, content: str, kind: type[ServerError], said: str
):
    error = failure(body(content, status, Retry_After="7"))
    assert type(error) is kind
    assert said in str(error)
    if isinstance(error, UnavailableError):
        assert error.retry_after_s == 7.0


DEAD = "http://127.0.0.1:9"
ENVIRONMENTS = {
    "http": {"http_proxy": DEAD},
    "a network": {"http_proxy": DEAD, "no_proxy": "localhost,127.0.0.0/8,::1"},
    "brackets": {"http_proxy": DEAD, "no_proxy": "localhost,127.0.0.1,[::1]"},
    "socks5": {"ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": "localhost"},
    "socks": {"all_proxy": "socks://127.0.0.1:9/", "no_proxy": "localhost"},
    "nonsense": {"http_proxy": "http://[", "HTTPS_PROXY": "::"},
    "certificates": {"SSL_CERT_FILE": "/nonexistent.pem"},
}


def set_environment(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_proxy_stands_between_a_client_and_its_own_machine(
    name: str, host: str, monkeypatch: pytest.MonkeyPatch
):
    set_environment(monkeypatch, ENVIRONMENTS[name])
    with odd_server(lines(), body(MODELS)) as url:
        there = url.replace("127.0.0.1", host)
        with Client(there) as client:
            assert [model.name for model in client.models()] == ["m"]


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy"])
def test_another_machine_is_asked_through_the_proxy_unless_no_proxy_names_it(
    variable: str, monkeypatch: pytest.MonkeyPatch
):
    asked = []
    statuses = [503, 403, 200]

    def proxy(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        body(MODELS, statuses.pop())(handler)

    with odd_server(lines(), proxy) as url:
        set_environment(monkeypatch, {variable: url})
        with Client("http://board.test:8000") as client:
            client.models()
            while statuses:
                with pytest.raises(Error, match=f"correct the variable {variable}, or add this"):
                    client.models()
        assert asked == ["http://board.test:8000/models"] * 3
        monkeypatch.setenv("no_proxy", ".test")
        with (
            Client("http://board.test:8000") as client,
            pytest.raises(UnreachableError, match="start hrm-serve there"),
        ):
            client.models()
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("host", "exempt", "is_direct"),
    [
        ("10.1.2.3", "localhost,10.0.0.0/8", True),
        ("10.1.2.3", " 10.1.2.0/24 ", True),
        ("10.1.2.3", "10.1.3.0/24, board.test", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("[fd00::7]", "fd00::/8", True),
        ("[fd00::7]", "10.0.0.0/8", False),
        ("board.test", "10.0.0.0/8", False),
    ],
)
def test_no_proxy_may_name_networks(
    host: str, exempt: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch
):
    set_environment(monkeypatch, {"http_proxy": DEAD, "no_proxy": exempt})
    found = connection.proxy_for(httpx.URL(f"http://{host}:8000"))
    assert (found is None) == is_direct


@pytest.mark.parametrize("value", ["socks://proxy:1080", "http://[", "http://127.0.0.1:9"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    value: str, monkeypatch: pytest.MonkeyPatch
):
    set_environment(monkeypatch, {"all_proxy": value.replace("//", "//me:secret@")})
    with pytest.raises(UnreachableError, match="the variable all_proxy") as raised:
        Client("http://board.test:8000").models()
    assert "secret" not in str(raised.value)


CERTIFICATE = (
    "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -out cert.pem -keyout key.pem"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    ran(tool("openssl"), *CERTIFICATE.split(), cwd=folder)
    return folder / "cert.pem"


@pytest.fixture(scope="module")
def secure(certificate: Path) -> Iterator[Server]:
    """A server with a certificate of its own."""
    key = certificate.with_name("key.pem")
    command = scripted_command(tls_cert=certificate, tls_key=key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with Server(command, "https", verify=trusting) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.slow
def test_handshake_that_does_not_come_is_cut_off(secure: Server):
    with socket.create_connection(("127.0.0.1", secure.port)) as silent:
        assert secure.solve(QUESTION).status_code == 200
        assert not select.select([silent], [], [], 0)[0], "the server still waits for it"
        silent.settimeout(5 * HEADER_SECONDS)
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""


@pytest.mark.process
def test_a_certificate_of_ones_own_is_trusted_if_it_is_passed(
    secure: Server, certificate: Path, monkeypatch: pytest.MonkeyPatch
):
    url = secure.url
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    untrusted = rejected(main, QUESTION, "--url", url, status=3)
    assert "pass the server's certificate with --cacert" in untrusted
    succeeded(main, QUESTION, "--url", url, "--cacert", certificate)
    with Client(url, cacert=certificate) as client:
        assert len(client.models()) == 1
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    succeeded(main, QUESTION, "--url", url)
    with pytest.raises(UnreachableError, match="write https://"):
        Client(url.replace("https:", "http:")).models()
    other_name = rejected(main, QUESTION, "--url", url.replace("127.0.0.1", "localhost"), status=3)
    assert "use an address that the server's certificate names" in other_name


def test_a_date_that_no_certificate_has_is_not_repaired_by_another_one(certificate: Path):
    options = ["x509", "-in", "cert.pem", "-signkey", "key.pem", "-days", "0", "-out", "old.pem"]
    ran(tool("openssl"), *options, cwd=certificate.parent)
    old = certificate.with_name("old.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(old, certificate.with_name("key.pem"))
    with (
        ThreadPoolExecutor() as pool,
        context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True) as listener,
        Client(f"https://127.0.0.1:{listener.getsockname()[1]}", cacert=old) as client,
    ):
        pool.submit(listener.accept)
        with pytest.raises(UnreachableError, match="or set this machine's clock"):
            client.models()


def test_a_private_key_with_a_passphrase_is_rejected_and_nobody_is_asked(certificate: Path):
    locked = certificate.with_name("locked.pem")
    options = ("ec", "-aes256", "-passout", "pass:x", "-in", "key.pem", "-out", locked)
    ran(tool("openssl"), *options, cwd=certificate.parent)
    with pytest.raises(ValueError, match=r"PEM lib.*without a passphrase"):
        auth._check_certificate(certificate, locked)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_certificates_is_one_sentence(content: str | None, tmp_path: Path):
    file = tmp_path / "cert.pem"
    if content is not None:
        file.write_text(content)
    nobody = ("--url", f"https://127.0.0.1:{free_port()}")
    told = rejected(main, QUESTION, *nobody, "--cacert", file, status=3)
    assert f"{file} is not a file of certificates" in told


BELL = "\x1b]52;c;ZXZpbA==\x07"


@pytest.mark.parametrize("status", [200, 413, 422, 502])
def test_a_push_prints_nothing_raw(status: int):
    error = {"error": refused(1, reason=BELL, message=BELL, remedy=BELL)["error"]}
    answer = {"model": {**MODEL, "name": BELL}, "replaced": False, "evicted": [BELL]}
    content = json.dumps(answer if status == 200 else error)
    with odd_server(body(content, status, Via=BELL)) as url:
        done = invoked(push_main, "sudoku-6x6", url, "--name", f"a{BELL}")
    assert (done.exit_code == 0) == (status == 200)
    assert "\x1b" not in done.output


@pytest.mark.parametrize("name", ["manifest.json", "step.fp32.onnx"])
def test_a_push_follows_no_links(name: str, tmp_path: Path):
    bundle = tmp_path / "my.bundle"
    shutil.copytree(find_bundle("sudoku-6x6"), bundle)
    (tmp_path / "secret").write_bytes((bundle / name).read_bytes())
    (bundle / name).unlink()
    (bundle / name).symlink_to(tmp_path / "secret")
    assert "no answer" not in rejected(push_main, bundle, "http://127.0.0.1:9")


@pytest.mark.parametrize(("connections", "most"), [(1, 1), (3, 3), (None, 4)])
def test_so_many_batches_are_sent_at_once(connections: int | None, most: int):
    in_progress = set()
    counts = []

    def reply(handler: BaseHTTPRequestHandler) -> None:
        in_progress.add(threading.get_ident())
        counts.append(len(in_progress))
        time.sleep(0.05)
        in_progress.remove(threading.get_ident())
        lines(*[solved(number, SOLVED) for number in range(1, 33)])(handler)

    models = body(json.dumps({"models": [{**MODEL, "slots": 4}]}))
    with odd_server(reply, models) as url, Client(url, connections=connections) as client:
        assert len(client.solve_many([OPEN] * 192)) == 192
    assert max(counts) == most


def answered(piece: Piece) -> Iterator[Numbered]:
    for position in reversed(piece):
        yield position, REFUSAL


def some_pieces() -> Iterator[Piece]:
    return pieces_of([REFUSAL] * 2_000)


def test_a_piece_that_hangs_bounds_what_waits_for_it_and_every_puzzle_is_answered_once():
    go_on = threading.Event()

    def send(piece: Piece) -> Iterator[Numbered]:
        if 0 in piece:
            go_on.wait(30)
        yield from answered(piece)

    found = []
    for position, _ in merged(send, some_pieces(), 2):
        found.append(position)
        if len(found) == (MAX_AHEAD * 2 - 1) * NUM_PUZZLES:
            go_on.set()  # nothing else was begun
    assert sorted(found) == list(range(2_000))


def test_the_first_error_ends_a_run_and_leaving_it_ends_its_threads():
    sent = []

    def send(piece: Piece) -> Iterator[Numbered]:
        sent.extend(piece)
        if 64 in piece:
            raise UnreachableError("it is gone: start it.")
        yield from answered(piece)

    with pytest.raises(UnreachableError, match="it is gone"):
        list(merged(send, some_pieces(), 2))
    assert len(sent) < 1000
    sent.clear()
    left = merged(answered, some_pieces(), 2)
    next(left)
    left.close()
    wait_for(lambda: all(thread.name != "hrm-batch" for thread in threading.enumerate()))
