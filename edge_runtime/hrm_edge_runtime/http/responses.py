"""Answers as bytes: JSON in plain ASCII (it survives every terminal and proxy), and our own pages with their files."""

import json
import os
from pathlib import Path

from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from hrm_edge_runtime import logs
from hrm_edge_runtime.http.errors import ServiceError

WEB = Path(__file__).parents[1] / "web"

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",  # a string never becomes markup, not even by mistake
    "Cache-Control": "no-cache",
}
SAFE_HEADERS = (  # of every answer
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)
JSON = "application/json"

as_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
"""One line of JSON in ASCII; refuses NaN."""


def error_response(error: ServiceError) -> Response:
    """The answer to a refused request; its log line gets the reason."""
    if (context := logs.request.get()) is not None:
        context.refused = error.reason
    return Response(as_json(error.body()), error.status, error.headers, JSON)


def page(name: str) -> HTMLResponse:
    """A page of ours; its style and scripts come from /web/, so it works without any network but this server."""
    return HTMLResponse((WEB / name).read_text(encoding="utf-8"), headers=PAGE_HEADERS)


class WebFiles(StaticFiles):
    """The files of our pages."""

    def __init__(self) -> None:
        super().__init__(directory=WEB)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(PAGE_HEADERS)
        return response
