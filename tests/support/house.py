"""An application in this process over real bundles, whose models come and go."""

import contextlib
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from asgi_tools import client_of, engine_of
from bundle_tools import archived
from echo_bundle import ECHO_STEP, write_echo_bundle
from key_tools import ADMIN, AS_ADMIN, AS_USER, write_key_file
from scripted_engine import ThreadEngine
from starlette.applications import Starlette

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.lanes import LaneDefaults, LaneKey, open_lanes
from hrm_edge_server.auth import KeyRing
from hrm_edge_server.library import Library
from hrm_edge_server.middleware import Access
from hrm_edge_server.server import create_app
from hrm_edge_server.uploads import UploadFolder, Uploads

UPLOAD = {**AS_ADMIN, "content-type": "application/x-tar"}
SOLVED = "1234341221434321"
DEFAULTS = LaneDefaults(
    engine="cpu:fp32", num_slots=2, num_threads=1, queue_limit=8, max_attempts=2
)
BROKEN_STEP = ECHO_STEP.replace(
    "logits_BTV = Mul (tokens_BT1, ones_V)",
    "flat = Reshape (tokens_BT1, wrong_shape)\n  logits_BTV = Mul (flat, ones_V)",
)


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

    async def put(self, name: str, bundle: str = "", key: str = ADMIN) -> httpx.Response:
        """Send a bundle of the folder; without its name, the one that is named as the model."""
        body = archived(self.folder / f"{bundle or name}.bundle")
        headers = {**UPLOAD, "x-api-key": key}
        return await self.http.put(f"/models/{name}", content=body, headers=headers)

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
    make_lanes = functools.partial(open_lanes, [*library.lanes.values()])
    make_engine = functools.partial(ThreadEngine, make_lanes)
    engine_client = EngineClient(make_engine, dict.fromkeys(library.lanes, 10))
    access = Access(keys=KeyRing(write_key_file(folder)))
    app = create_app(engine_client, models, library, access)
    async with client_of(app) as http:
        yield House(app=app, http=http, folder=folder)
