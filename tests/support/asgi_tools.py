"""An application in this process, called without a socket: a test decides when bytes move.

Its models are scripted, or real bundles that come and go (`House`).
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn
from bundle_tools import archived
from echo_bundle import write_echo_bundle
from scripted_engine import ThreadEngine
from scripted_server import no_library, scripted_lanes, scripted_model
from service_tools import AS_ADMIN, AS_USER, wait_for, write_key_file
from starlette.applications import Starlette
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.lanes import LaneDefaults, LaneKey, MakeLanes
from hrm_edge_server.auth import KeyRing
from hrm_edge_server.connections import ConnectionLimits, GuardedProtocol
from hrm_edge_server.library import Library
from hrm_edge_server.middleware import Access
from hrm_edge_server.server import create_app
from hrm_edge_server.uploads import UploadFolder, Uploads

QUICK = functools.partial(
    scripted_lanes, num_slots=2, queue_limit=8, segments=2, step_s=0.0, load_s=0.0
)
SOLVED = "1234341221434321"
UPLOAD = {**AS_ADMIN, "content-type": "application/x-tar"}
DEFAULTS = LaneDefaults(
    engine="cpu:fp32", num_slots=2, num_threads=1, queue_limit=8, max_attempts=2
)
PLACES = 10  # requests that a lane admits
POLL_EVERY_S = 0.01
MAX_POLLS = 3000


def app_over(
    make_lanes: MakeLanes,
    *more: ServedModel,
    begin: Callable[[MakeLanes], ThreadEngine] = ThreadEngine,
    library: Library | None = None,
    **access: Any,
) -> Starlette:
    """Return an application with this access to a library's models, or to the scripted Sudokus."""
    models = [*more]
    if library is None:
        library = no_library()
        models.insert(0, scripted_model(num_slots=2))
    make_engine = functools.partial(begin, make_lanes)
    engine_client = EngineClient(make_engine, {model.lane: PLACES for model in models})
    return create_app(engine_client, models, library, Access(**access))


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
        self, app: Starlette, path: str, headers: Mapping[str, str], method: str = "POST"
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


class House(NamedTuple):
    """A running application, and the folder of its test: bundles to send, and `uploads`."""

    app: Starlette
    http: httpx.AsyncClient
    folder: Path

    @property
    def engine_client(self) -> EngineClient:
        return engine_of(self.app)

    @property
    def lanes(self) -> list[LaneKey]:
        return sorted(self.engine_client.lane_manager.reports)

    async def put(self, name: str, bundle: str = "") -> httpx.Response:
        """Send a bundle of the folder; without its name, the one that is named as the model."""
        body = archived(self.folder / f"{bundle or name}.bundle")
        return await self.http.put(f"/models/{name}", content=body, headers=UPLOAD)

    async def remove(self, name: str) -> httpx.Response:
        return await self.http.delete(f"/models/{name}", headers=AS_ADMIN)

    async def solve(self, puzzle: str, model: str) -> Any:
        body = {"puzzle": puzzle, "model": model}
        return (await self.http.post("/solve", json=body, headers=AS_USER)).json()

    async def names(self) -> list[str]:
        """Names of the served models, in their order."""
        models = (await self.http.get("/models", headers=AS_USER)).json()["models"]
        return [model["name"] for model in models]


@contextlib.asynccontextmanager
async def house_of(
    folder: Path, name: str = "first", *, max_segments: int = 3, uploads: str = "uploads"
) -> AsyncIterator[House]:
    """Serve one echo model; it takes uploads if their folder has a name."""
    bundle = write_echo_bundle(folder / f"{name}.bundle", name=name, max_segments=max_segments)
    library = Library(DEFAULTS, Uploads(UploadFolder(folder / uploads)) if uploads else None)
    models = library.start_with([Bundle.open(bundle)])
    keys = KeyRing(write_key_file(folder))
    app = app_over(library.make_lanes(), *models, library=library, keys=keys)
    async with client_of(app) as http:
        yield House(app=app, http=http, folder=folder)
