"""Log lines on standard error, for people or as JSON for machines, and what they say of an HTTP request.

Both processes write the same form. A line may carry `fields` (extra={"fields": {...}}), which JSON shows as keys, and
names the request it belongs to.
"""

import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from hrm_edge_runtime.batching.task import Result

LogForm = Literal["text", "json"]

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(kw_only=True)
class RequestContext:
    """What the server remembers of one HTTP request for its log line and its trace: never a puzzle or a key.

    Figures are sums over its answered puzzles. `key` is its key's label; `trace_solved` adds a puzzle to its trace.
    """

    request_id: str
    trace_id: str | None = None
    key: str | None = None
    refused: str | None = None
    trace_solved: Callable[[str, Result], None] | None = None
    num_puzzles: int = 0
    segments: int = 0
    attempts: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    models: set[str] = field(default_factory=set[str])
    halted_by: set[str] = field(default_factory=set[str])

    def add(self, model: str, result: Result) -> None:
        """Add an answered puzzle."""
        self.num_puzzles += 1
        self.segments += result.total_segments
        self.attempts += result.num_attempts
        self.queue_s += result.queue_s
        self.compute_s += result.compute_s
        self.models.add(model)
        self.halted_by.add(result.halted_by)
        if self.trace_solved is not None:
            self.trace_solved(model, result)

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


request: ContextVar[RequestContext | None] = ContextVar("request", default=None)
"""The current request; set for everything below the middleware, tasks included."""


def begin_request(headers: Mapping[bytes, bytes]) -> RequestContext:
    """The context of a new request; its id is the client's where that is a plain word, else a fresh one."""
    asked = headers.get(b"x-request-id", b"").decode("latin-1")
    traced = TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").decode("latin-1"))
    context = RequestContext(
        request_id=asked if SANE_ID.fullmatch(asked) else uuid.uuid4().hex, trace_id=traced[1] if traced else None
    )
    request.set(context)
    return context


def configure(form: LogForm) -> None:
    """Log from INFO on, in place of whatever was configured before."""
    handler = logging.StreamHandler()
    handler.addFilter(add_request_id)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def add_request_id(record: logging.LogRecord) -> bool:
    """Name the current request, unless the record names its own as those of the engine process do."""
    if not hasattr(record, "request"):
        context = request.get()
        record.request = context.request_id if context else ""
    return True


class TextLines(logging.Formatter):
    """Time, level and message; the request in brackets where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        request: str = getattr(record, "request", "")
        return super().formatMessage(record) + (f" [{request}]" if request else "")


class JsonLines(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, request, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": getattr(record, "request", "") or None,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps({key: value for key, value in line.items() if value is not None}, default=str)
