"""The application, and uvicorn with our limits and a graceful shutdown.

The server finishes admitted work and exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import functools
import gc
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from hrm_edge_runtime.api.errors import ServiceError, as_json, out_of_threads, refusal_from
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.worker.client import EngineClient, NoAnswerError
from hrm_edge_runtime.worker.process import SpawnedEngine
from hrm_edge_server.auth import KeyRing
from hrm_edge_server.body import ClientGoneError
from hrm_edge_server.connections import HEADER_SECONDS, ConnectionLimits, GuardedProtocol
from hrm_edge_server.library import Library
from hrm_edge_server.middleware import Access, RequestMiddleware, response_to
from hrm_edge_server.openapi import SOLVING
from hrm_edge_server.options import ServeOptions
from hrm_edge_server.pages import WebFiles
from hrm_edge_server.routes import ROUTES
from hrm_edge_server.solve import ReadyRule, SolveService
from hrm_host import memory, system

LAST_BYTES_S = 5  # time for clients to read the answers already written
BACKLOG = 256  # connections that one turn of the event loop may have to accept or refuse
TICKS_A_SECOND = 10
MAX_FREED_BYTES = 32 * memory.MIB
SPARE_FILES = 128  # descriptors for all but connections: pipes, bundles, page files, a margin

_log = logging.getLogger("hrm_edge_runtime.server")


class DrainingServer(uvicorn.Server):
    """Drains at SIGTERM or Ctrl-C: new work gets 503 until all admitted work is answered.

    A second signal answers the admitted work with 503 too. SIGHUP reads the keys again.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: SolveService,
        options: ServeOptions,
        limits: ConnectionLimits,
        keys: KeyRing | None,
    ) -> None:
        super().__init__(config)
        self._limits = limits
        self._service = service
        self._engine_client = service.engine_client
        self._is_announced = False
        self._options = options
        self._keys = keys
        self._had_terminal = os.isatty(sys.stdin.fileno()) if sys.stdin else False
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        if system.HANG_UP is not None:
            loop.add_signal_handler(system.HANG_UP, self._hang_up)
        if self.config.is_ssl:
            # uvicorn cannot limit TLS handshakes, and asyncio's own limit is a minute
            create_server = functools.partial(
                loop.create_server, ssl_handshake_timeout=HEADER_SECONDS
            )
            loop.create_server = create_server  # type: ignore[method-assign]
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if not self._is_announced and self._service.state == "ready":
            self._is_announced = True
            _log.info("ready: %s", self._options.url)
        if counter % TICKS_A_SECOND == 0:
            self._limits.drop_late()
        if counter % (10 * TICKS_A_SECOND) == 0:
            self.give_memory_back()
        return await super().on_tick(counter) or self._engine_client.process.refusal is not None

    @staticmethod
    def give_memory_back() -> None:
        """Return the memory of a burst to the system; the C library would keep it."""
        if memory.freed_bytes() > MAX_FREED_BYTES:
            gc.collect()  # an idle server would not collect the connections of the burst
            memory.give_back_freed_memory()

    def _hang_up(self) -> None:
        """Read the keys again, or drain if a closed terminal sent SIGHUP."""
        if self._had_terminal and not os.isatty(sys.stdin.fileno()):
            self._begin_drain()
        elif self._keys is not None:
            try:
                self._keys.reload()
            except ValueError as error:
                _log.error("the old keys stay valid: %s", error)
            else:
                _log.info("read the key file again: %d keys", len(self._keys))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Only wake the loop. The base class would raise the signal again and not exit with 0."""
        del sig, frame
        # its own context: the signal may interrupt a request, whose id would be logged
        loop = asyncio.get_running_loop()
        loop.call_soon_threadsafe(self._begin_drain, context=contextvars.Context())

    def _begin_drain(self) -> None:
        if self._draining is None:
            _log.info("draining: %d puzzles wait for an answer", self._engine_client.num_waiting)
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self._draining.cancel()

    async def _drain(self) -> None:
        try:
            await self._engine_client.drain(self._options.drain_seconds)
        except asyncio.CancelledError:  # a second signal cancels the drain
            await self._engine_client.drain(0.0)
        finally:  # also if a third signal interrupts
            self.should_exit = True


def run_server(
    library: Library,
    models: Sequence[ServedModel],
    options: ServeOptions,
    access: Access,
) -> None:
    """Serve models until a signal ends it.

    An engine process opens the models that are served when it starts, and builds what they need
    while the port answers. On TensorRT the first model that is built serves, and the others join
    it.

    Raises OSError if the port is taken, and EngineUnavailableError if the engine refuses to start.
    """
    sockets = bound_sockets(options.host, options.port)
    options = replace(options, port=sockets[0].getsockname()[1])  # which --port 0 left open

    def start_engine() -> SpawnedEngine:
        for model in library.build():
            service.models[model.name] = model
        return SpawnedEngine(library.make_lanes(), options.log)

    limit_of = {model.lane: model.num_slots + options.queue_limit for model in models}
    engine_client = EngineClient(start_engine, limit_of, stall_s=options.stall_seconds)
    app = create_app(engine_client, models, library, access, ready=options.ready)
    service = cast(SolveService, app.state.service)
    max_connections = _with_descriptors_for(options.max_connections)
    limits = ConnectionLimits(max_connections=max_connections)
    service.metrics.registry.register(limits)
    config = _config(app, options, limits)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # our own lines report its steps
    DrainingServer(config, service, options, limits, access.keys).run(sockets)
    _log.info("stopped: %d answered", service.metrics.num_answered)
    refusal = engine_client.process.refusal
    if refusal is not None:
        for handler in logging.root.handlers:  # flush, so that the reason is the last line
            handler.flush()
        raise EngineUnavailableError(refusal)


def _config(app: Starlette, options: ServeOptions, limits: ConnectionLimits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast(Any, functools.partial(GuardedProtocol, limits=limits)),
        backlog=BACKLOG,
        workers=1,  # whatever WEB_CONCURRENCY says
        timeout_keep_alive=options.keep_alive_seconds,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=cast(Any, options.tls_key),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=LAST_BYTES_S,
    )


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address of the host, before anything is loaded; `::` takes IPv4 too.

    Raises OSError if another program listens there.
    """
    sockets: list[socket.socket] = []
    try:
        found = dict.fromkeys(socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM))
        for family, _, _, _, address in found:
            is_dual = address[0] == "::" and socket.has_dualstack_ipv6()
            # the hosts file of a container names ::1, even if the container lacks IPv6
            may_lack = address[0] == "::1" and len(found) > 1
            try:
                listener = socket.create_server(address, family=family, dualstack_ipv6=is_dual)
            except OSError as error:
                if not may_lack or error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
            else:
                # connections inherit it; without uvloop they would hold answers back for 40 ms
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sockets.append(listener)
    except OSError as error:
        for listener in sockets:
            listener.close()
        cause = str(error.strerror).partition(" (while attempting")[0]
        raise OSError(
            f"cannot listen on {host}:{port} ({cause}): give another --port or --host."
        ) from error
    return sockets


def _with_descriptors_for(max_connections: int) -> int:
    """Raise this process's limit of open files; returns how many connections fit under it."""
    wanted = max_connections + BACKLOG + SPARE_FILES
    most = system.most_open_files(wanted)
    if most is None or most >= wanted:
        return max_connections
    fitting = most - min(BACKLOG + SPARE_FILES, most // 2)
    _log.warning(
        "at most %d connections: this process may open %d files (ulimit -n)", fitting, most
    )
    return fitting


def create_app(
    engine_client: EngineClient,
    models: Sequence[ServedModel],
    library: Library,
    access: Access,
    *,
    ready: ReadyRule = "all",
) -> Starlette:
    """The application over an engine, which starts and stops with it.

    An admin may change the models with those of the library. `ready` is the rule of /readyz.
    """
    service = SolveService(models, engine_client, library, ready)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with engine_client:
            service.model_manager.start()
            yield
            service.close()

    app = Starlette(
        routes=[*ROUTES, Mount("/web", WebFiles())],
        middleware=_middleware(service, access),
        exception_handlers=_HANDLERS,
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.keys = access.keys
    return app


def _middleware(service: SolveService, access: Access) -> list[Middleware]:
    entrance = Middleware(RequestMiddleware, metrics=service.metrics, routes=ROUTES, access=access)
    if not access.origins:
        return [entrance]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=access.origins,
        allow_methods=("*",),
        allow_headers=("*",),  # tracing adds its own, such as traceparent
        expose_headers=("Retry-After", "X-Request-Id"),
        allow_private_network=True,  # a public page may use the server of its reader's machine
    )
    return [cors, entrance]


async def _refused(_: Request, error: Exception) -> Response:
    return response_to(refusal_from(cast("ServiceError | NoAnswerError", error)))


async def _no_thread(_: Request, error: Exception) -> Response:
    """Reject a request with 503 if the machine cannot start another thread for it."""
    if "start new thread" not in str(error):
        raise error
    return response_to(out_of_threads())


async def _client_gone(_: Request, error: Exception) -> Response:
    del error
    return Response(status_code=499)  # no client receives it; it shows in the metrics


async def _not_routed(request: Request, error: Exception) -> Response:
    """Answer a request whose path or method no route takes."""
    fault = cast(HTTPException, error)
    default = ("refused", str(fault.detail))
    known = {
        404: ("not-found", "there is nothing at this path"),
        405: ("method-not-allowed", "this path does not take this method"),
    }
    reason, message = known.get(fault.status_code, default)
    headers = dict(fault.headers or {})
    remedy = "see /docs for every path and its method"
    if fault.status_code == 405 and request.url.path in SOLVING:
        remedy = _command_for(request)
    refusal = ServiceError(fault.status_code, reason, message, remedy, headers=headers)
    return response_to(refusal)


def _command_for(request: Request) -> str:
    """A command that solves a puzzle of a served model, to copy."""
    service = cast(SolveService, request.app.state.service)
    bodies = [as_json({"puzzle": model.sample}) for model in service.models.values()]
    body = min(bodies, key=len, default='{"puzzle":...}')
    return f"send a puzzle: curl {request.url.replace(query='')} -d '{body}'"


_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    ServiceError: _refused,
    NoAnswerError: _refused,
    ClientGoneError: _client_gone,
    RuntimeError: _no_thread,
    HTTPException: _not_routed,
}
