"""Traces for an OpenTelemetry collector: a span for each request, and below it the queue and compute of its puzzles.

Imported only with `--otlp-endpoint`; needs the extra `hrm-edge[otel]`. OpenTelemetry's ASGI instrumentation (a beta)
would replace the outer span alone, and knows neither our routes nor our request ids.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hrm_edge_runtime.batching.task import Result
from hrm_edge_runtime.contract.logs import RequestContext

MAX_PUZZLES = 100  # of a long batch only the first puzzles have their own spans


class RequestTracer:
    """Makes the spans of requests; a client's `traceparent` is their parent. What is left is sent at the exit."""

    def __init__(self, processor: SpanProcessor) -> None:
        self.provider = TracerProvider(resource=Resource.create({"service.name": "hrm-serve"}))
        self.provider.add_span_processor(processor)
        self._tracer = self.provider.get_tracer("hrm_edge_runtime")
        self._propagator = TraceContextTextMapPropagator()

    def __call__(
        self, method: str, route: str, headers: Mapping[bytes, bytes], context: RequestContext
    ) -> Callable[[int], None]:
        """Begin the span of a request and return what ends it; each puzzle added to `context` gets its own below it."""
        carrier = {
            name: headers.get(name.encode(), b"").decode("latin-1")
            for name in self._propagator.fields
        }
        span = self._tracer.start_span(
            f"{method} {route}",
            self._propagator.extract(carrier, Context()),
            SpanKind.SERVER,
            attributes={
                "http.request.method": method,
                "http.route": route,
                "hrm.request_id": context.request_id,
            },
        )
        context.trace_solved = partial(
            self._add_puzzle, set_span_in_context(span, Context()), context
        )

        def end(status: int) -> None:
            span.set_attributes(
                {"http.response.status_code": status, "hrm.puzzles": context.num_puzzles}
            )
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR, context.refused or ""))
            span.end()

        return end

    def _add_puzzle(
        self, parent: Context, context: RequestContext, model: str, result: Result
    ) -> None:
        if context.num_puzzles > MAX_PUZZLES:
            return
        ended_ns = time.time_ns()
        admitted_ns = ended_ns - round(1e9 * result.compute_s)
        arrived_ns = admitted_ns - round(1e9 * result.queue_s)
        queue = self._tracer.start_span(
            "queue", parent, start_time=arrived_ns, attributes={"hrm.model": model}
        )
        queue.end(admitted_ns)
        attributes: dict[str, str | int] = {"hrm.model": model, "hrm.status": result.status}
        attributes |= {"hrm.segments": result.total_segments, "hrm.attempts": result.num_attempts}
        attributes["hrm.halted_by"] = result.halted_by
        self._tracer.start_span(
            "compute", parent, start_time=admitted_ns, attributes=attributes
        ).end(ended_ns)


def tracer_to(endpoint: str) -> RequestTracer:
    """Sends spans to a collector's HTTP endpoint, such as http://collector:4318/v1/traces."""
    return RequestTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
