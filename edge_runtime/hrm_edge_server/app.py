"""The HTTP application: routes, one middleware, and one form of answer for every refusal."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from hrm_edge_runtime.api.errors import ServiceError, as_json, refusal_from
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.worker.client import EngineClient, NoAnswerError
from hrm_edge_server.body import ClientGoneError
from hrm_edge_server.library import Library
from hrm_edge_server.middleware import Access, RequestMiddleware, response_to
from hrm_edge_server.openapi import SOLVING
from hrm_edge_server.pages import WebFiles
from hrm_edge_server.routes import ROUTES
from hrm_edge_server.solve import ReadyRule, SolveService

_ROUTE_FAULTS = {
    404: ("not-found", "there is nothing at this path"),
    405: ("method-not-allowed", "this path does not take this method"),
}


def create_app(
    engine_client: EngineClient,
    models: Sequence[ServedModel],
    library: Library,
    access: Access | None = None,
    *,
    ready: ReadyRule = "all",
) -> Starlette:
    """The application over an engine, which starts and stops with it.

    An admin may change the models with those of the library. `ready` is the rule of /readyz.
    """
    access = access or Access()
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
    paths = frozenset(route.path for route in ROUTES if isinstance(route, APIRoute))
    entrance = Middleware(RequestMiddleware, metrics=service.metrics, routes=paths, access=access)
    if not access.origins:
        return [entrance]
    cors = Middleware(
        CORSMiddleware,
        allow_origins=access.origins,
        allow_methods=("GET", "POST", "PUT", "DELETE"),
        allow_headers=("Authorization", "Content-Type", "X-API-Key", "X-Request-Id"),
        expose_headers=("Retry-After", "X-Request-Id"),
    )
    return [cors, entrance]


async def _refused(_: Request, error: Exception) -> Response:
    return response_to(refusal_from(cast("ServiceError | NoAnswerError", error)))


async def _client_gone(_: Request, error: Exception) -> Response:
    del error
    return Response(status_code=499)  # no client receives it; it shows in the metrics


async def _not_routed(request: Request, error: Exception) -> Response:
    """Answer a request whose path or method no route takes."""
    fault = cast(HTTPException, error)
    default = ("refused", str(fault.detail))
    reason, message = _ROUTE_FAULTS.get(fault.status_code, default)
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
    return f"send a puzzle: curl {request.url} -d '{body}'"


_HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    ServiceError: _refused,
    NoAnswerError: _refused,
    ClientGoneError: _client_gone,
    HTTPException: _not_routed,
}
