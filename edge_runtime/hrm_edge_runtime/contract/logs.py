"""Log lines on standard error, for people or as JSON.

In JSON, the entries of `extra={"fields": {...}}` become keys of the line.
"""

import contextlib
import json
import logging
import os
import queue
import re
import threading
import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal

from hrm_host.reading import printable

LogForm = Literal["text", "json"]

STANDARD_ERROR = 2  # the descriptor of the process; sys.stderr may be a stream without one
MAX_LINES = 10_000  # lines that wait while nobody reads the log; more are dropped
LAST_LINES_S = 1.0  # `flush` waits this long for the queued lines
SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(kw_only=True)
class RequestContext:
    """What a request's log line shows: sums over its answered puzzles.

    It never shows a puzzle or a key.
    """

    request_id: str
    trace_id: str | None = None
    key: str | None = None
    refused: str | None = None
    num_puzzles: int = 0
    segments: int = 0
    attempts: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    models: set[str] = field(default_factory=set[str])
    halted_by: set[str] = field(default_factory=set[str])


_log = logging.getLogger("hrm_edge_runtime.logs")

request: ContextVar[RequestContext | None] = ContextVar("request", default=None)
"""The current request; set for everything below the middleware, tasks included."""


def begin_request(headers: Mapping[bytes, bytes]) -> RequestContext:
    """The context of a new request. It takes the client's id if that is a plain word."""
    request_id = headers.get(b"x-request-id", b"").decode("latin-1")
    if not SANE_ID.fullmatch(request_id):
        request_id = uuid.uuid4().hex
    context = RequestContext(request_id=request_id)
    traceparent = headers.get(b"traceparent", b"").decode("latin-1")
    traced = TRACEPARENT.fullmatch(traceparent)
    if traced:
        context.trace_id = traced[1]
    request.set(context)
    return context


def configure(form: LogForm) -> None:
    handler = QueuedLines(STANDARD_ERROR)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class QueuedLines(logging.Handler):
    """Hands lines to a thread, so that nobody waits when the reader of the log stalls.

    Lines that do not fit into the queue are dropped and counted.
    """

    def __init__(self, handle: int, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        self._handle = handle
        self._lines: queue.Queue[str] = queue.Queue(max_lines)
        self._num_dropped = 0
        threading.Thread(target=self._write_all, name="log-writer", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "request"):  # a record of the engine process has its own id
            context = request.get()
            record.request = ""
            if context is not None:
                record.request = context.request_id
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._num_dropped += 1

    def flush(self) -> None:
        """Wait for the queued lines, but at most LAST_LINES_S. The interpreter calls it at exit."""
        give_up_s = time.monotonic() + LAST_LINES_S
        while self._lines.unfinished_tasks and time.monotonic() < give_up_s:
            time.sleep(0.005)

    def _write_all(self) -> None:
        while True:
            self._write(self._lines.get())
            if self._num_dropped and self._lines.empty():
                with self.lock or contextlib.nullcontext():
                    dropped = (self._num_dropped,)
                    self._num_dropped = 0
                message = "%d lines of this log were dropped, because nobody read it"
                record = _log.makeRecord(
                    _log.name, logging.WARNING, __file__, 0, message, dropped, None
                )
                self._write(self.format(record))  # the queue may be full again
            self._lines.task_done()

    def _write(self, line: str) -> None:
        """Write to the handle itself: the lock of a Python stream would hang the exit."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        with contextlib.suppress(OSError):  # nobody reads the log any more
            while data:
                num_written = os.write(self._handle, data)
                data = data[num_written:]


class TextLines(logging.Formatter):
    """Time, level and message, and the request in brackets if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        request: str = getattr(record, "request", "")
        line = super().formatMessage(record)
        if request:
            line += f" [{request}]"
        return line if line.isprintable() else printable(line)


class JsonLines(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, request, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        created = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": getattr(record, "request", "") or None,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        known = {key: value for key, value in line.items() if value is not None}
        return json.dumps(known, default=str)
