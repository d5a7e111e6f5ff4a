"""What is written about observing, held against what a server really tells: metrics, dashboard, log line."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from asgi_tools import QUICK, app_over, serving
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from scripted_server import examples
from service_tools import Server, wait_for

from hrm_edge_runtime.logs import JsonLines

DOCS = Path(__file__).parents[3] / "docs"
HISTOGRAM = ("bucket", "sum", "count")
QUESTION = next(iter(examples()))
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def our_metrics() -> dict[str, Metric]:
    app, _ = app_over(QUICK)
    families = text_string_to_metric_families(app.state.service.metrics.page().decode())
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: family
        for family in families
        if family.name.startswith("hrm_")
    }


def test_the_page_lists_every_metric_and_no_other() -> None:
    written = re.findall(r"^\| `(hrm_\w+)` \| (\w+) \| (.+) \|$", (DOCS / "observing.md").read_text(), re.MULTILINE)
    told = {(name, metric.type, metric.documentation) for name, metric in our_metrics().items()}
    missing = "\n".join(f"| `{name}` | {kind} | {text} |" for name, kind, text in sorted(told - set(written)))
    assert set(written) == told, f"docs/observing.md lacks\n{missing}"
    assert len(written) == len(told)


def expressions(value: object) -> list[str]:
    if isinstance(value, dict):
        return [v for k, v in value.items() if k == "expr"] + [e for v in value.values() for e in expressions(v)]
    return [e for v in value for e in expressions(v)] if isinstance(value, list) else []


@pytest.mark.process
def test_every_expression_of_the_dashboard_names_what_the_server_exports(server: Server) -> None:
    assert server.solve(QUESTION).status_code == 200
    wait_for(lambda: "outcome=" in server.http.get("/metrics").text)  # the engine shows itself ten times a second
    page = server.http.get("/metrics").text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, re.MULTILINE))
    names = set(kinds) | {f"{name}_{end}" for name in kinds if kinds[name] == "histogram" for end in HISTOGRAM}
    labels = {"instance", "le", "rail", "zone", "event"}  # of Prometheus itself, and of boards that have sensors
    labels |= set(re.findall(r"(\w+)=\"", page))
    found = expressions(json.loads((DOCS.parent / "docker/grafana/hrm-edge.json").read_text()))
    assert len(found) >= 20
    for expression in found:
        used = set(re.findall(r"\b(?:hrm|process)_\w+", expression))
        assert used, expression
        assert used <= names, expression
        grouped = [name.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(",")]
        matched = re.findall(r"(\w+)=~", expression)
        assert {*grouped, *matched} <= labels, expression
        assert expression.count("(") == expression.count(")"), expression


def test_the_dashboard_check_can_fail() -> None:
    assert expressions({"panels": [{"targets": [{"expr": "rate(hrm_nothing[1m])"}]}]}) == ["rate(hrm_nothing[1m])"]
    assert "hrm_nothing" not in our_metrics()


def test_the_line_in_the_page_is_one_that_the_server_writes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serving(*app_over(QUICK)) as http:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        http.post("/solve", json={"puzzle": QUESTION}, headers=headers)
    (record,) = [record for record in caplog.records if record.name.endswith(".access")]
    written = json.loads(re.findall(r"^\{.*\}$", (DOCS / "observing.md").read_text(), re.MULTILINE)[0])
    assert set(json.loads(JsonLines().format(record))) | {"request", "key"} == set(written)
