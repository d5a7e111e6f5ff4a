"""Traces for an OpenTelemetry collector: a span for each request, and below it the queue and compute of its puzzles.

Imported only with `--otlp-endpoint`; needs the extra `hrm-edge[otel]`. The ASGI instrumentation of OpenTelemetry would
replace only the outer span, would run in front of our own refusals' headers, and exists as a beta alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hrm_edge_runtime.batching.task import Conclusion

MAX_PUZZLES = 100  # of a long batch only the first puzzles have their own spans


class RequestTracer:
    """Begins the span of each request; a client's `traceparent` is its parent."""

    def __init__(self, processor: SpanProcessor) -> None:
        self._provider = TracerProvider(resource=Resource.create({"service.name": "hrm-serve"}), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("hrm_edge_runtime")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> RequestTracer:
        """Sends spans to a collector's HTTP endpoint, such as http://collector:4318/v1/traces."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def begin(self, method: str, route: str, headers: Mapping[bytes, bytes], request_id: str) -> RequestSpan:
        carrier = {name: headers.get(name.encode(), b"").decode("latin-1") for name in self._propagator.fields}
        parent = self._propagator.extract(carrier, Context())
        attributes = {"http.request.method": method, "http.route": route, "hrm.request_id": request_id}
        span = self._tracer.start_span(f"{method} {route}", parent, SpanKind.SERVER, attributes=attributes)
        return RequestSpan(self._tracer, span)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class RequestSpan:
    """The span of one request that is being answered."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._inside = set_span_in_context(span, Context())
        self._num_puzzles = 0

    def add(self, model: str, conclusion: Conclusion) -> None:
        """Add the spans of a puzzle that has just been answered."""
        self._num_puzzles += 1
        if self._num_puzzles > MAX_PUZZLES:
            return
        ended_ns = time.time_ns()
        admitted_ns = ended_ns - round(1e9 * conclusion.result.compute_s)
        arrived_ns = admitted_ns - round(1e9 * conclusion.result.queue_s)
        self._add("queue", arrived_ns, admitted_ns, {"hrm.model": model})
        attributes: dict[str, str | int] = {
            "hrm.model": model,
            "hrm.segments": conclusion.total_segments,
            "hrm.attempts": conclusion.num_attempts,
            "hrm.halted_by": conclusion.result.halted_by,
        }
        self._add("compute", admitted_ns, ended_ns, attributes)

    def end(self, status: int, refused: str | None) -> None:
        self._span.set_attributes({"http.response.status_code": status, "hrm.puzzles": self._num_puzzles})
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR, refused or ""))
        self._span.end()

    def _add(self, name: str, began_ns: int, ended_ns: int, attributes: Mapping[str, str | int]) -> None:
        self._tracer.start_span(name, self._inside, start_time=began_ns, attributes=attributes).end(ended_ns)
