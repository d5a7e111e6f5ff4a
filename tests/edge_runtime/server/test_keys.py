"""Keys: who is let in, how often, what the file holds, and how it changes while a server runs."""

import asyncio
import base64
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from asgi_tools import QUICK, Call, app_over, client_of, serving, until
from cli_tools import rejected, succeeded
from files import lines_in
from scripted_server import QUESTION
from service_tools import (
    ADMIN,
    AS_ADMIN,
    AS_USER,
    NDJSON,
    USER,
    refusal,
    starting,
    wait_for,
    write_key_file,
)
from starlette.testclient import TestClient

from hrm_edge_runtime.worker.lanes import Lanes
from hrm_edge_server.auth import (
    Key,
    KeyRing,
    bind_warning,
    changed_keys,
    checked_hosts,
    checked_origins,
    hash_of,
    read_keys,
    write_keys,
)
from hrm_edge_server.key_cli import main as key_app
from hrm_edge_server.middleware import OPEN_PATHS
from hrm_edge_server.options import ServeOptions

BODY = {"puzzle": QUESTION}
LINE = json.dumps(BODY).encode() + b"\n"
ROUTES = (
    "/", "/docs", "/models", "/slots", "/metrics", "/openapi.json", "/web/css/base.css",
    "/nothing",
)  # fmt: skip
AS_SLOW = {"x-api-key": "slow"}
SLOW = Key(label="slow", sha256=hash_of("slow"), rate=0.01, burst=2)


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    """The keys `kitchen`, `office` and `slow` of a file."""
    return KeyRing(write_key_file(tmp_path, SLOW))


@pytest.fixture
def http(keys: KeyRing) -> Iterator[TestClient]:
    with serving(app_over(QUICK, keys=keys)) as http:
        yield http


def many_keys(count: int) -> list[Key]:
    return [Key(label=f"k{number}", sha256=f"{number:064x}") for number in range(count)]


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_with_keys_every_route_but_probes_needs_one(http: TestClient):
    wrong = [
        {},
        {"x-api-key": ""},
        {"x-api-key": "wrong"},
        {"x-api-key": hash_of(USER)},
        {"authorization": USER},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {USER}x"},
        {"authorization": basic(USER, "")},
        {"authorization": "Basic ???"},
        {"authorization": "Basic /w=="},
    ]
    right = [
        AS_USER,
        {"authorization": f"Bearer {USER}"},
        {"authorization": f"bearer {ADMIN}"},
        {"authorization": basic("anybody", ADMIN)},
    ]
    for headers in wrong:
        for path in ROUTES:
            answer = http.get(path, headers=headers)
            assert refusal(answer) == (401, "bad-key")
            basic_challenge, bearer = answer.headers.get_list("www-authenticate")
            assert basic_challenge.startswith("Basic")
            assert bearer.startswith("Bearer")
        assert refusal(http.post("/solve", headers=headers, json=BODY)) == (401, "bad-key")
    for path in OPEN_PATHS:
        assert http.get(path).status_code == 200
    for headers in right:
        assert http.get("/models", headers=headers).status_code == 200
        assert http.post("/solve", headers=headers, json=BODY).json()["verified"]


def test_readiness_without_a_key_has_no_counts_or_reasons(http: TestClient, keys: KeyRing):
    assert http.get("/readyz").json() == {"state": "ready"}
    counts = {"ready": 1, "loading": 0, "failed": 0}
    for path in ("/health", "/readyz"):
        assert http.get(path, headers=AS_USER).json() == {"state": "ready", "models": counts}

    def broken() -> Lanes:
        raise OSError("no such graph")

    with serving(app_over(broken, keys=keys), until_ready=False) as failing:
        wait_for(lambda: failing.get("/readyz").json()["state"] == "failed")
        bare = failing.get("/readyz")
        assert refusal(bare) == (503, "engine-lost")
        assert list(bare.json()) == ["error", "state", "progress"]
        assert "no such graph" not in bare.text
        known = failing.get("/readyz", headers=AS_USER)
        assert known.json()["models"] == {"ready": 0, "loading": 1, "failed": 0}
        assert "no such graph" in known.text


def test_requests_are_counted_by_the_label_of_their_key(http: TestClient):
    for key in (USER, USER, USER, "wrong"):
        http.get("/models", headers={"x-api-key": key})
    page = http.get("/metrics", headers=AS_ADMIN).text
    counted = [line for line in page.splitlines() if line.startswith("hrm_key_requests_total")]
    assert counted == ['hrm_key_requests_total{key="kitchen",status="200"} 3.0']
    assert USER not in page


def test_key_that_asks_too_often_is_refused_and_others_are_not(http: TestClient, keys: KeyRing):
    for path in ("/solve", "/solve/stream"):
        assert http.post(path, headers=AS_SLOW, json=BODY).status_code == 200
    keys.reload()  # which forgets nothing
    for path in ("/solve", "/solve%0A"):
        limited = http.post(path, headers=AS_SLOW, json=BODY)
        assert refusal(limited) == (429, "rate-limited")
        assert 90 <= int(limited.headers["retry-after"]) <= 100
    fresh = http.get("/puzzle", params={"kind": "sudoku-4x4"}, headers=AS_SLOW)
    assert fresh.status_code == 429
    assert http.get("/slots", headers=AS_SLOW).status_code == 200
    assert http.post("/solve", headers=AS_USER, json=BODY).status_code == 200


async def test_each_line_of_a_batch_takes_from_the_bucket_of_its_key(keys: KeyRing):
    app = app_over(QUICK, keys=keys)
    async with client_of(app):
        batch = Call(app, "/solve/batch", {**NDJSON, **AS_SLOW})
        batch.give(LINE * 3, more=False)
        await until(lambda: batch.body.count(b"\n") == 2)
        await asyncio.sleep(0.2)
        assert batch.body.count(b"\n") == 2
        batch.task.cancel()
        await asyncio.gather(batch.task, return_exceptions=True)


@pytest.mark.parametrize(
    ("host", "origin", "site", "refused"),
    [
        # a proxy wrote the server's own address into Host, or dropped the port
        ("10.0.0.5:8000", "http://hrm.lan", "same-origin", ""),
        ("hrm.lan", "http://hrm.lan:8080", "", ""),
        ("127.0.0.1:8000", "http://localhost:18341", "", ""),
        ("[::1]:8000", "http://localhost", "", ""),
        # pages of others
        ("hrm.lan", "http://hrm.lan", "cross-site", "foreign-page"),
        ("localhost:8000", "http://localhost:3000", "same-site", "foreign-page"),
        ("10.0.0.5:8000", "http://hrm.lan", "", "foreign-page"),
        ("hrm.lan:8000", "http://hrm.lan:8080", "", "foreign-page"),
        ("127.0.0.1:8000", "http://127.0.0.1.evil.com", "", "foreign-page"),
        ("test", "https://elsewhere.example", "", "foreign-page"),
        ("test", "null", "", "foreign-page"),
        ("test", "http://test.elsewhere.example", "", "foreign-page"),
        ("test", "http://TEST", "", ""),
        # a rebound name is the page's own origin, but no name of this server
        ("evil.com", "http://evil.com", "same-origin", "foreign-host"),
    ],
)
def test_the_browser_says_whose_page_asks_and_else_the_names_do(
    keyless: TestClient, host: str, origin: str, site: str, refused: str
):
    page = {"host": host, "origin": origin}
    if site:
        page["sec-fetch-site"] = site
    answer = keyless.post("/solve", headers=page, json=BODY)
    assert answer.status_code == (403 if refused else 200)
    assert refused in answer.text


def test_pages_of_listed_origins_may_ask_with_a_key(keys: KeyRing):
    allowed = "access-control-allow-origin"
    friend = {"origin": "https://my.site"}
    stranger = {"origin": "https://other.site"}
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-api-key, content-type, traceparent",
        "access-control-request-private-network": "true",
    }
    with serving(app_over(QUICK, keys=keys, origins=["https://my.site"])) as http:
        answer = http.options("/solve", headers={**friend, **preflight})
        assert (answer.status_code, answer.headers[allowed]) == (200, "https://my.site")
        assert answer.headers["access-control-allow-private-network"] == "true"
        answer = http.options("/solve", headers={**stranger, **preflight})
        assert (answer.status_code, answer.headers.get(allowed)) == (400, None)
        for headers, status in ((friend, 401), ({**friend, **AS_USER}, 200)):
            answer = http.post("/solve", headers=headers, json=BODY)
            assert (answer.status_code, answer.headers[allowed]) == (status, "https://my.site")
        answer = http.post("/solve", headers={**stranger, **AS_USER}, json=BODY)
        assert answer.status_code == 403


def test_what_is_no_origin_or_no_name_is_refused_at_the_start():
    for origin in ("*", "https://my.site/page", ""):
        with pytest.raises(ValueError, match="is not an origin: pass one"):
            checked_origins([origin])
    for host in ("*.my.site", "https://my.site/page", ""):
        with pytest.raises(ValueError, match="is not a name: pass one"):
            checked_hosts([host])


def test_origins_and_names_are_taken_as_people_write_them():
    origins = ("https://my.site", "chrome-extension://abcd", "http://[::1]:3000")
    assert checked_origins(["https://My.Site/", *origins[1:]]) == list(origins)
    written = ("my.site", "https://My.site/", "my.site:8000", "http://my.site:8000")
    assert checked_hosts(written) == ["my.site"] * 4


def test_without_keys_foreign_host_names_are_rejected():
    own = "127.0.0.1:8000 localhost [::1] [::1]:8000 board hrm.lan:80 jetson.local 10.1.2.3 Own.ORG"
    own += " jetson.local. hrm.default.svc hrm.default.svc.cluster.local. own.org. jetson.test"
    own += " jetson.localdomain:8000 board.home.arpa host.docker.internal"
    foreign = "evil.com evil.com:8000 127.0.0.1.evil.com evil.com. own.org.evil.com"
    foreign += " [::1].evil.com [::1]evil.com:80 a.[::1].com"
    status_of_host = dict.fromkeys(own.split(), 200) | dict.fromkeys(foreign.split(), 403)
    with serving(app_over(QUICK, hosts=["own.org"])) as http:
        for host, status in status_of_host.items():
            assert http.get("/models", headers={"host": host}).status_code == status, host
            page = {"host": host, "origin": f"http://{host}"}
            assert http.post("/solve", headers=page, json=BODY).status_code == status, host
        remedy = http.get("/models", headers={"host": "jetson.fritz.box"}).json()["error"]["remedy"]
        assert "--allow-host jetson.fritz.box" in remedy


def test_description_names_the_keys_if_the_server_requires_them(
    http: TestClient, keyless: TestClient
):
    described = http.get("/openapi.json", headers=AS_USER).json()
    schemes = {"bearer", "header", "password"}
    assert {next(iter(scheme)) for scheme in described["security"]} == schemes
    assert set(described["components"]["securitySchemes"]) == schemes
    for path in OPEN_PATHS:
        assert described["paths"][path]["get"]["security"] == []
    assert "security" not in keyless.get("/openapi.json").json()


def test_every_answer_carries_the_headers_that_keep_browsers_from_guessing(
    http: TestClient,
):
    for path in (*ROUTES, "/livez"):
        for key in ({}, AS_USER):
            answer = http.get(path, headers=key)
            assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
            assert answer.headers.get_list("cross-origin-resource-policy") == ["same-origin"]
            assert "server" not in answer.headers
    page = http.get("/", headers=AS_USER)
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


def line(**changed: object) -> str:
    return json.dumps({"label": "kitchen", "sha256": hash_of(USER), **changed})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n \n", "holds 0 keys"),
        (f"{line()}\n{USER}\n", "line 2 of"),
        (line(role="root"), "role: "),
        (line(sha256="abc"), "sha256: "),
        (line(label='x"} 1\nevil'), "label: "),
        (line(rate="NaN"), "rate: "),
        (line(key=USER), "key: "),
        (f"{line()}\n{line()}", "holds a label twice"),
    ],
)
def test_a_bad_key_file_shows_no_secret(tmp_path: Path, text: str, reason: str):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(ValueError, match=re.escape(reason)) as refused:
        KeyRing(tmp_path / "keys")
    assert USER not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


def test_commands_add_list_and_remove_keys_and_store_no_secret(tmp_path: Path):
    path = tmp_path / "keys"

    def run(*arguments: str) -> str:
        return succeeded(key_app, *arguments, "--file", path).stdout

    first = run("add", "kitchen", "--rate", "5", "--burst", "20").strip()
    second = run("add", "office", "--admin").strip()
    assert run("list") == "kitchen\tuser\t5/s, 20 at once\noffice\tadmin\tno limit\n"
    assert first not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = KeyRing(path).find(second)
    assert (found.label, found.role, found.bucket) == ("office", "admin", None)
    run("remove", "kitchen")
    assert KeyRing(path).find(first) is None
    for arguments, reason in (
        (("add", "office"), "already has a key 'office'"),
        (("add", "no spaces"), "label cannot be"),
        (("remove", "nobody"), "has no key 'nobody'"),
        (("remove", "office"), "is the last key"),
    ):
        assert reason in rejected(key_app, *arguments, "--file", path)


def test_a_key_too_many_is_refused_and_leaves_the_file_readable(tmp_path: Path):
    path = tmp_path / "keys"
    write_keys(path, many_keys(1000))
    assert "would hold 1001 keys" in rejected(key_app, "add", "more", "--file", path)
    assert len(read_keys(path)) == 1000


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_key_file_that_an_editor_of_windows_saved_is_read(tmp_path: Path, encoding: str):
    path = write_key_file(tmp_path)
    path.write_text(path.read_text(), encoding)
    assert len(read_keys(path)) == 2


def test_the_mode_of_a_key_file_is_kept_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_key_file(tmp_path)
    path.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    succeeded(key_app, "add", "more", "--file", link)
    assert link.is_symlink()
    assert [key.label for key in read_keys(path)] == ["kitchen", "office", "more"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o666)
    with pytest.raises(ValueError, match="chmod 600"):
        read_keys(path)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert len(read_keys(path)) == 3


def test_commands_that_run_at_once_lose_no_key(tmp_path: Path):
    path = tmp_path / "keys"
    wanted = many_keys(8)

    def add(key: Key) -> None:
        with changed_keys(path) as keys:
            keys.append(key)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(len(wanted)) as pool:
        pool.map(add, wanted)
    sys.setswitchinterval(switch_s)
    assert {key.label for key in read_keys(path)} == {key.label for key in wanted}


@pytest.mark.process
def test_hang_up_makes_a_running_server_read_its_keys_again(tmp_path: Path):
    path = write_key_file(tmp_path)
    with starting(keys=path) as server:
        server.http.headers["x-api-key"] = USER
        server.wait_until_ready()
        engine = server.engine["pid"]
        path.write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "the old keys stay valid" in server.log)
        assert server.solve(QUESTION).status_code == 200
        path.unlink()
        write_keys(path, [Key(label="office", role="admin", sha256=hash_of(ADMIN))])
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.status("/models") == 401)
        server.http.headers["x-api-key"] = ADMIN
        assert server.engine["pid"] == engine


async def test_a_removed_key_asks_no_more_in_a_batch_that_is_open(keys: KeyRing, tmp_path: Path):
    app = app_over(QUICK, keys=keys)
    async with client_of(app):
        batch = Call(app, "/solve/batch", {**NDJSON, **AS_USER})
        batch.give(LINE)
        await until(lambda: batch.body.count(b"\n") == 1)
        write_keys(tmp_path / "keys", [SLOW])
        keys.reload()
        batch.give(LINE, more=False)
        await asyncio.wait_for(batch.task, 60)
    before, after = lines_in(batch.body)
    assert before["answer"]["verified"]
    assert after["error"]["reason"] == "bad-key"


def test_only_a_loopback_address_needs_neither_keys_nor_consent():
    for host in ("127.0.0.1", "127.0.0.53", "::1", "localhost"):
        assert bind_warning(ServeOptions(host=host)) is None
    for host in ("0.0.0.0", "::", "127.0.0.1.example.com", "board.lan"):
        with pytest.raises(ValueError, match="lets other machines in without keys"):
            bind_warning(ServeOptions(host=host))
