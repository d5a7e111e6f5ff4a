"""Log lines on standard error, for people or as JSON for machines; both processes write the same form.

A line may carry `fields` (extra={"fields": {...}}), which JSON shows as keys, and names the request it belongs to.
"""

import json
import logging
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal

LogForm = Literal["text", "json"]

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the HTTP request that is being answered; empty outside of one."""


def configure(form: LogForm) -> None:
    """Log from INFO on, in place of whatever was configured before."""
    handler = logging.StreamHandler()
    handler.addFilter(add_request_id)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def add_request_id(record: logging.LogRecord) -> bool:
    """Name the current request, unless the record names its own as those of the engine process do."""
    if not hasattr(record, "request"):
        record.request = request_id.get()
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
