"""A bare JSON echo with the server's own uvicorn settings: the least that a request can cost.

`python -m hrm_benchmarks.echo --port PORT` answers POST /solve with the body it got.
"""

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hrm_edge_runtime.http.server import OF_UVICORN

COMMAND = (sys.executable, "-m", "hrm_benchmarks.echo")


async def ready(_: Request) -> Response:
    return Response()


async def echo(request: Request) -> Response:
    return JSONResponse(await request.json())


if __name__ == "__main__":
    routes = [Route("/readyz", ready), Route("/solve", echo, methods=["POST"])]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[-1]), **OF_UVICORN)
