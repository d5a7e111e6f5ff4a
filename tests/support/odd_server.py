"""Answers and solvers for tests, and a real HTTP server that answers as the test says."""

import contextlib
import functools
import json
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from scripted_server import scripted_model

from hrm_edge_runtime.api.schema import ErrorDetail, SolveAnswer

SOLVED = "1234341221434321"
OPEN = "123434122143432."
USUAL = {
    "how": "plain",
    "segments": 2,
    "margin": 1.0,
    "queue_ms": 0.0,
    "compute_ms": 1.0,
    "model": "m",
    "attempts": 1,
    "total_segments": 2,
    "votes": None,
    "vote_share": None,
}
Reply = Callable[[BaseHTTPRequestHandler], None]
MODEL = scripted_model(num_slots=1).view().model_dump(mode="json") | {"name": "m"}
REFUSAL = ErrorDetail(
    reason="bad-puzzle", field=None, rule=None, cell=None, message="no", remedy="fix it"
)


def answer(puzzle: object, *, is_proven: bool = True) -> SolveAnswer:
    """Return a proven answer, or one that ran out of segments."""
    status = "proven" if is_proven else "unfinished"
    halted_by = "proven" if is_proven else "max_segments"
    verdict = {"status": status, "halted_by": halted_by, "verified": is_proven}
    return SolveAnswer(solution=puzzle, **verdict, **USUAL)


def body(content: bytes | str, status: int = 200, **headers: str) -> Reply:
    raw = content.encode() if isinstance(content, str) else content
    fields = {"Content-Length": str(len(raw)), **headers}

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in fields.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(raw)

    return reply


def lines(*values: object) -> Reply:
    texts = [json.dumps(value) for value in values]
    return body("\n".join(texts) + "\n")


def solved(line: object, solution: object, **changed: object) -> dict[str, object]:
    fields = answer(solution).model_dump(mode="json")
    return {"line": line, "answer": {**fields, **changed}}


def refused(line: int, **changed: object) -> dict[str, object]:
    return {"line": line, "error": {**REFUSAL.model_dump(), **changed}}


@contextlib.contextmanager
def odd_server(batch: Reply, models: Reply | None = None) -> Generator[str]:
    usual = body(json.dumps({"models": [MODEL]}))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(models or usual)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._reply(batch)

        do_PUT = do_POST

        def end_headers(self) -> None:
            self.send_header("Connection", "close")
            super().end_headers()

        def _reply(self, reply: Reply) -> None:
            with contextlib.suppress(ConnectionError):  # the client may leave early
                reply(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serve = functools.partial(server.serve_forever, poll_interval=0.01)  # shutdown waits for it
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
