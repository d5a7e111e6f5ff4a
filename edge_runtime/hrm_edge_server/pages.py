"""The pages at / and /docs with their style and scripts. They load nothing from other hosts."""

from pathlib import Path
from typing import Any

from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from hrm_edge_server.middleware import PIECE_BYTES

WEB = Path(__file__).parent / "web"

CONTENT_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # a string never becomes markup, even by mistake
    "trusted-types 'none'",
)
PAGE_HEADERS = {
    "Content-Security-Policy": "; ".join(CONTENT_POLICY),
    "Cache-Control": "no-cache",
}


def page(name: str) -> Response:
    text = (WEB / name).read_text(encoding="utf-8")
    return HTMLResponse(text, headers=PAGE_HEADERS)


class SmallPieces(FileResponse):
    """A file that is read piece by piece, as its client reads."""

    chunk_size = PIECE_BYTES


class WebFiles(StaticFiles):
    """The files of the pages, with the same headers as the pages."""

    def __init__(self) -> None:
        super().__init__(directory=WEB)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(PAGE_HEADERS)
        if isinstance(response, FileResponse):
            response.chunk_size = PIECE_BYTES
        return response
