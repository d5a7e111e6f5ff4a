"""What is told of requests: an id from header to log, lines that machines read, traces, and never a puzzle or a key."""

import contextlib
import gzip
import io
import json
import logging
import os
import queue
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi_tools import QUICK, app_of_two, app_over, lanes_over, serving
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from scripted_server import NAME, examples, scripted_model
from service_tools import Server, running, wait_for

from hrm_edge_runtime.contract.logs import JsonLines, QueuedLines, RequestContext, TextLines
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_edge_runtime.http.app import create_app
from hrm_edge_runtime.http.middleware import Access
from hrm_edge_runtime.worker.lanes import Lanes

DOCS = Path(__file__).parents[3] / "docs"
HISTOGRAM = ("bucket", "sum", "count")
QUESTION, SOLUTION = next(iter(examples().items()))
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name.endswith(".access")]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("asked", "is_kept"),
    [
        ("job-17.a_B", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("two words", False),
        ("a\u00e4", False),
        ("", False),
    ],
)
def test_a_sane_request_id_is_kept_and_another_is_replaced(asked: str, is_kept: bool) -> None:
    with serving(*app_over(QUICK)) as http:
        told = http.get("/models", headers=[(b"x-request-id", asked.encode("utf-8"))]).headers[
            "x-request-id"
        ]
    assert (told == asked) == is_kept
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", told)


def test_an_answer_leaves_one_line_that_says_what_it_cost(caplog: pytest.LogCaptureFixture) -> None:
    headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "x-request-id": "mine"}
    with caplog.at_level(logging.INFO), serving(*app_over(QUICK)) as http:
        answer = http.post("/solve", json={"puzzle": QUESTION}, headers=headers)
    assert answer.json()["solution"] == SOLUTION
    (line,) = access_lines(caplog)
    assert {name: line[name] for name in ("method", "route", "status", "model", "segments", "halted_by", "trace")} == {
        "method": "POST", "route": "/solve", "status": 200, "model": NAME, "segments": 2, "halted_by": "proven",
        "trace": TRACE,
    }  # fmt: skip
    assert line["ms"] >= line["compute_ms"] >= 0 <= line["queue_ms"]


def test_a_refusal_says_why_and_a_batch_adds_its_puzzles_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), serving(*app_over(QUICK)) as http:
        http.post("/solve", json={"puzzle": "11.............."})
        body = "".join(json.dumps({"puzzle": question}) + "\n" for question in list(examples())[:3])
        http.post("/solve/batch", content=body, headers={"content-type": "application/x-ndjson"})
        http.get("/nothing/secret-path")
    refused, batch, nothing = access_lines(caplog)
    assert (refused["status"], refused["refused"]) == (422, "bad-puzzle")
    assert (batch["puzzles"], batch["segments"], batch["model"]) == (3, 6, NAME)
    assert (nothing["route"], nothing["refused"]) == ("other", "not-found")


def test_no_line_holds_a_puzzle_a_path_or_a_header(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), serving(*app_over(QUICK)) as http:
        for puzzle in (QUESTION, "11..............", {"deep": [QUESTION]}, f"{QUESTION}9"):
            http.post(
                "/solve", json={"puzzle": puzzle}, headers={"authorization": "Bearer a-secret-key"}
            )
        http.get(f"/{QUESTION}?key=a-secret-key")
    said = "\n".join(
        JsonLines().format(record) for record in caplog.records if record.name.startswith("hrm")
    )
    assert "bad-puzzle" in said
    assert all(
        secret not in said for secret in (QUESTION, SOLUTION, "a-secret-key", "11......", "deep")
    )


def test_probes_that_succeed_are_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving(*app_over(QUICK)) as http:
        for path in ("/livez", "/readyz", "/metrics", "/models"):
            http.get(path)
    assert [line["route"] for line in access_lines(caplog)] == ["/models"]


def lines_of(formatter: logging.Formatter) -> str:
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    handler.setFormatter(formatter)
    log = logging.Logger("hrm_edge_runtime.engine")
    log.addHandler(handler)
    log.error(
        "two\nlines of %s",
        "\u201cwords\u201d",
        extra={"fields": {"status": 200, "key": None}, "request": "r-1"},
    )
    try:
        raise ValueError("mended")
    except ValueError:
        log.exception("a fault")
    return shown.getvalue()


def test_json_lines_are_one_object_each_whatever_is_in_them() -> None:
    first, second = map(json.loads, lines_of(JsonLines()).splitlines())
    assert (first["level"], first["request"], first["status"]) == ("error", "r-1", 200)
    assert first["message"] == "two\nlines of \u201cwords\u201d"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert "key" not in first
    assert "ValueError: mended" in second["exception"]


def test_lines_for_people_end_with_their_request() -> None:
    assert "ERROR two\\nlines of \u201cwords\u201d [r-1]\n" in lines_of(TextLines())


@pytest.mark.process
def test_both_processes_of_a_server_write_json() -> None:
    with running(log="json") as server:
        server.wait_until_ready()
        server.http.post(
            "/solve", json={"puzzle": QUESTION}, headers={"x-request-id": "from-outside"}
        )
        wait_for(lambda: "from-outside" in server.log)
        lines = [json.loads(line) for line in server.log.splitlines()]
    (line,) = [line for line in lines if line.get("request") == "from-outside"]
    assert (line["logger"], line["route"], line["status"]) == (
        "hrm_edge_runtime.access",
        "/solve",
        200,
    )
    assert any("engine ready" in line["message"] for line in lines)


def test_metrics_tell_models_apart() -> None:
    with serving(*app_of_two()) as http:
        http.post("/solve", json={"puzzle": QUESTION})
        page = http.get("/metrics").text
    assert (
        f'hrm_answers_total{{halted_by="proven",how="plain",model="{NAME}",status="proven"}} 1.0'
        in page
    )
    assert f'hrm_solve_compute_seconds_count{{model="{NAME}"}} 1.0' in page
    assert 'hrm_solve_compute_seconds_count{model="mazes"}' not in page


def test_a_request_is_traced_with_its_queue_and_compute_under_the_clients_span() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from hrm_edge_runtime.http.otel import RequestTracer

    collected = InMemorySpanExporter()
    _, engine_client = app_over(QUICK)
    tracer = RequestTracer(SimpleSpanProcessor(collected))
    app = create_app(engine_client, [scripted_model(num_slots=2)], Access(trace=tracer))

    with serving(app, engine_client) as http:
        http.post(
            "/solve",
            json={"puzzle": QUESTION},
            headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        )
        http.get("/nothing")
    spans = {span.name: span for span in collected.get_finished_spans()}
    assert set(spans) == {"POST /solve", "queue", "compute", "GET other"}
    request, queue, compute = spans["POST /solve"], spans["queue"], spans["compute"]
    assert format(request.context.trace_id, "032x") == TRACE
    assert format(request.parent.span_id, "016x") == "00f067aa0ba902b7"
    assert queue.parent.span_id == compute.parent.span_id == request.context.span_id
    assert request.start_time <= queue.start_time + 10**6
    assert queue.end_time == compute.start_time <= compute.end_time <= request.end_time
    assert (compute.attributes["hrm.segments"], compute.attributes["hrm.model"]) == (2, NAME)
    assert spans["GET other"].parent is None
    assert not any(QUESTION in str(span.attributes) for span in spans.values())


def test_spans_reach_a_collector_over_http() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from hrm_edge_runtime.http.otel import tracer_to

    taken: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        tracer = tracer_to(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        context = RequestContext(request_id="job-17")
        tracer("POST", "/solve", {}, context)(200)
        tracer.provider.shutdown()
        collector.shutdown()
    ((path, body),) = taken
    assert path == "/v1/traces"
    body = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    assert all(word in body for word in (b"POST /solve", b"job-17", b"hrm-serve"))


@pytest.mark.process
def test_the_server_never_loads_opentelemetry_unasked() -> None:
    program = (
        "import sys; from hrm_edge_runtime import cli; from hrm_edge_runtime.http import server; "
    )
    program += "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_the_engine_names_the_request_it_could_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    def garbled() -> Lanes:
        def play(_: object) -> Script:
            return Script(answer_T=np.full(16, 99, np.int32))  # no token of this model

        return lanes_over(ScriptedEngine(num_slots=2, seq_len=16, play=play))

    with caplog.at_level(logging.INFO), serving(*app_over(garbled)) as http:
        answer = http.post("/solve", json={"puzzle": QUESTION}, headers={"x-request-id": "job-9"})
    assert answer.status_code == 500
    (record,) = [record for record in caplog.records if record.name == "hrm_edge_runtime.engine"]
    assert (record.request, record.levelname) == ("job-9", "ERROR")  # type: ignore[attr-defined]
    (line,) = access_lines(caplog)
    assert line["refused"] == "engine-failed"


def our_metrics() -> dict[str, Metric]:
    app, _ = app_over(QUICK)
    families = text_string_to_metric_families(app.state.service.metrics.page().decode())
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in families
        if family.name.startswith("hrm_")
    }


def test_the_page_lists_every_metric_and_no_other() -> None:
    written = re.findall(
        r"^\| `(hrm_\w+)` \| (\w+) \| (.+) \|$", (DOCS / "observing.md").read_text(), re.MULTILINE
    )
    told = {(name, metric.type, metric.documentation) for name, metric in our_metrics().items()}
    missing = "\n".join(
        f"| `{name}` | {kind} | {text} |" for name, kind, text in sorted(told - set(written))
    )
    assert set(written) == told, f"docs/observing.md lacks\n{missing}"
    assert len(written) == len(told)


def expressions(value: object) -> list[str]:
    if isinstance(value, dict):
        return [v for k, v in value.items() if k == "expr"] + [
            e for v in value.values() for e in expressions(v)
        ]
    return [e for v in value for e in expressions(v)] if isinstance(value, list) else []


@pytest.mark.process
def test_every_expression_of_the_dashboard_names_what_the_server_exports(server: Server) -> None:
    assert server.solve(QUESTION).status_code == 200
    wait_for(
        lambda: "outcome=" in server.http.get("/metrics").text
    )  # the engine shows itself ten times a second
    page = server.http.get("/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    names = set(kinds) | {
        f"{name}_{end}" for name in kinds if kinds[name] == "histogram" for end in HISTOGRAM
    }
    labels = {
        "instance",
        "le",
        "rail",
        "zone",
        "event",
    }  # of Prometheus itself, and of boards that have sensors
    labels |= set(re.findall(r"(\w+)=\"", page))
    found = expressions(json.loads((DOCS.parent / "docker/grafana/hrm-edge.json").read_text()))
    assert len(found) >= 20
    for expression in found:
        used = set(re.findall(r"\b(?:hrm|process)_\w+", expression))
        assert used, expression
        assert used <= names, expression
        grouped = [
            name.strip()
            for group in re.findall(r"by \(([^)]*)\)", expression)
            for name in group.split(",")
        ]
        matched = re.findall(r"(\w+)=~", expression)
        assert {*grouped, *matched} <= labels, expression
        assert expression.count("(") == expression.count(")"), expression


def test_the_dashboard_check_can_fail() -> None:
    assert expressions({"panels": [{"targets": [{"expr": "rate(hrm_nothing[1m])"}]}]}) == [
        "rate(hrm_nothing[1m])"
    ]
    assert "hrm_nothing" not in our_metrics()


def test_the_line_in_the_page_is_one_that_the_server_writes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), serving(*app_over(QUICK)) as http:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        http.post("/solve", json={"puzzle": QUESTION}, headers=headers)
    (record,) = [record for record in caplog.records if record.name.endswith(".access")]
    written = json.loads(
        re.findall(r"^\{.*\}$", (DOCS / "observing.md").read_text(), re.MULTILINE)[0]
    )
    assert set(json.loads(JsonLines().format(record))) | {"request", "key"} == set(written)


def test_nobody_waits_for_a_log_that_is_not_read_and_it_says_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second burst comes when the writer has found the queue empty and is about to say what was dropped."""
    reader, writer = os.pipe()
    handler, log = QueuedLines(writer, max_lines=10), logging.Logger("stalled")
    log.addHandler(handler)
    monkeypatch.setattr("hrm_edge_runtime.contract.logs._log", log)
    dropped, numbers, rest = 0, list[int](), b""
    first, *later = range(2000), range(2000, 2050)
    num_sent = later[-1].stop
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(
            writer, b"\n" * 4096
        ):  # full, so the first line holds the writer up until the pipe is read
            pass
    os.set_blocking(writer, True)

    def say(burst: range) -> None:
        for number in burst:
            log.info("%d %s", number, "x" * 200)

    def is_empty(lines: queue.Queue[bytes]) -> bool:
        found = lines.qsize() == 0
        if found and later and lines.maxsize == 10:
            say(later.pop())
        return found

    say(first)
    monkeypatch.setattr(queue.Queue, "empty", is_empty)
    while len(numbers) + dropped < num_sent:
        *lines, rest = (rest + os.read(reader, 1 << 16)).split(b"\n")
        for number, what in (line.split(b" ", 1) for line in lines if line):
            if what.startswith(b"x"):
                numbers.append(int(number))
            else:
                assert what == b"lines of this log were dropped, because nobody read it"
                dropped += int(number)
    assert numbers == sorted(set(numbers))
    assert dropped > 0
    os.close(reader)
    log.info("nobody is there any more")
    handler.flush()
    os.close(writer)


def test_a_line_stays_a_line_and_says_nothing_to_a_terminal() -> None:
    record = logging.LogRecord(
        "x", logging.INFO, "x", 1, "added %s", ("a\r\nb\x1b[2Jc\u2028",), None
    )
    said = TextLines().format(record)
    assert said.endswith(r"added a\r\nb\x1b[2Jc\u2028")
