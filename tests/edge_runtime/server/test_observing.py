"""What a server reports of requests: ids, log lines, metrics; never a puzzle or a key."""

import contextlib
import json
import logging
import os
import re
from typing import Any

import numpy as np
import pytest
from asgi_tools import app_over, serving
from files import ROOT, text_of
from prometheus_client.parser import text_string_to_metric_families
from scripted_engine import Script, ScriptedEngine
from scripted_server import NAME, QUESTION, SOLUTION, examples, lanes_over
from service_tools import NDJSON, Server, wait_for
from starlette.testclient import TestClient

from hrm_edge_runtime.contract.logs import JsonLines, QueuedLines, TextLines
from hrm_edge_runtime.worker.lanes import Lanes

DASHBOARD = ROOT / "docker/grafana/hrm-edge.json"
OBSERVING = text_of("docs/observing.md")
CLASH = "11.............."
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    records = [record for record in caplog.records if record.name.endswith(".access")]
    return [json.loads(JsonLines().format(record)) for record in records]


def test_a_sane_request_id_is_kept_and_another_is_replaced(keyless: TestClient):
    def given_for(asked: str) -> str:
        answer = keyless.get("/models", headers=[(b"x-request-id", asked.encode())])
        return answer.headers["x-request-id"]

    for sane in ("job-17.a_B", "x" * 64):
        assert given_for(sane) == sane
    for other in ("x" * 65, "two words", "a\u00e4", ""):
        assert re.fullmatch(r"[0-9a-f]{32}", given_for(other))


def test_an_answer_logs_one_line_as_documented(
    keyless: TestClient, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    answer = keyless.post("/solve", json={"puzzle": QUESTION}, headers=TRACED)
    assert answer.json()["solution"] == SOLUTION
    (line,) = access_lines(caplog)
    assert (line["method"], line["route"], line["status"]) == ("POST", "/solve", 200)
    assert (line["model"], line["segments"], line["halted_by"]) == (NAME, 2, "proven")
    assert line["trace"] == TRACE
    assert line["ms"] >= line["compute_ms"] >= 0
    assert line["queue_ms"] >= 0
    shown = re.findall(r"^\{.*\}$", OBSERVING, re.MULTILINE)[0]
    assert set(line) | {"request", "key"} == set(json.loads(shown))


def test_rejections_and_batches_are_logged_and_probes_not(
    keyless: TestClient, caplog: pytest.LogCaptureFixture
):
    lines = [json.dumps({"puzzle": question}) for question in list(examples())[:3]]
    caplog.set_level(logging.INFO)
    for probe in ("/livez", "/readyz", "/metrics"):
        keyless.get(probe)
    keyless.post("/solve", json={"puzzle": CLASH})
    keyless.post("/solve/batch", content="\n".join(lines), headers=NDJSON)
    for path in (f"/models/{NAME}/card", "/models/secret/tasks", "/nothing/secret-path"):
        keyless.get(path)
    keyless.put("/models/secret", content=b"no admin")
    scraped = keyless.get("/metrics").text
    refused, batch, *named, nothing, put = access_lines(caplog)
    templates = [line["route"] for line in (*named, put)]
    assert templates == ["/models/{name}/card", "/models/{name}/tasks", "/models/{name}"]
    assert 'hrm_http_requests_total{route="/models/{name}/card",status="200"} 1.0' in scraped
    assert "secret" not in scraped
    assert (refused["status"], refused["refused"]) == (422, "bad-puzzle")
    assert (batch["puzzles"], batch["segments"], batch["model"]) == (3, 6, NAME)
    assert (nothing["route"], nothing["refused"]) == ("other", "not-found")


def test_no_line_holds_a_puzzle_a_path_or_a_header(
    keyless: TestClient, caplog: pytest.LogCaptureFixture
):
    bearer = {"authorization": "Bearer a-secret-key"}
    caplog.set_level(logging.DEBUG)
    for puzzle in (QUESTION, CLASH, {"deep": [QUESTION]}, f"{QUESTION}9"):
        keyless.post("/solve", json={"puzzle": puzzle}, headers=bearer)
    keyless.get(f"/{QUESTION}?key=a-secret-key")
    log = ""
    for record in caplog.records:
        if record.name.startswith("hrm"):
            log += JsonLines().format(record)
    assert "bad-puzzle" in log
    for secret in (QUESTION, SOLUTION, "a-secret-key", "11......", "deep"):
        assert secret not in log


def test_a_log_line_stays_one_line_whatever_is_in_it():
    fault = ValueError("broken")
    info = (ValueError, fault, None)
    record = logging.LogRecord("x", logging.ERROR, "x", 1, "two\nlines", (), info)
    record.fields = {"status": 200, "key": None}
    (line,) = JsonLines().format(record).splitlines()
    shown = json.loads(line)
    assert (shown["level"], shown["message"], shown["status"]) == ("error", "two\nlines", 200)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", shown["time"])
    assert "key" not in shown
    assert "ValueError: broken" in shown["exception"]
    arguments = ("a\r\nb\x1b[2Jc\u2028 of \u201cwords\u201d",)
    record = logging.LogRecord("x", logging.INFO, "x", 1, "added %s", arguments, None)
    record.request = "r-1"
    line = TextLines().format(record)
    assert line.endswith("INFO added a\\r\\nb\\x1b[2Jc\\u2028 of \u201cwords\u201d [r-1]")


def test_the_engine_names_the_request_it_could_not_answer(caplog: pytest.LogCaptureFixture):
    def garbled() -> Lanes:
        script = Script(answer_T=np.full(16, 99, np.int32))  # no token of this model
        return lanes_over(ScriptedEngine(num_slots=2, seq_len=16, play=lambda _: script))

    caplog.set_level(logging.INFO)
    with serving(app_over(garbled)) as http:
        named = {"x-request-id": "job-9"}
        answer = http.post("/solve", json={"puzzle": QUESTION}, headers=named)
    assert answer.status_code == 500
    (record,) = [record for record in caplog.records if record.name == "hrm_edge_runtime.engine"]
    assert (record.request, record.levelname) == ("job-9", "ERROR")
    (line,) = access_lines(caplog)
    assert line["refused"] == "engine-failed"


def test_every_metric_says_what_it_means(keyless: TestClient):
    meanings = []
    for family in text_string_to_metric_families(keyless.get("/metrics").text):
        if family.name.startswith("hrm_"):
            meanings.append(family.documentation)
            assert re.fullmatch(r"[A-Z1].+\.", family.documentation), family.name
    assert len(meanings) > 20
    assert len(set(meanings)) == len(meanings)


@pytest.mark.process
def test_every_expression_of_the_dashboard_names_what_the_server_exports(server: Server):
    assert server.solve(QUESTION).status_code == 200
    # the engine reports ten times a second
    wait_for(lambda: "outcome=" in server.http.get("/metrics").text)
    page = server.http.get("/metrics").text
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE):
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    # labels of Prometheus itself, and of boards that have sensors
    labels = {"instance", "le", "rail", "zone", "event", *re.findall(r"(\w+)=\"", page)}
    dashboard = json.dumps(json.loads(DASHBOARD.read_text()), indent=1)
    found = re.findall(r'"expr": "(.*)"', dashboard)
    assert len(found) >= 20
    for expression in found:
        used = set(re.findall(r"\b(?:hrm|process)_\w+", expression))
        assert used, expression
        assert used <= names, expression
        groups = ",".join(re.findall(r"by \(([^)]*)\)", expression))
        grouped = set(re.findall(r"\w+", groups))
        matched = set(re.findall(r"(\w+)=~", expression))
        assert grouped | matched <= labels, expression
        assert expression.count("(") == expression.count(")"), expression


def test_nobody_waits_for_a_log_that_is_not_read_and_it_counts_what_it_dropped():
    reader, writer = os.pipe()
    handler = QueuedLines(writer, max_lines=10)
    log = logging.Logger("stalled")
    log.addHandler(handler)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:  # a full pipe holds the writer up until the pipe is read
            os.write(writer, b"\n" * 4096)
    os.set_blocking(writer, True)
    num_sent = 2000
    for number in range(num_sent):
        log.info("%d %s", number, "x" * 200)
    numbers = []
    num_dropped = 0
    with os.fdopen(reader, "rb") as lines:
        while len(numbers) + num_dropped < num_sent:
            number, _, text = lines.readline().rstrip().partition(b" ")
            if text.startswith(b"x"):
                numbers.append(int(number))
            elif text:
                assert text == b"lines of this log were dropped, because nobody read it"
                num_dropped += int(number)
    assert numbers == sorted(set(numbers))
    assert num_dropped > 0
    log.info("nobody is there any more")
    handler.flush()
    os.close(writer)
