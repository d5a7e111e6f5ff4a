"""The HTTP application: routes, one middleware, and one form of answer for every refusal."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

import fastapi
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp

from hrm_edge_runtime.api.errors import ServiceError, invalid, refusal_from
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.faults import words_for
from hrm_edge_runtime.http import openapi
from hrm_edge_runtime.http.body import ClientGoneError
from hrm_edge_runtime.http.library import Library
from hrm_edge_runtime.http.middleware import INTERNAL, Access, RequestMiddleware, response_to
from hrm_edge_runtime.http.pages import WebFiles
from hrm_edge_runtime.http.routes import OF_FASTAPI, ROUTES, solving
from hrm_edge_runtime.http.solve import ReadyRule, SolveService
from hrm_edge_runtime.worker.client import EngineClient, NoAnswerError

CLIENT_GONE = 499  # no client receives it; it shows in the metrics

NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI would look for OpenTelemetry in every request; our traces are in `otel`."""

_ROUTE_FAULTS = {
    404: ("not-found", "there is nothing at this path"),
    405: ("method-not-allowed", "this path does not take this method"),
}


def create_app(
    engine_client: EngineClient,
    models: Sequence[ServedModel],
    access: Access | None = None,
    *,
    library: Library | None = None,
    ready: ReadyRule = "all",
) -> fastapi.FastAPI:
    """The application over an engine, which starts and stops with it.

    With a `library` an admin may change the models. `ready` is the rule of /readyz.
    """
    access = access or Access()
    service = SolveService(models, engine_client, library, ready)

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncGenerator[None]:
        async with engine_client:
            service.start()
            yield
            service.close()

    app = EdgeApp(
        service,
        access,
        title="HRM Edge",
        description="Puzzles solved by a Hierarchical Reasoning Model, a segment at a time.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=OF_FASTAPI,  # `include_router` would match every request twice
        telemetry=NO_TELEMETRY,
    )
    app.mount("/web", WebFiles())
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


def _entrance(app: ASGIApp, service: SolveService, access: Access) -> ASGIApp:
    """The application behind our middleware."""
    paths = frozenset(route.path for route in ROUTES if isinstance(route, APIRoute))
    entrance = RequestMiddleware(app, metrics=service.metrics, routes=paths, access=access)
    if not access.origins:
        return entrance
    return CORSMiddleware(
        entrance,
        allow_origins=access.origins,
        allow_methods=("GET", "POST", "PUT", "DELETE"),
        allow_headers=("Authorization", "Content-Type", "X-API-Key", "X-Request-Id"),
        expose_headers=("Retry-After", "X-Request-Id"),
    )


class EdgeApp(fastapi.FastAPI):
    """FastAPI behind our middleware, with descriptions of the served models."""

    _described_models: tuple[ServedModel, ...] = ()
    _description: dict[str, Any] | None = None

    def __init__(self, service: SolveService, access: Access, **options: Any) -> None:
        super().__init__(**options)
        self.state.service = service
        self.state.keys = access.keys
        self._access = access

    def build_middleware_stack(self) -> ASGIApp:
        """Our middleware around a router: the routes that solve, and FastAPI for all others."""
        others = super().build_middleware_stack()
        lifespan = self.router.lifespan_context
        router = Router(solving.routes, redirect_slashes=False, default=others, lifespan=lifespan)
        handlers = {kind: _HANDLERS[kind] for kind in _HANDLERS if kind is not Exception}
        answering = ExceptionMiddleware(router, handlers)
        return _entrance(answering, self.state.service, self._access)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description of the models that are served now; kept until they change."""
        service = cast(SolveService, self.state.service)
        models = tuple(service.models.values())
        if self._description is None or self._described_models != models:
            base = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=ROUTES,
            )
            with_keys = self.state.keys is not None
            self._description = openapi.described(base, models, with_keys=with_keys)
            self._described_models = models
        return self._description


async def _refused(_: Request, error: Exception) -> Response:
    return response_to(refusal_from(cast("ServiceError | NoAnswerError", error)))


async def _client_gone(_: Request, error: Exception) -> Response:
    del error
    return Response(status_code=CLIENT_GONE)


async def _invalid(_: Request, error: Exception) -> Response:
    """Answer a request whose path or query has an invalid parameter."""
    first = cast(RequestValidationError, error).errors()[0]
    field = str(first["loc"][-1])
    message = f"the parameter {field!r} is not valid: {words_for(first)}"
    refusal = invalid(first["type"], message, "see /docs for its values", field=field)
    return response_to(refusal)


async def _not_routed(_: Request, error: Exception) -> Response:
    """Answer a request whose path or method no route takes."""
    fault = cast(HTTPException, error)
    default = ("refused", str(fault.detail))
    reason, message = _ROUTE_FAULTS.get(fault.status_code, default)
    headers = dict(fault.headers or {})
    remedy = "see /docs for every path and its method"
    refusal = ServiceError(fault.status_code, reason, message, remedy, headers=headers)
    return response_to(refusal)


async def _failed(_: Request, error: Exception) -> Response:
    del error
    return response_to(INTERNAL)


_HANDLERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ServiceError: _refused,
    NoAnswerError: _refused,
    ClientGoneError: _client_gone,
    RequestValidationError: _invalid,
    HTTPException: _not_routed,
    Exception: _failed,
}
