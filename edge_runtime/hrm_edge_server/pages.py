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


def file_in_pieces(file: FileResponse) -> FileResponse:
    """The file, read in small pieces as its client reads."""
    file.chunk_size = PIECE_BYTES
    return file


class WebFiles(StaticFiles):
    """The files of the pages, with the same headers as the pages."""

    def __init__(self) -> None:
        super().__init__(directory=WEB)

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(PAGE_HEADERS)
        if isinstance(response, FileResponse):
            file_in_pieces(response)
        return response
