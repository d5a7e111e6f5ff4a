"""The routes: what each takes, and what it answers where nothing is refused."""

import time
from typing import Annotated, cast

from fastapi import APIRouter, Path, Query
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from hrm_edge_runtime.http import batch, stream
from hrm_edge_runtime.http import body as intake
from hrm_edge_runtime.http.auth import principal_of
from hrm_edge_runtime.http.body import unless_client_leaves
from hrm_edge_runtime.http.errors import ServiceError, stalled, unavailable
from hrm_edge_runtime.http.model_manager import ModelManager
from hrm_edge_runtime.http.responses import JSON, as_json, page
from hrm_edge_runtime.http.schema import (
    BundleRequest,
    ChangeAnswer,
    LiveAnswer,
    ModelsAnswer,
    ReadyAnswer,
    RemovedAnswer,
    SlotsAnswer,
    SolveAnswer,
    SolveRequest,
    error_answers,
    puzzle_body,
    request_body,
    stream_answer,
)
from hrm_edge_runtime.http.solve import SolveService

ModelName = Annotated[str, Path(max_length=200, description="The model's name, which is its bundle's.")]

router = APIRouter()


@router.post(
    "/solve",
    response_model=SolveAnswer,
    responses=error_answers(403, 404, 408, 413, 415, 422, 429, 503, 504),
    openapi_extra=puzzle_body("application/json", "One puzzle."),
)
async def solve(request: Request) -> Response:
    """Solve one puzzle. An answer is the model's own, proven or not; it is never replaced by another solver's."""
    arrival_s = time.monotonic()
    asked = intake.validated(SolveRequest, await intake.body_of(request))
    answer = await unless_client_leaves(request.receive, service_of(request).solve(asked, arrival_s=arrival_s))
    return Response(as_json(answer.model_dump(mode="json")), media_type=JSON)


@router.post(
    "/solve/stream",
    response_class=Response,
    responses={
        **stream_answer(stream.MEDIA_TYPE, "`segment` events, and at last one `answer` or `error`."),
        **error_answers(403, 404, 408, 413, 415, 422, 429, 503),
    },
    openapi_extra=puzzle_body("application/json", "One puzzle."),
)
async def solve_stream(request: Request) -> Response:
    """Solve one puzzle and tell the model's answer after every segment; closing the connection cancels it."""
    arrival_s = time.monotonic()
    asked = intake.validated(SolveRequest, await intake.body_of(request))
    return stream.EventStream(service_of(request).stream(asked, arrival_s=arrival_s))


@router.post(
    "/solve/batch",
    response_class=Response,
    responses={
        **stream_answer(batch.MEDIA_TYPE, 'A line for each: {"line": n, "answer": ...} or {"line": n, "error": ...}.'),
        **error_answers(403, 415, 422),
    },
    openapi_extra=puzzle_body(batch.MEDIA_TYPE, "One puzzle in each line."),
)
async def solve_batch(
    request: Request,
    order: Annotated[batch.BatchOrder, Query(description="Answers as they finish, or in the order of the lines.")] = (
        "as-finished"
    ),
) -> Response:
    """Solve any number of puzzles over one connection; read the answers while you send."""
    intake.check_type(request, batch.MEDIA_TYPES)
    return batch.BatchStream(service_of(request), request, order)


@router.get("/models", responses=error_answers())
async def models(request: Request) -> ModelsAnswer:
    """The served models."""
    service = service_of(request)
    return ModelsAnswer(models=[service.view(model) for model in service.models.values()])


@router.get("/slots", responses=error_answers())
async def slots(request: Request) -> SlotsAnswer:
    """Which puzzle sits in which slot, and how the engine fares."""
    return service_of(request).slots()


@router.get("/livez", responses=error_answers(503))
async def livez(request: Request) -> LiveAnswer:
    """Whether the server is alive: it answers, and its engine makes steps while work waits."""
    engine_client = service_of(request).engine_client
    if engine_client.stalled:
        raise stalled(engine_client.step_age_s)
    return LiveAnswer(step_age_ms=1000 * engine_client.step_age_s)


@router.get("/readyz", responses=error_answers(503))
async def readyz(request: Request) -> ReadyAnswer:
    """Whether new work is taken."""
    state = service_of(request).engine_client.state
    if state != "ready":
        raise unavailable(state)
    return ReadyAnswer(state=state)


@router.get("/metrics", response_class=PlainTextResponse, responses=error_answers())
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(service_of(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)


@router.get("/docs", response_class=HTMLResponse, responses=error_answers())
async def docs() -> Response:
    """This description as a page; it needs no other server."""
    return page("docs.html")


@router.get("/", response_class=HTMLResponse, responses=error_answers())
async def index() -> Response:
    """A board to type a puzzle into."""
    return page("index.html")


@router.put(
    "/models/{name}",
    response_model=ChangeAnswer,
    responses={
        201: {"model": ChangeAnswer, "description": "Added"},
        **error_answers(403, 404, 408, 413, 415, 422, 503, 507),
    },
    openapi_extra=request_body("application/json", BundleRequest.model_json_schema()),
)
async def put_model(request: Request, name: ModelName) -> Response:
    """Serve a bundle from now on: another model (201), or the one of this name loaded again (200).

    What was admitted to the old one is finished by it. A bundle that does not open leaves the old one serving.
    """
    manager = _model_manager(request)
    asked = intake.validated(BundleRequest, await intake.body_of(request))
    change = await manager.put(name, asked.bundle)
    return Response(as_json(change.model_dump(mode="json")), 200 if change.replaced else 201, media_type=JSON)


@router.delete("/models/{name}", responses=error_answers(403, 404, 409, 422, 503))
async def remove_model(request: Request, name: ModelName) -> RemovedAnswer:
    """Serve a model no more; what was admitted to it is finished."""
    await _model_manager(request).remove(name)
    return RemovedAnswer(removed=name)


def service_of(request: Request) -> SolveService:
    return cast(SolveService, request.app.state.service)


def _model_manager(request: Request) -> ModelManager:
    """Refuses everybody but an admin with 403."""
    principal = principal_of(request.scope)
    manager = service_of(request).model_manager
    if manager is None or principal is None or not principal.is_admin:
        raise ServiceError(
            403,
            "admin-only",
            "only an admin may change what is served, and the request holds no admin's key",
            "start the server with --keys FILE and use a key of it that 'hrm-key add LABEL --admin' has made",
        )
    return manager
