"""Answers as bytes: JSON in plain ASCII (it survives every terminal and proxy), and our own pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse, JSONResponse

from hrm_edge_runtime.service.errors import ServiceError

WEB = Path(__file__).parent / "web"

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class AsciiJSON(JSONResponse):
    """JSON that never fails to encode and never holds NaN."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def error_response(error: ServiceError) -> AsciiJSON:
    return AsciiJSON(error.body(), status_code=error.status, headers=error.headers)


def page(name: str) -> HTMLResponse:
    """A page of ours; it holds its own style and script, so it works without any network but this server."""
    return HTMLResponse((WEB / name).read_text(encoding="utf-8"), headers=PAGE_HEADERS)
