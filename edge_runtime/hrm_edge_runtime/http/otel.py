"""Traces for an OpenTelemetry collector: a span for each request, and beneath it queue and compute of its puzzles.

Imported only where the server was started with `--otlp-endpoint`; needs the extra `hrm-edge[otel]`. A span is told once
its request has been answered, so nothing of this stands in the way of an answer.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as OtelTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from hrm_edge_runtime.http.request_context import Account, Stage


def tracer_to(endpoint: str) -> RequestTracer:
    """Spans to a collector's HTTP endpoint, such as http://collector:4318/v1/traces."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    exporter: SpanExporter = OTLPSpanExporter(endpoint=endpoint)
    return RequestTracer(BatchSpanProcessor(exporter))


class RequestTracer:
    """Makes the spans of answered requests; a client's `traceparent` is their parent."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "hrm-serve"}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer: OtelTracer = self._provider.get_tracer("hrm_edge_runtime")
        self._propagator = TraceContextTextMapPropagator()

    def tell(self, scope: Scope, route: str, account: Account, status: int, began_ns: int) -> None:
        carrier = {name: value for name, value in Headers(scope=scope).items() if name in ("traceparent", "tracestate")}
        span = self._tracer.start_span(
            f"{scope['method']} {route}",
            self._propagator.extract(carrier, Context()),
            SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"],
                "http.route": route,
                "http.response.status_code": status,
                "hrm.request_id": account.request_id,
                "hrm.puzzles": account.num_puzzles,
            },
            start_time=began_ns,
        )
        inside = set_span_in_context(span, Context())
        for stage in account.stages:
            self._tell_stage(stage, inside)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR, account.refused or ""))
        span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _tell_stage(self, stage: Stage, parent: Context) -> None:
        admitted_ns = stage.ended_ns - round(1e9 * stage.compute_s)
        arrived_ns = admitted_ns - round(1e9 * stage.queue_s)
        queue = self._tracer.start_span("queue", parent, start_time=arrived_ns, attributes={"hrm.model": stage.model})
        queue.end(admitted_ns)
        attributes: dict[str, str | int] = {
            "hrm.model": stage.model,
            "hrm.segments": stage.segments,
            "hrm.attempts": stage.attempts,
            "hrm.halted_by": stage.halted_by,
        }
        self._tracer.start_span("compute", parent, start_time=admitted_ns, attributes=attributes).end(stage.ended_ns)
