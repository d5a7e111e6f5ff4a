"""A bare JSON echo on the server's own HTTP stack: what any answer costs before it is ours.

python -m hrm_benchmarks.echo --port 8123
"""

import argparse
import functools
import json
from typing import Any, cast

import uvicorn
from starlette.types import Receive, Scope, Send

from hrm_edge_runtime.http.connections import ConnectionLimits, GuardedProtocol


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """The body of any request, read as JSON and written again."""
    del scope
    body, is_whole = bytearray(), False
    while not is_whole:
        message = await receive()
        body += message.get("body", b"")
        is_whole = not message.get("more_body")
    said = json.dumps(json.loads(body or b"null")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    protocol = cast(Any, functools.partial(GuardedProtocol, limits=ConnectionLimits(max_connections=4096)))
    uvicorn.run(
        echo, port=parser.parse_args().port, http=protocol, log_config=None, access_log=False, lifespan="off", ws="none"
    )


if __name__ == "__main__":
    main()
