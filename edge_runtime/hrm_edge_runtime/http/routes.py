"""The routes: what each takes, and what it answers where nothing is refused."""

from __future__ import annotations

import time
from typing import Annotated, cast

from fastapi import APIRouter, Query
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from hrm_edge_runtime.http import batch, stream
from hrm_edge_runtime.http import body as intake
from hrm_edge_runtime.http.disconnects import unless_client_leaves
from hrm_edge_runtime.http.errors import stalled, unavailable
from hrm_edge_runtime.http.openapi import body, errors, streamed
from hrm_edge_runtime.http.responses import AsciiJSON, page
from hrm_edge_runtime.http.schema import LiveAnswer, ModelsAnswer, ReadyAnswer, SlotsAnswer, SolveAnswer
from hrm_edge_runtime.http.solve import Order, SolveService

router = APIRouter()


@router.post(
    "/solve",
    response_model=SolveAnswer,
    responses=errors(403, 404, 408, 413, 415, 422, 429, 503, 504),
    openapi_extra=body("application/json", "One puzzle."),
)
async def solve(request: Request) -> Response:
    """Solve one puzzle. An answer is the model's own, proven or not; it is never replaced by another solver's."""
    arrival_s = time.monotonic()
    order = Order(request=await intake.solve_request(request), arrival_s=arrival_s)
    answer = await unless_client_leaves(request.receive, service_of(request).solve(order))
    return AsciiJSON(answer.model_dump(mode="json"))


@router.post(
    "/solve/stream",
    response_class=Response,
    responses={
        **streamed(stream.MEDIA_TYPE, "`segment` events, and at last one `answer` or `error`."),
        **errors(403, 404, 408, 413, 415, 422, 429, 503),
    },
    openapi_extra=body("application/json", "One puzzle."),
)
async def solve_stream(request: Request) -> Response:
    """Solve one puzzle and tell the model's answer after every segment; closing the connection cancels it."""
    arrival_s = time.monotonic()
    order = Order(request=await intake.solve_request(request), arrival_s=arrival_s)
    return stream.EventStream(service_of(request).watch(order))


@router.post(
    "/solve/batch",
    response_class=Response,
    responses={
        **streamed(batch.MEDIA_TYPE, 'A line for each: {"line": n, "answer": ...} or {"line": n, "error": ...}.'),
        **errors(403, 415, 422),
    },
    openapi_extra=body(batch.MEDIA_TYPE, "One puzzle in each line."),
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


@router.get("/models", responses=errors())
async def models(request: Request) -> ModelsAnswer:
    """The served models."""
    service = service_of(request)
    return ModelsAnswer(models=[service.view(model) for model in service.models])


@router.get("/slots", responses=errors())
async def slots(request: Request) -> SlotsAnswer:
    """Which puzzle sits in which slot, and how the engine fares."""
    return service_of(request).slots()


@router.get("/livez", responses=errors(503))
async def livez(request: Request) -> LiveAnswer:
    """Whether the server is alive: it answers, and its engine makes steps while work waits."""
    engine_client = service_of(request).engine_client
    if engine_client.stalled:
        raise stalled(engine_client.step_age_s)
    return LiveAnswer(step_age_ms=1000 * engine_client.step_age_s)


@router.get("/readyz", responses=errors(503))
async def readyz(request: Request) -> ReadyAnswer:
    """Whether new work is taken."""
    state = service_of(request).engine_client.state
    if state != "ready":
        raise unavailable(state)
    return ReadyAnswer(state=state)


@router.get("/metrics", response_class=PlainTextResponse, responses=errors())
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(service_of(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)


@router.get("/docs", response_class=HTMLResponse, responses=errors())
async def docs() -> Response:
    """This description as a page; it needs no other server."""
    return page("docs.html")


@router.get("/", response_class=HTMLResponse, responses=errors())
async def index() -> Response:
    """A board to type a puzzle into."""
    return page("index.html")


def service_of(request: Request) -> SolveService:
    return cast(SolveService, request.app.state.service)
