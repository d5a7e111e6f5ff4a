"""What the server remembers of one HTTP request for its log line and its trace: never a puzzle or a key.

The context of the current request is found from anywhere below the middleware, tasks included.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hrm_edge_runtime import logs
from hrm_edge_runtime.batching.task import Conclusion

if TYPE_CHECKING:  # needs the extra hrm-edge[otel]
    from hrm_edge_runtime.http.otel import RequestSpan

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(kw_only=True)
class RequestContext:
    """One request; figures are sums over its answered puzzles."""

    request_id: str
    trace_id: str | None = None
    span: RequestSpan | None = None
    refused: str | None = None
    num_puzzles: int = 0
    segments: int = 0
    attempts: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    models: set[str] = field(default_factory=set[str])
    halted_by: set[str] = field(default_factory=set[str])

    def add(self, model: str, conclusion: Conclusion) -> None:
        """Add an answered puzzle."""
        result = conclusion.result
        self.num_puzzles += 1
        self.segments += conclusion.total_segments
        self.attempts += conclusion.num_attempts
        self.queue_s += result.queue_s
        self.compute_s += result.compute_s
        self.models.add(model)
        self.halted_by.add(result.halted_by)
        if self.span is not None:
            self.span.add(model, conclusion)

    def fields(self) -> dict[str, object]:
        """What a log line says of the puzzles; nothing where there was none."""
        if not self.num_puzzles:
            return {}
        return {
            "model": ",".join(sorted(self.models)),
            "puzzles": self.num_puzzles,
            "attempts": self.attempts,
            "segments": self.segments,
            "halted_by": ",".join(sorted(self.halted_by)),
            "queue_ms": round(1000 * self.queue_s, 3),
            "compute_ms": round(1000 * self.compute_s, 3),
        }


current: ContextVar[RequestContext | None] = ContextVar("request", default=None)


def begin(headers: Mapping[str, str]) -> RequestContext:
    """The context of a new request; its id is the client's where that is a plain word, else a fresh one."""
    asked = headers.get("x-request-id", "")
    traced = TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    context = RequestContext(
        request_id=asked if SANE_ID.fullmatch(asked) else uuid.uuid4().hex, trace_id=traced[1] if traced else None
    )
    current.set(context)
    logs.request_id.set(context.request_id)
    return context
