"""An application in this process, called without a socket: a test decides when bytes move."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import uvicorn
from scripted_engine import ThreadEngine, ready_lane
from scripted_server import NAME, PUZZLE, no_library, scripted_lanes, scripted_model
from service_tools import wait_for
from starlette.applications import Starlette
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.lanes import LaneKey, Lanes, MakeLanes
from hrm_edge_server.connections import ConnectionLimits, GuardedProtocol
from hrm_edge_server.middleware import Access
from hrm_edge_server.server import create_app
from hrm_puzzles.puzzle import Puzzle

QUICK = functools.partial(
    scripted_lanes, num_slots=2, queue_limit=8, segments=2, step_s=0.0, load_s=0.0
)
PLACES = 10  # requests that a lane admits
POLL_EVERY_S = 0.01
MAX_POLLS = 3000


def lanes_over(engine: Engine, puzzle: Puzzle = PUZZLE, name: str = NAME) -> Lanes:
    table_PE = np.zeros((1, 4), np.float32)
    lane = TaskLane(engine, puzzle, table_PE, queue_limit=8)
    return {LaneKey(name): ready_lane(lane)}


def app_over(
    make_lanes: MakeLanes,
    *more: ServedModel,
    begin: Callable[[MakeLanes], ThreadEngine] = ThreadEngine,
    **access: Any,
) -> Starlette:
    """Return an application of the scripted Sudokus and of more models, with this access."""
    models = [scripted_model(num_slots=2), *more]
    make_engine = functools.partial(begin, make_lanes)
    engine_client = EngineClient(make_engine, {model.lane: PLACES for model in models})
    return create_app(engine_client, models, no_library(), Access(**access))


def engine_of(app: Starlette) -> EngineClient:
    return app.state.service.engine_client


@contextlib.asynccontextmanager
async def client_of(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Run the application and yield a client when it is ready."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        await until(lambda: engine_of(app).state == "ready")
        yield http


@contextlib.contextmanager
def serving(app: Starlette, *, until_ready: bool = True) -> Iterator[TestClient]:
    """Run the application in a thread of its own; the client works from any thread."""
    with TestClient(app, base_url="http://test", follow_redirects=False) as http:
        if until_ready:
            wait_for(lambda: engine_of(app).state == "ready")
        yield http


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    for _ in range(MAX_POLLS):
        if holds():
            return
        await asyncio.sleep(POLL_EVERY_S)
    raise AssertionError("the condition never became true")


class Call:
    """One request; the test feeds its body and takes its answer piece by piece."""

    def __init__(
        self,
        app: Starlette,
        path: str,
        headers: Mapping[str, str],
        method: str = "POST",
    ) -> None:
        self.status = 0
        self.body = b""
        self.num_taken = 0
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope: dict[str, Any] = {"type": "http", "client": ("127.0.0.1", 1), "method": method}
        scope["path"], _, query = path.partition("?")
        scope["raw_path"] = scope["path"].encode()
        scope["query_string"] = query.encode()
        scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def give(self, piece: bytes, *, more: bool = True) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": piece, "more_body": more})

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def _receive(self) -> dict[str, Any]:
        message = await self._inbox.get()
        self.num_taken += 1
        return message

    async def _send(self, message: Any) -> None:
        await self.may_send.wait()
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


@contextlib.asynccontextmanager
async def live(app: Any, limits: ConnectionLimits | None = None) -> AsyncIterator[int]:
    """Serve an application, which runs already, on a socket of this process; yields the port."""
    limits = limits or ConnectionLimits(max_connections=100)
    state = ServerState()
    config = uvicorn.Config(
        app, interface="asgi3", log_config=None, lifespan="off", ws="none", timeout_keep_alive=60
    )
    make = functools.partial(
        GuardedProtocol, limits=limits, config=config, server_state=state, app_state={}
    )
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    watch = asyncio.ensure_future(_drop_late(limits))
    async with server:
        yield server.sockets[0].getsockname()[1]
        for connection in tuple(limits.connections):
            connection.transport.abort()
        while state.connections:
            await asyncio.sleep(POLL_EVERY_S)
        watch.cancel()


async def _drop_late(limits: ConnectionLimits) -> None:
    while True:
        await asyncio.sleep(3 * POLL_EVERY_S)
        limits.drop_late()
