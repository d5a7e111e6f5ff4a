"""Keys: who is let in, how often, what the file holds, and that it can be changed while the server runs."""

import asyncio
import base64
import functools
import json
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest
from asgi_tools import QUICK, Call, app_over, client_of, serving, until
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import NAME, examples, scripted_model
from service_tools import running, wait_for
from typer.testing import CliRunner

from hrm_edge_runtime.http.app import create_app
from hrm_edge_runtime.http.auth import (
    BindError,
    Key,
    KeyFileError,
    KeyRing,
    TokenBucket,
    changed_keys,
    checked_origins,
    hash_of,
    read_keys,
    write_keys,
)
from hrm_edge_runtime.http.middleware import Access
from hrm_edge_runtime.key_cli import main as key_app
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.process import ThreadEngine

GOOD = next(iter(examples()))
ROUTES = (
    "/",
    "/docs",
    "/models",
    "/slots",
    "/metrics",
    "/readyz",
    "/openapi.json",
    "/web/css/base.css",
    "/nothing",
)
USER, ADMIN = "hrm_" + "u" * 43, "hrm_" + "a" * 43
SLOW = Key(label="slow", sha256=hash_of("slow"), rate=0.01, burst=2)


def ring(folder: Path, *more: Key) -> KeyRing:
    user = Key(label="kitchen", sha256=hash_of(USER))
    admin = Key(label="office", role="admin", sha256=hash_of(ADMIN))
    write_keys(folder / "keys", [user, admin, *more])
    return KeyRing(folder / "keys")


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_with_keys_every_route_but_livez_needs_one(tmp_path: Path) -> None:
    wrong = (
        *(
            {},
            {"x-api-key": "wrong"},
            {"authorization": USER},
            {"authorization": "Bearer "},
            {"x-api-key": ""},
        ),
        *(
            {"authorization": basic(USER, "")},
            {"authorization": "Basic ???"},
            {"authorization": "Basic /w=="},
        ),
        *({"authorization": f"Bearer {USER}x"}, {"x-api-key": hash_of(USER)}),
    )
    right = (
        *(
            {"x-api-key": USER},
            {"authorization": f"Bearer {USER}"},
            {"authorization": f"bearer {ADMIN}"},
        ),
        *({"authorization": basic("", USER)}, {"authorization": basic("anybody", ADMIN)}),
    )
    with serving(*app_over(QUICK, ring(tmp_path))) as http:
        for headers in wrong:
            answers = [http.get(path, headers=headers) for path in ROUTES]
            answers.append(http.post("/solve", headers=headers, json={"puzzle": "1"}))
            assert {answer.status_code for answer in answers} == {401}
            assert {answer.json()["error"]["reason"] for answer in answers} == {"bad-key"}
            challenges = answers[0].headers.get_list("www-authenticate")
            assert [challenge.split()[0] for challenge in challenges] == ["Basic", "Bearer"]
        assert http.get("/livez").status_code == 200
        for headers in right:
            assert http.get("/models", headers=headers).status_code == 200
            assert http.post("/solve", headers=headers, json={"puzzle": GOOD}).json()["solved"]


def test_requests_are_counted_by_the_label_of_their_key(tmp_path: Path) -> None:
    with serving(*app_over(QUICK, ring(tmp_path))) as http:
        for key in (USER, USER, USER, "wrong"):
            http.get("/models", headers={"x-api-key": key})
        page = http.get("/metrics", headers={"x-api-key": ADMIN}).text
    counted = [line for line in page.splitlines() if line.startswith("hrm_key_requests_total")]
    assert counted == ['hrm_key_requests_total{key="kitchen",status="200"} 3.0']
    assert USER not in page


def test_key_that_asks_too_often_is_refused_and_others_are_not(tmp_path: Path) -> None:
    with serving(*app_over(QUICK, ring(tmp_path, SLOW))) as http:
        paths = ("/solve", "/solve/stream", "/solve", "/solve%0A")
        asked = [
            http.post(path, headers={"x-api-key": "slow"}, json={"puzzle": GOOD}) for path in paths
        ]
        assert [answer.status_code for answer in asked] == [200, 200, 429, 429]
        assert asked[2].json()["error"]["reason"] == "rate-limited"
        assert 90 <= int(asked[2].headers["retry-after"]) <= 100
        assert http.get("/slots", headers={"x-api-key": "slow"}).status_code == 200
        assert (
            http.post("/solve", headers={"x-api-key": USER}, json={"puzzle": GOOD}).status_code
            == 200
        )


async def test_each_line_of_a_batch_takes_from_the_bucket_of_its_key(tmp_path: Path) -> None:
    app, engine_client = app_over(QUICK, ring(tmp_path, SLOW))
    async with client_of(app, engine_client):
        batch = Call(
            app, "/solve/batch", {"content-type": "application/x-ndjson", "x-api-key": "slow"}
        )
        batch.give(b"\n".join([json.dumps({"puzzle": GOOD}).encode()] * 3), more=False)
        await until(lambda: batch.body.count(b"\n") == 2)
        await asyncio.sleep(0.2)
        assert batch.body.count(b"\n") == 2
        batch.task.cancel()
        await asyncio.gather(batch.task, return_exceptions=True)


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 20),
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_bucket_gives_no_more_than_its_rate_and_burst(
    rate: float, burst: int, gaps: list[float]
) -> None:
    clock = [0.0]
    bucket = TokenBucket(rate=rate, burst=burst, now=lambda: clock[0])
    given_at: list[float] = []
    for gap in gaps:
        clock[0] += gap
        wait_s = bucket.wait_s()
        if not wait_s:
            given_at.append(clock[0])
            continue
        clock[0] += wait_s * (1 + 1e-9)
        assert not bucket.wait_s(), "what it asks to wait suffices"
        given_at.append(clock[0])
    for first in range(len(given_at)):
        for last in range(first, len(given_at)):
            assert last - first + 1 <= burst + rate * (given_at[last] - given_at[first]) + 1e-6


@pytest.mark.parametrize(
    "origin", ["https://elsewhere.example", "null", "http://test.elsewhere.example", "http://"]
)
def test_pages_of_other_origins_may_not_ask(origin: str) -> None:
    with serving(*app_over(QUICK)) as http:
        refused = http.post("/solve", headers={"origin": origin}, json={"puzzle": GOOD})
        assert (refused.status_code, refused.json()["error"]["reason"]) == (403, "foreign-page")
        own = http.post("/solve", headers={"origin": "http://TEST"}, json={"puzzle": GOOD})
        assert own.status_code == 200


def test_pages_of_listed_origins_ask_with_a_key_in_a_header_and_no_others(tmp_path: Path) -> None:
    friend, stranger = {"origin": "https://my.site"}, {"origin": "https://other.site"}
    asking = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-api-key, content-type",
    }
    with serving(*app_over(QUICK, ring(tmp_path), origins=["https://my.site"])) as http:
        allowed = "access-control-allow-origin"
        assert (
            http.options("/solve", headers={**friend, **asking}).headers[allowed]
            == friend["origin"]
        )
        refused = http.options("/solve", headers={**stranger, **asking})
        assert (refused.status_code, refused.headers.get(allowed)) == (400, None)
        for headers, status in ((friend, 401), ({**friend, "x-api-key": USER}, 200)):
            answer = http.post("/solve", headers=headers, json={"puzzle": GOOD})
            assert (answer.status_code, answer.headers[allowed]) == (status, friend["origin"])
        assert (
            http.post(
                "/solve", headers={**stranger, "x-api-key": USER}, json={"puzzle": GOOD}
            ).status_code
            == 403
        )


@pytest.mark.parametrize("origin", ["*", "my.site", "https://my.site/page", "https://*.site", ""])
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(BindError, match="is not an origin: pass one"):
        checked_origins([origin])


def test_description_names_the_keys_where_the_server_asks_for_them(tmp_path: Path) -> None:
    app, _ = app_over(QUICK, ring(tmp_path))
    described = app.openapi()
    assert {tuple(scheme) for scheme in described["security"]} == {
        ("bearer",),
        ("header",),
        ("password",),
    }
    assert set(described["components"]["securitySchemes"]) == {"bearer", "header", "password"}
    assert described["paths"]["/livez"]["get"]["security"] == []
    assert "security" not in app_over(QUICK)[0].openapi()


def test_every_answer_carries_the_headers_that_keep_browsers_from_guessing(tmp_path: Path) -> None:
    with serving(*app_over(QUICK, ring(tmp_path))) as http:
        for path in (*ROUTES, "/livez"):
            for headers in ({}, {"x-api-key": USER}):
                answer = http.get(path, headers=headers)
                assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
                assert answer.headers.get_list("cross-origin-resource-policy") == ["same-origin"]
                assert "server" not in answer.headers
        page = http.get("/", headers={"x-api-key": USER})
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]


def line(**changed: object) -> str:
    return json.dumps({"label": "kitchen", "sha256": hash_of(USER), **changed})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds 0 keys"),
        ("\n \n", "holds 0 keys"),
        (USER, "line 1 of"),
        (f"{line()}\n{USER}\n", "line 2 of"),
        (line(role="root"), "role: "),
        (line(sha256="abc"), "sha256: "),
        (line(label="a b"), "label: "),
        (line(label='x"} 1\nevil'), "label: "),
        (line(rate=0), "rate: "),
        (line(rate="NaN"), "rate: "),
        (line(burst=0), "burst: "),
        (line(key=USER), "key: "),
        (f"{line()}\n{line()}", "a label is twice"),
        (f"{line()}\n{line(label='other')}", "a sha256 is twice"),
        (
            "\n".join(line(label=f"k{n}", sha256=f"{n:064x}") for n in range(1001)),
            "holds 1001 keys",
        ),
    ],
)
def test_key_file_is_refused_in_one_sentence_that_repeats_no_secret(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(KeyFileError) as refused:
        KeyRing(tmp_path / "keys")
    assert said in str(refused.value)
    assert USER not in str(refused.value)
    assert refused.value.__context__ is None or refused.value.__suppress_context__


def test_key_file_that_anybody_may_write_to_is_refused(tmp_path: Path) -> None:
    ring(tmp_path)
    (tmp_path / "keys").chmod(0o666)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_keys(tmp_path / "keys")


def test_new_key_leaves_the_file_to_those_who_may_read_it(tmp_path: Path) -> None:
    ring(tmp_path)
    (tmp_path / "keys").chmod(0o640)
    write_keys(tmp_path / "keys", [Key(label="new", sha256=hash_of("new"))])
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o640


def test_reading_again_takes_what_is_new_and_keeps_buckets_and_what_is_unusable(
    tmp_path: Path,
) -> None:
    keys = ring(tmp_path, SLOW)
    holder = keys.find("slow")
    assert holder is not None
    write_keys(tmp_path / "keys", [SLOW, Key(label="new", sha256=hash_of("new"))])
    keys.reload()
    assert keys.find("slow") is holder
    assert keys.find(USER) is None
    assert keys.find("new") is not None
    (tmp_path / "keys").write_text("nonsense")
    with pytest.raises(KeyFileError):
        keys.reload()
    assert keys.find("new") is not None


def test_commands_add_list_and_remove_keys_and_store_no_secret(tmp_path: Path) -> None:
    path, commands = tmp_path / "keys", CliRunner()

    def run(*arguments: str) -> str:
        done = commands.invoke(key_app, [*arguments, "--file", str(path)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    first = run("add", "kitchen", "--rate", "5", "--burst", "20").strip()
    second = run("add", "office", "--admin").strip()
    assert run("list") == "kitchen\tuser\t5/s, 20 at once\noffice\tadmin\tno limit\n"
    assert first not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = KeyRing(path).find(second)
    assert found is not None
    assert (found.label, found.role, found.bucket) == ("office", "admin", None)
    run("remove", "kitchen")
    assert KeyRing(path).find(first) is None
    for arguments, said in (
        (("add", "office"), "already has a key 'office'"),
        (("add", "no spaces"), "label cannot be"),
        (("remove", "nobody"), "has no key 'nobody'"),
        (("remove", "office"), "is the last key"),
    ):
        done = commands.invoke(key_app, [*arguments, "--file", str(path)])
        assert (done.exit_code, said in done.stderr) == (2, True)


@pytest.mark.process
def test_hang_up_makes_a_running_server_read_its_keys_again(tmp_path: Path) -> None:
    ring(tmp_path)
    path = tmp_path / "keys"
    with running(keys=path) as server:
        server.http.headers["x-api-key"] = USER
        server.wait_until_ready()
        engine = server.slots()["engine"]["pid"]
        path.write_text("nonsense")
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "the old keys stay valid" in server.log)
        assert server.solve(GOOD).status_code == 200
        path.unlink()
        write_keys(path, [Key(label="office", role="admin", sha256=hash_of(ADMIN))])
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: server.status("/models") == 401)
        server.http.headers["x-api-key"] = ADMIN
        assert server.slots()["engine"]["pid"] == engine


def test_commands_that_run_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"

    def add(number: int) -> None:
        with changed_keys(path) as keys:
            keys.append(Key(label=f"k{number}", sha256=f"{number:064x}"))

    adding = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for one in adding:
            one.start()
        for one in adding:
            one.join()
    finally:
        sys.setswitchinterval(switch_s)
    assert {key.label for key in read_keys(path)} == {f"k{number}" for number in range(8)}


def test_a_key_too_many_is_refused_and_leaves_the_file_readable(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    write_keys(path, [Key(label=f"k{number}", sha256=f"{number:064x}") for number in range(1000)])
    done = CliRunner().invoke(key_app, ["add", "more", "--file", str(path)])
    assert (done.exit_code, "would hold 1001 keys" in done.stderr, done.stdout) == (2, True, "")
    assert len(read_keys(path)) == 1000


def test_a_link_to_a_key_file_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "keys", tmp_path / "link"
    link.symlink_to(path)
    for label in ("first", "second"):
        assert CliRunner().invoke(key_app, ["add", label, "--file", str(link)]).exit_code == 0
    assert link.is_symlink()
    assert [key.label for key in read_keys(path)] == ["first", "second"]


async def test_a_removed_key_asks_no_more_in_a_batch_that_is_open(tmp_path: Path) -> None:
    keys = ring(tmp_path)
    app, engine_client = app_over(QUICK, keys)
    async with client_of(app, engine_client):
        batch = Call(
            app, "/solve/batch", {"content-type": "application/x-ndjson", "x-api-key": USER}
        )
        line = json.dumps({"puzzle": GOOD}).encode() + b"\n"
        batch.give(line)
        await until(lambda: batch.body.count(b"\n") == 1)
        write_keys(tmp_path / "keys", [SLOW])
        keys.reload()
        batch.give(line, more=False)
        await asyncio.wait_for(batch.task, 60)
    before, after = map(json.loads, batch.body.splitlines())
    assert (before["answer"]["solution"] != GOOD, after["error"]["reason"]) == (True, "bad-key")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[
            (host, 200)
            for host in (
                "127.0.0.1:8000",
                "localhost",
                "[::1]:8000",
                "board",
                "hrm.lan:80",
                "10.1.2.3",
                "Own.ORG",
            )
        ],
        *[
            (host, 403)
            for host in (
                "evil.com",
                "evil.com:8000",
                "127.0.0.1.evil.com",
                "evil.com.",
                "own.org.evil.com",
            )
        ],
    ],
)
def test_without_keys_a_strangers_name_is_not_taken_for_the_servers(host: str, status: int) -> None:
    engine_client = EngineClient(functools.partial(ThreadEngine, QUICK), {NAME: 10})
    with serving(
        create_app(engine_client, [scripted_model(num_slots=2)], Access(hosts=["own.org"])),
        engine_client,
    ) as http:
        answers = [http.get("/models", headers={"host": host})]
        answers.append(
            http.post(
                "/solve", headers={"host": host, "origin": f"http://{host}"}, json={"puzzle": GOOD}
            )
        )
    assert [answer.status_code for answer in answers] == [status] * 2
