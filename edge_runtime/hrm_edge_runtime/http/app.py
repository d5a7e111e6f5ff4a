"""The HTTP application: its routes, its one middleware, and how every refusal becomes the same answer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hrm_edge_runtime.http.auth import KeyRing
from hrm_edge_runtime.http.body import ClientGoneError
from hrm_edge_runtime.http.errors import ServiceError, invalid, refusal_from
from hrm_edge_runtime.http.middleware import RequestMiddleware
from hrm_edge_runtime.http.models import Library, ServedModel
from hrm_edge_runtime.http.responses import WebFiles, error_response
from hrm_edge_runtime.http.routes import router, solve
from hrm_edge_runtime.http.solve import SolveService
from hrm_edge_runtime.worker.client import EngineClient, NoAnswerError

if TYPE_CHECKING:  # needs the extra hrm-edge[otel]
    from hrm_edge_runtime.http.otel import RequestTracer

CLIENT_GONE = 499  # no client receives it; it shows in the metrics

_ROUTE_FAULTS = {
    404: ("not-found", "there is nothing at this path"),
    405: ("method-not-allowed", "this path does not take this method"),
}


def create_app(
    engine_client: EngineClient,
    models: Sequence[ServedModel],
    *,
    keys: KeyRing | None = None,
    tracer: RequestTracer | None = None,
    library: Library | None = None,
) -> FastAPI:
    """The application over one engine, which starts and stops with it.

    With `keys` every route but /livez needs one of them. With a `library` an admin may add, reload and remove models.
    """
    service = SolveService(models, engine_client, library)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with engine_client:
            yield
        service.close()
        if tracer is not None:
            tracer.close()

    app = FastAPI(
        title="HRM Edge",
        description="Puzzles solved by a Hierarchical Reasoning Model, a segment at a time.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.router.routes.append(Route("/solve", solve, methods=["POST"]))  # FastAPI only describes it: its way costs 60 us
    app.include_router(router)
    app.mount("/web", WebFiles())
    app.add_exception_handler(ServiceError, _refuse)
    app.add_exception_handler(NoAnswerError, _refuse)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(RequestValidationError, _refuse_query)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.openapi_schema = _description(app, next(iter(service.models.values())))
    routes = list(app.openapi_schema["paths"])
    app.add_middleware(RequestMiddleware, metrics=service.metrics, routes=routes, keys=keys, tracer=tracer)
    return app


def _description(app: FastAPI, model: ServedModel) -> dict[str, Any]:
    """OpenAPI, with an example that the first of these very models takes."""
    described = copy.deepcopy(app.openapi())
    for path in ("/solve", "/solve/stream", "/solve/batch"):
        for body in described["paths"][path]["post"]["requestBody"]["content"].values():
            body["schema"]["properties"]["puzzle"]["examples"] = [model.sample]
    return described


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError | NoAnswerError)
    return error_response(refusal_from(error))


async def _refuse_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reason, message = _ROUTE_FAULTS.get(error.status_code, ("refused", str(error.detail)))
    refusal = ServiceError(error.status_code, reason, message, "see /docs for every path and its method")
    refusal.headers.update(error.headers or {})
    return error_response(refusal)


async def _refuse_query(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][-1])
    return error_response(invalid(first["type"], f"{field!r}: {first['msg']}", "see /docs for its values", field=field))


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)
