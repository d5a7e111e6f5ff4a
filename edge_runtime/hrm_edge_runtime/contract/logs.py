"""Log lines on standard error, for people or as JSON, where extra={"fields": {...}} become keys."""

import contextlib
import json
import logging
import os
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

from hrm_host.text import printable

LogForm = Literal["text", "json"]

MAX_LINES = 10_000  # that wait for the log's reader
LAST_LINES_S = 1.0  # for them at the end
SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class Solved(Protocol):
    """What a log line takes from the result of a puzzle."""

    @property
    def total_segments(self) -> int: ...
    @property
    def num_attempts(self) -> int: ...
    @property
    def queue_s(self) -> float: ...
    @property
    def compute_s(self) -> float: ...
    @property
    def halted_by(self) -> str: ...


@dataclass(kw_only=True)
class RequestContext:
    """What a request's log line and trace say, in sums over its answered puzzles: never a puzzle or a key."""

    request_id: str
    trace_id: str | None = None
    key: str | None = None
    refused: str | None = None
    trace_solved: Callable[[str, Any], None] | None = None
    num_puzzles: int = 0
    segments: int = 0
    attempts: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    models: set[str] = field(default_factory=set[str])
    halted_by: set[str] = field(default_factory=set[str])

    def add(self, model: str, result: Solved) -> None:
        self.num_puzzles += 1
        self.segments += result.total_segments
        self.attempts += result.num_attempts
        self.queue_s += result.queue_s
        self.compute_s += result.compute_s
        self.models.add(model)
        self.halted_by.add(result.halted_by)
        if self.trace_solved is not None:
            self.trace_solved(model, result)


_log = logging.getLogger("hrm_edge_runtime.logs")

request: ContextVar[RequestContext | None] = ContextVar("request", default=None)
"""The current request; set for everything below the middleware, tasks included."""


def begin_request(headers: Mapping[bytes, bytes]) -> RequestContext:
    """The context of a new request; its id is the client's where that is a plain word, else a fresh one."""
    asked = headers.get(b"x-request-id", b"").decode("latin-1")
    traced = TRACEPARENT.fullmatch(headers.get(b"traceparent", b"").decode("latin-1"))
    context = RequestContext(
        request_id=asked if SANE_ID.fullmatch(asked) else uuid.uuid4().hex,
        trace_id=traced[1] if traced else None,
    )
    request.set(context)
    return context


def configure(form: LogForm) -> None:
    handler = QueuedLines(sys.stderr.fileno())
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class QueuedLines(logging.Handler):
    """Hands lines to a thread: nobody waits for a log whose reader stalls, and the lines dropped are counted."""

    def __init__(self, handle: int, max_lines: int = MAX_LINES) -> None:
        super().__init__()
        self._handle = handle
        self._lines: queue.Queue[bytes] = queue.Queue(max_lines)
        self._num_dropped = 0
        threading.Thread(target=self._write_all, name="log-writer", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if not hasattr(record, "request"):  # those of the engine process name their own
            context = request.get()
            record.request = context.request_id if context else ""
        try:
            self._lines.put_nowait(self._line(record))
        except queue.Full:
            self._num_dropped += 1

    def _line(self, record: logging.LogRecord) -> bytes:
        return self.format(record).encode("utf-8", "backslashreplace") + b"\n"

    def flush(self) -> None:
        """Wait for the queued lines, though not for a reader that stalls; the interpreter calls it at its end."""
        give_up_s = time.monotonic() + LAST_LINES_S
        while self._lines.unfinished_tasks and time.monotonic() < give_up_s:
            time.sleep(0.005)

    def _write_all(self) -> None:
        while True:
            rest = self._lines.get()
            if self._num_dropped and self._lines.empty():
                with self.lock or contextlib.nullcontext():
                    num_dropped, self._num_dropped = self._num_dropped, 0
                said = "%d lines of this log were dropped, because nobody read it"
                record = _log.makeRecord(
                    _log.name, logging.WARNING, __file__, 0, said, (num_dropped,), None
                )
                rest += self._line(record)  # past the queue, which may be full again
            with contextlib.suppress(OSError):  # nobody reads the log any more
                while rest:
                    rest = rest[
                        os.write(self._handle, rest) :
                    ]  # not a Python stream: its lock would hang the exit
            self._lines.task_done()


class TextLines(logging.Formatter):
    """Time, level and message; the request in brackets where there is one."""

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
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": getattr(record, "request", "") or None,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(
            {key: value for key, value in line.items() if value is not None}, default=str
        )
