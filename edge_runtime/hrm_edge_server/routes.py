"""The routes of the server, and how each of them is described at /openapi.json."""

import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import fastapi
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from hrm_edge_runtime.api import schema
from hrm_edge_runtime.api.decoding import validated_query
from hrm_edge_runtime.api.errors import JSON, ServiceError, invalid, no_answer, without_folders
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import TASKS_NAME
from hrm_edge_server import batch, openapi, pages
from hrm_edge_server.auth import key_of
from hrm_edge_server.body import body_of, check_type, unless_client_leaves
from hrm_edge_server.growing import EVENT_TYPE, EventStream
from hrm_edge_server.middleware import json_answer
from hrm_edge_server.models import ModelManager, unknown_model
from hrm_edge_server.openapi import refusals
from hrm_edge_server.solve import SolveService
from hrm_edge_server.uploads import ARCHIVE_TYPE

CARD_TYPE = "text/markdown"
MAX_NAME = 200  # characters of a model's name in a path
SOLVE_REFUSALS = (403, 404, 408, 413, 415, 422, 429, 503, 504)
UNREADY: dict[int | str, dict[str, Any]] = {
    503: {"model": schema.UnreadyAnswer, "description": "Not yet"}
}
# A route's tag is its audience: docker/haproxy.cfg forwards only client routes.
CLIENT = "client"
OPERATOR = "operator"

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class RequestRoute(APIRoute):
    """A route that reads its own request and writes its own response.

    FastAPI only describes the route. Its code does not run for a request, because its stack and its
    handling of parameters take a tenth of the HTTP process's CPU for a small puzzle.
    """

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        options["tags"] = options["tags"] or [CLIENT]
        options["responses"] = refusals(401, 405, 500) | options["responses"]
        super().__init__(path, endpoint, **options)

        async def respond(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = respond


router = fastapi.APIRouter(
    route_class=RequestRoute, generate_unique_id_function=lambda route: route.name
)
ONE_PUZZLE = openapi.request_bodies({JSON: openapi.schema_of(schema.SolveRequest)})


def answer_of(fields: BaseModel, status: int = 200) -> Response:
    return json_answer(fields.model_dump(mode="json"), status)


@router.post(
    "/solve",
    response_model=schema.SolveAnswer,
    responses=refusals(*SOLVE_REFUSALS),
    openapi_extra=ONE_PUZZLE,
)
async def solve(request: Request) -> Response:
    """Solve one puzzle.

    The answer is the model's own, proven or not. No other solver ever replaces it.
    """
    arrival_s = time.monotonic()
    service = service_of(request)
    body = await body_of(request)
    fields = await service.decoded(schema.SolveRequest, body)
    solving = service.solve(fields, arrival_s=arrival_s)
    answer = await unless_client_leaves(request.receive, solving)
    return answer_of(answer)


@router.post(
    "/solve/stream",
    response_class=Response,
    responses=refusals(*SOLVE_REFUSALS)
    | openapi.event_answer(
        EVENT_TYPE,
        "The data of `segment` events, then one `answer` or `error`.",
        schema.SegmentView,
        schema.SolveAnswer,
        schema.ErrorAnswer,
    ),
    openapi_extra=ONE_PUZZLE,
)
async def solve_stream(request: Request) -> Response:
    """Solve one puzzle and send the model's answer after every segment.

    Closing the connection cancels the puzzle.
    """
    arrival_s = time.monotonic()
    service = service_of(request)
    body = await body_of(request)
    fields = await service.decoded(schema.SolveRequest, body)
    views = service.stream(fields, arrival_s=arrival_s)
    return EventStream(views)


@router.post(
    "/solve/batch",
    response_class=Response,
    responses=refusals(403, 415, 422)
    | openapi.free_answer(
        batch.BATCH_TYPE,
        openapi.schema_of(schema.BatchLine),
        'A line for each: {"line": n, "answer": ...} or {"line": n, "error": ...}.',
    ),
    openapi_extra=openapi.request_bodies({batch.BATCH_TYPE: openapi.schema_of(schema.SolveRequest)})
    | openapi.query_of(schema.BatchQuery),
)
async def solve_batch(request: Request) -> Response:
    """Solve any number of puzzles over one connection; read the answers while you send."""
    check_type(request, batch.BATCH_TYPES)
    query = validated_query(schema.BatchQuery, request.query_params)
    return batch.BatchStream(service_of(request), request, query.order)


@router.get("/models", response_model=schema.ModelsAnswer)
async def models(request: Request) -> Response:
    """The served models."""
    service = service_of(request)
    views = [service.view(model) for model in service.models.values()]
    return answer_of(schema.ModelsAnswer(models=views))


@router.get(
    "/models/{name}",
    response_model=schema.ModelView,
    responses=refusals(404, 422),
    openapi_extra=openapi.MODEL_NAME,
)
async def model(request: Request) -> Response:
    """A served model, as in /models."""
    served = _served_model(request)
    return answer_of(service_of(request).view(served))


@router.get(
    "/models/{name}/card",
    response_class=Response,
    responses=refusals(404, 422)
    | openapi.free_answer(CARD_TYPE, {"type": "string"}, "The card of a model."),
    openapi_extra=openapi.MODEL_NAME,
)
async def card(request: Request) -> Response:
    """What a model was trained on, how accurate it is, and its limits."""
    served = _served_model(request)
    return Response(served.card, media_type=CARD_TYPE)


@router.get(
    "/models/{name}/tasks",
    response_class=Response,
    responses=refusals(404, 422) | openapi.free_answer(JSON, {}, "Its tasks, right ones first."),
    openapi_extra=openapi.MODEL_NAME,
)
async def tasks(request: Request) -> Response:
    """The tasks that the model knows by name: demonstrations, and test pairs that it never saw."""
    name = _name_in(request)
    model = service_of(request).models.get(name)
    if model is None or not model.tasks or TASKS_NAME not in model.manifest.files:
        message = f"no model {name!r} with tasks is served here"
        raise ServiceError(404, "no-tasks", message, "see tasks in /models")
    return Response(model.task_list, media_type=JSON)


@router.get("/kinds", response_model=schema.KindsAnswer)
async def kinds(_: Request) -> Response:
    """The kinds of boards that /puzzle makes, with or without a model for them."""
    return answer_of(schema.KindsAnswer(kinds=list(pages.kinds())))


@router.get(
    "/puzzle",
    response_model=schema.FreshPuzzle,
    responses=refusals(422, 429, 503),
    openapi_extra=openapi.query_of(schema.FreshRequest),
)
async def puzzle(request: Request) -> Response:
    """A fresh puzzle from the generator with its proven answer. No model runs."""
    fields = validated_query(schema.FreshRequest, request.query_params)
    service = service_of(request)
    make = functools.partial(pages.fresh_puzzle, fields)
    return answer_of(await service.made(request.receive, make))


@router.post(
    "/puzzle",
    response_model=schema.LabelAnswer,
    responses=refusals(408, 413, 415, 422, 429, 503),
    openapi_extra=openapi.request_bodies({JSON: openapi.schema_of(schema.LabelRequest)}),
)
async def label(request: Request) -> Response:
    """Check whether an answer that a person drew solves its puzzle. No model runs."""
    service = service_of(request)
    body = await body_of(request)
    fields = await service.decoded(schema.LabelRequest, body)
    judge = functools.partial(pages.judged, fields)
    return answer_of(await service.made(request.receive, judge))


@router.get("/slots", response_model=schema.SlotsAnswer)
async def slots(request: Request) -> Response:
    """Which puzzle is in which slot, and the state of the engine."""
    return answer_of(service_of(request).slots())


@router.get("/livez", response_model=schema.LiveAnswer, responses=refusals(503))
async def livez(request: Request) -> Response:
    """Whether the server is alive: it answers, and its engine makes steps while work waits."""
    engine_client = service_of(request).engine_client
    if engine_client.stalled:
        message = f"the engine made no step for {engine_client.step_age_s:.0f} s while work waits"
        remedy = "the server kills and restarts the engine; if that does not help, restart it"
        raise ServiceError(503, "engine-stalled", message, remedy, retry_after_s=5)
    return answer_of(schema.LiveAnswer(step_age_ms=1000 * engine_client.step_age_s))


@router.get("/health", name="health", response_model=schema.ReadyAnswer, responses=UNREADY)
@router.get("/readyz", response_model=schema.ReadyAnswer, responses=UNREADY)
async def readyz(request: Request) -> Response:
    """Whether the server takes new work, in one word; with a key also how many models, and why."""
    service = service_of(request)
    state = service.state
    knows_more = request.app.state.keys is None or key_of(request.scope) is not None
    counts = service.counts() if knows_more else None
    if state == "ready" or (state == "partial" and service.ready == "first"):
        ready = schema.ReadyAnswer(state=state, models=counts)
        return json_answer(ready.model_dump(mode="json", exclude_none=True))
    refusal = no_answer("engine-lost" if state == "failed" else state)
    refusal.beside["state"] = state
    refusal.beside["progress"] = None
    if counts is not None:
        refusal.beside["models"] = counts.model_dump()
        refusal.beside["progress"] = service.library.progress()
        last_error = service.engine_client.process.last_error
        if state == "failed" and last_error:
            refusal.detail.message += f": {without_folders(last_error)}"
    raise refusal


@router.get("/metrics", tags=[OPERATOR], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    text = generate_latest(service_of(request).metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get("/docs", response_class=HTMLResponse)
async def docs(_: Request) -> Response:
    """This description as a page that needs no other server."""
    return pages.page("docs.html")


@router.get("/", response_class=HTMLResponse)
async def index(_: Request) -> Response:
    """A board to type a puzzle into."""
    return pages.page("index.html")


@router.get("/openapi.json", include_in_schema=False)
async def description(request: Request) -> Response:
    """The OpenAPI description of the models that are served now."""
    served = tuple(service_of(request).models.values())
    with_keys = request.app.state.keys is not None
    return Response(_description_of(served, with_keys=with_keys), media_type=JSON)


@router.put(
    "/models/{name}",
    tags=[OPERATOR],
    response_model=schema.ChangeAnswer,
    responses=refusals(403, 404, 408, 415, 422, 503, 507)
    | {201: {"model": schema.ChangeAnswer, "description": "Added"}},
    openapi_extra=openapi.request_bodies({ARCHIVE_TYPE: openapi.FILE}) | openapi.MODEL_NAME,
)
async def put_model(request: Request) -> Response:
    """Serve a bundle: another model (201), or a new version of this one (200).

    The body is a tar file of plain files. The old version finishes the work it admitted. If the
    bundle does not open, the old version keeps serving.
    """
    name = _name_in(request)
    manager = _model_manager(request)
    uploads = manager.library.uploads
    if uploads is None:
        raise ServiceError(
            403,
            "uploads-off",
            "this server takes no bundles over HTTP",
            "start it with --upload-dir FOLDER",
        )
    change = await uploads.put(request, name, manager.put)
    return answer_of(change, 200 if change.replaced else 201)


@router.delete(
    "/models/{name}",
    tags=[OPERATOR],
    response_model=schema.RemovedAnswer,
    responses=refusals(403, 404, 409, 422, 503, 507),
    openapi_extra=openapi.MODEL_NAME,
)
async def remove_model(request: Request) -> Response:
    """Stop serving a model, and remove its upload. It finishes the work it admitted."""
    name = _name_in(request)
    await _model_manager(request).remove(name)
    return answer_of(schema.RemovedAnswer(removed=name))


ROUTES = cast("list[APIRoute]", router.routes)


@functools.lru_cache(maxsize=1)
def _description_of(models: tuple[ServedModel, ...], *, with_keys: bool) -> bytes:
    return bytes(json_answer(openapi.described(models, ROUTES, with_keys=with_keys)).body)


def service_of(request: Request) -> SolveService:
    return cast(SolveService, request.app.state.service)


def _served_model(request: Request) -> ServedModel:
    name = _name_in(request)
    served = service_of(request).models.get(name)
    if served is None:
        raise unknown_model(name)
    return served


def _name_in(request: Request) -> str:
    name: str = request.path_params["name"]
    if len(name) > MAX_NAME:
        message = f"the parameter 'name' is not valid: it has more than {MAX_NAME} characters"
        raise invalid("string_too_long", message, "see /docs for its values", field="name")
    return name


def _model_manager(request: Request) -> ModelManager:
    """The manager, if the request holds an admin's key; rejects it with 403 otherwise."""
    key = key_of(request.scope)
    if key is None or key.role != "admin":
        raise ServiceError(
            403,
            "admin-only",
            "only an admin may change the served models, and this request has no admin key",
            "start the server with --keys FILE and use a key from 'hrm-key add LABEL --admin'",
        )
    return service_of(request).model_manager
