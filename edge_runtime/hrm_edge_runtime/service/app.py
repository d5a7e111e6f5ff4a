"""The HTTP application: routes, and how every refusal becomes the same answer.

`create_app` puts it together; it starts the supervisor with the application and stops it with it.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Annotated, Any, cast

from fastapi import APIRouter, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from hrm_edge_runtime.service import batch, intake, streaming
from hrm_edge_runtime.service.departures import ClientGoneError, unless_client_leaves
from hrm_edge_runtime.service.desk import Desk, Order
from hrm_edge_runtime.service.errors import ServiceError, invalid, stalled, unavailable
from hrm_edge_runtime.service.middleware import CountRequests, RequireKey
from hrm_edge_runtime.service.questions import ServedModel
from hrm_edge_runtime.service.responses import AsciiJSON, WebFiles, error_response, page
from hrm_edge_runtime.service.schema import (
    ErrorAnswer,
    LiveAnswer,
    ModelsAnswer,
    ReadyAnswer,
    SlotsAnswer,
    SolveAnswer,
    SolveRequest,
)
from hrm_edge_runtime.service.supervisor import Supervisor

CLIENT_GONE = 499  # never received by anybody; it stands in the metrics

_ERRORS: dict[int, str] = {
    401: "No key, or not a known one (only where the server asks for keys)",
    404: "No such path or model",
    405: "Another method is needed here",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is no plain JSON",
    422: "The request or its puzzle cannot be accepted: field, rule and cell say where",
    500: "A fault of the server or its engine",
    503: "Not now: queue-full, loading, draining or engine-lost; see Retry-After",
    504: "The deadline passed first",
}

_ROUTE_FAULTS = {
    404: ("not-found", "there is nothing at this path"),
    405: ("method-not-allowed", "this path does not take this method"),
}

router = APIRouter()


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": _ERRORS[status]} for status in (*statuses, 401, 405, 500)}


def _body(media_type: str, what: str) -> dict[str, Any]:
    schema = {**SolveRequest.model_json_schema(), "description": what}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def _streamed(media_type: str, what: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": what, "content": {media_type: {"schema": {"type": "string"}}}}}


@router.post(
    "/solve",
    response_model=SolveAnswer,
    responses=_errors(404, 408, 413, 415, 422, 503, 504),
    openapi_extra=_body("application/json", "One puzzle."),
)
async def solve(request: Request) -> Response:
    """Solve one puzzle. An answer is the model's own, proven or not; it is never replaced by another solver's."""
    arrival_s = time.monotonic()
    order = Order(request=await intake.solve_request(request), arrival_s=arrival_s)
    answer = await unless_client_leaves(request.receive, _desk(request).solve(order))
    return AsciiJSON(answer.model_dump(mode="json"))


@router.post(
    "/solve/stream",
    response_class=Response,
    responses={
        **_streamed(streaming.MEDIA_TYPE, "`segment` events, and at last one `answer` or `error`."),
        **_errors(404, 408, 413, 415, 422, 503),
    },
    openapi_extra=_body("application/json", "One puzzle."),
)
async def solve_stream(request: Request) -> Response:
    """Solve one puzzle and tell the model's answer after every segment; closing the connection cancels it."""
    arrival_s = time.monotonic()
    order = Order(request=await intake.solve_request(request), arrival_s=arrival_s)
    return streaming.EventStream(_desk(request).watch(order))


@router.post(
    "/solve/batch",
    response_class=Response,
    responses={
        **_streamed(batch.MEDIA_TYPE, 'A line for each: {"line": n, "answer": ...} or {"line": n, "error": ...}.'),
        **_errors(415, 422),
    },
    openapi_extra=_body(batch.MEDIA_TYPE, "One puzzle in each line."),
)
async def solve_batch(
    request: Request,
    order: Annotated[batch.BatchOrder, Query(description="Answers as they finish, or in the order of the lines.")] = (
        "as-finished"
    ),
) -> Response:
    """Solve any number of puzzles over one connection; read the answers while you send."""
    intake.check_type(request, batch.MEDIA_TYPES)
    return batch.BatchStream(_desk(request), request, order)


@router.get("/models", responses=_errors())
async def models(request: Request) -> ModelsAnswer:
    """The served models."""
    return ModelsAnswer(models=[model.view() for model in _desk(request).models])


@router.get("/slots", responses=_errors())
async def slots(request: Request) -> SlotsAnswer:
    """Which puzzle sits in which slot, and how the engine fares."""
    return _desk(request).slots()


@router.get("/livez", responses=_errors(503))
async def livez(request: Request) -> LiveAnswer:
    """Whether the server is alive: it answers, and its engine makes steps while work waits."""
    supervisor = _desk(request).supervisor
    if supervisor.stalled:
        raise stalled(supervisor.step_age_s)
    return LiveAnswer(step_age_ms=1000 * supervisor.step_age_s)


@router.get("/readyz", responses=_errors(503))
async def readyz(request: Request) -> ReadyAnswer:
    """Whether new work is taken."""
    state = _desk(request).supervisor.state
    if state != "ready":
        raise unavailable(state)
    return ReadyAnswer(state=state)


@router.get("/metrics", response_class=PlainTextResponse, responses=_errors())
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(_desk(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)


@router.get("/docs", response_class=HTMLResponse, responses=_errors())
async def docs() -> Response:
    """This description as a page; it needs no other server."""
    return page("docs.html")


@router.get("/", response_class=HTMLResponse, responses=_errors())
async def index() -> Response:
    """A board to type a puzzle into."""
    return page("index.html")


def create_app(supervisor: Supervisor, models: Sequence[ServedModel], *, api_keys: Collection[str] = ()) -> FastAPI:
    """The application over one supervised engine; with `api_keys` every route but /livez needs one of them."""
    desk = Desk(models, supervisor)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with supervisor:
            yield
        desk.close()

    app = FastAPI(
        title="HRM Edge",
        description="Puzzles solved by a Hierarchical Reasoning Model, a segment at a time.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.desk = desk
    app.include_router(router)
    app.mount("/web", WebFiles())
    app.add_exception_handler(ServiceError, _refuse)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(RequestValidationError, _refuse_query)
    app.add_exception_handler(ClientGoneError, _client_gone)
    app.add_exception_handler(Exception, _own_fault)
    if api_keys:
        app.add_middleware(RequireKey, keys=api_keys)
    app.openapi_schema = _description(app, desk.models[0])
    app.add_middleware(CountRequests, metrics=desk.metrics, routes=list(app.openapi_schema["paths"]))
    return app


def _description(app: FastAPI, model: ServedModel) -> dict[str, Any]:
    """OpenAPI, with an example that the first of these very models takes."""
    described = copy.deepcopy(app.openapi())
    for path in ("/solve", "/solve/stream", "/solve/batch"):
        for body in described["paths"][path]["post"]["requestBody"]["content"].values():
            body["schema"]["properties"]["puzzle"]["examples"] = [model.sample]
    return described


def _desk(request: Request) -> Desk:
    return cast(Desk, request.app.state.desk)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return error_response(error)


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


async def _own_fault(_: Request, __: Exception) -> Response:
    return error_response(ServiceError(500, "internal", "the server made a mistake", "report it with the server's log"))
