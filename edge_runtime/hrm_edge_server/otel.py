"""Traces for an OpenTelemetry collector: a span per request, with queue and compute below it.

Imported only with `--otlp-endpoint`; needs the extra `hrm-edge[otel]`. OpenTelemetry's ASGI
instrumentation (a beta) would replace only the outer span, and knows neither our routes nor our
request ids.
"""

import threading
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

CLOSE_SECONDS = 3.0
MAX_PUZZLES = 100  # puzzles of a batch that have their own spans


class RequestTracer:
    """Creates a span for each request, under the client's `traceparent` if there is one."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "hrm-serve"})
        self.provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.provider.add_span_processor(processor)
        self._tracer = self.provider.get_tracer("hrm_edge_runtime")
        self._propagator = TraceContextTextMapPropagator()

    def __call__(
        self,
        method: str,
        route: str,
        headers: Mapping[bytes, bytes],
        context: RequestContext,
    ) -> Callable[[int], None]:
        """Begin the span of a request and return the function that ends it.

        Each puzzle added to `context` gets a span below it.
        """
        span = self._tracer.start_span(f"{method} {route}", self._parent(headers), SpanKind.SERVER)
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.route", route)
        span.set_attribute("hrm.request_id", context.request_id)
        inside = set_span_in_context(span, Context())
        context.trace_solved = partial(self._add_puzzle, inside, context)

        def end(status: int) -> None:
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("hrm.puzzles", context.num_puzzles)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR, context.refused or ""))
            span.end()

        return end

    def close(self) -> None:
        """Send the spans that are left; a collector that hangs does not hold the process back."""
        closing = threading.Thread(target=self.provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def _parent(self, headers: Mapping[bytes, bytes]) -> Context:
        carrier: dict[str, str] = {}
        for name in self._propagator.fields:
            value = headers.get(name.encode(), b"")
            carrier[name] = value.decode("latin-1")
        return self._propagator.extract(carrier, Context())

    def _add_puzzle(
        self,
        parent: Context,
        context: RequestContext,
        model: str,
        result: Result,
    ) -> None:
        if context.num_puzzles > MAX_PUZZLES:
            return
        ended_ns = time.time_ns()
        admitted_ns = ended_ns - round(1e9 * result.compute_s)
        arrived_ns = admitted_ns - round(1e9 * result.queue_s)
        queue = self._tracer.start_span("queue", parent, start_time=arrived_ns)
        queue.set_attribute("hrm.model", model)
        queue.end(admitted_ns)
        compute = self._tracer.start_span("compute", parent, start_time=admitted_ns)
        compute.set_attribute("hrm.model", model)
        compute.set_attribute("hrm.status", result.status)
        compute.set_attribute("hrm.segments", result.total_segments)
        compute.set_attribute("hrm.attempts", result.num_attempts)
        compute.set_attribute("hrm.halted_by", result.halted_by)
        compute.end(ended_ns)


def tracer_to(endpoint: str) -> RequestTracer:
    """A tracer for a collector's HTTP endpoint, such as http://collector:4318/v1/traces."""
    return RequestTracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
