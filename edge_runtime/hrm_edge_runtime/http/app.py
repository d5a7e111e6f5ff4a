"""The HTTP application: its routes, its one middleware, and how every refusal becomes the same answer."""

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import fastapi
from anyio import to_thread
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from hrm_edge_runtime.api import schema
from hrm_edge_runtime.api.errors import (
    JSON,
    ServiceError,
    as_json,
    invalid,
    needing_a_thread,
    no_answer,
    refusal_from,
    without_folders,
)
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.http import boards, openapi, streams
from hrm_edge_runtime.http import body as intake
from hrm_edge_runtime.http.auth import key_of
from hrm_edge_runtime.http.middleware import INTERNAL, Access, RequestMiddleware, response_to
from hrm_edge_runtime.http.models import Library, ModelManager
from hrm_edge_runtime.http.openapi import error_answers
from hrm_edge_runtime.http.solve import SolveService
from hrm_edge_runtime.worker.client import EngineClient, NoAnswerError

CLIENT_GONE = 499  # no client receives it; it shows in the metrics
WEB = Path(__file__).parents[1] / "web"

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",  # a string never becomes markup, not even by mistake
    "Cache-Control": "no-cache",
}
REFUSED = (ServiceError, NoAnswerError, intake.ClientGoneError)
UNREADY = {**error_answers(), 503: {"model": schema.UnreadyAnswer, "description": "Not yet"}}
SOLVE_REFUSALS = (403, 404, 408, 413, 415, 422, 429, 503)
_ROUTE_FAULTS = {
    404: ("not-found", "there is nothing at this path"),
    405: ("method-not-allowed", "this path does not take this method"),
}

ModelName = Annotated[str, fastapi.Path(max_length=200, description="The model's name, which is its bundle's.")]

Order = Annotated[
    streams.BatchOrder, fastapi.Query(description="Answers as they finish, or in the order of the lines.")
]

router = fastapi.APIRouter()


def create_app(
    engine_client: EngineClient,
    models: Sequence[ServedModel],
    access: Access | None = None,
    *,
    library: Library | None = None,
) -> fastapi.FastAPI:
    """The application over an engine, which starts and stops with it; with a `library` an admin may change models."""
    access = access or Access()
    service = SolveService(models, engine_client, library)

    @contextlib.asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncGenerator[None]:
        async with engine_client:
            yield
            service.close()

    app = EdgeApp(
        title="HRM Edge",
        description="Puzzles solved by a Hierarchical Reasoning Model, a segment at a time.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service, app.state.keys = service, access.keys
    app.include_router(router)
    app.mount("/web", WebFiles(directory=WEB))
    for refused in (*REFUSED, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(refused, _refuse)
    routes = [route.path for route in router.routes if isinstance(route, Route)]
    app.entrance = RequestMiddleware(app.pass_on, metrics=service.metrics, routes=routes, access=access)
    if access.origins:
        app.entrance = CORSMiddleware(
            app.entrance,
            allow_origins=access.origins,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("Authorization", "Content-Type", "X-API-Key", "X-Request-Id"),
            expose_headers=("Retry-After", "X-Request-Id"),
        )
    return app


class EdgeApp(fastapi.FastAPI):
    """FastAPI behind our one middleware; it describes POST /solve, which goes past it and saves a fifth of the CPU."""

    entrance: ASGIApp
    _described: tuple[tuple[ServedModel, ...], dict[str, Any]] = ((), {})

    def openapi(self) -> dict[str, Any]:
        """Made when it is read, with examples of the models that are served then."""
        models = tuple(cast(SolveService, self.state.service).models.values())
        if self._described[0] != models:
            with_keys = self.state.keys is not None
            self._described = models, openapi.described(super().openapi(), models, with_keys=with_keys)
        return self._described[1]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.entrance(scope, receive, send)

    async def pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/solve" or scope["method"] != "POST":
            if scope.get("method") == "HEAD":  # uvicorn sends no body then
                scope = {**scope, "method": "GET"}
            await super().__call__(scope, receive, send)
            return
        scope["app"] = self
        request = Request(scope, receive)
        try:
            response = await solve(request)
        except REFUSED as error:
            response = await _refuse(request, error)
        await response(scope, receive, send)


async def _refuse(_: Request, error: Exception) -> Response:
    if isinstance(error, intake.ClientGoneError):
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, ServiceError | NoAnswerError):
        return response_to(refusal_from(error))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        field = str(first["loc"][-1])
        problem = f"{field!r}: {first['msg']}"
        return response_to(invalid(first["type"], problem, "see /docs for its values", field=field))
    if isinstance(error, HTTPException):
        reason, message = _ROUTE_FAULTS.get(error.status_code, ("refused", str(error.detail)))
        headers, remedy = dict(error.headers or {}), "see /docs for every path and its method"
        return response_to(ServiceError(error.status_code, reason, message, remedy, headers=headers))
    return response_to(INTERNAL)


class WebFiles(StaticFiles):
    """The style and the scripts of our pages, which so work without any network but this server."""

    def file_response(self, *told: Any, **more: Any) -> Response:
        response = super().file_response(*told, **more)
        response.headers.update(PAGE_HEADERS)
        return response


@router.post(
    "/solve",
    response_model=schema.SolveAnswer,
    responses=error_answers(*SOLVE_REFUSALS, 504),
    openapi_extra=openapi.puzzle_body("application/json", "One puzzle."),
)
async def solve(request: Request) -> Response:
    """Solve one puzzle. An answer is the model's own, proven or not; it is never replaced by another solver's."""
    arrival_s = time.monotonic()
    asked = await decoded(schema.SolveRequest, request)
    answer = await intake.unless_client_leaves(request.receive, service_of(request).solve(asked, arrival_s=arrival_s))
    return Response(as_json(answer.model_dump(mode="json")), media_type=JSON)


@router.post(
    "/solve/stream",
    response_class=Response,
    responses=openapi.free_answer(
        streams.EVENT_TYPE, "`segment` events, and at last one `answer` or `error`.", *SOLVE_REFUSALS
    ),
    openapi_extra=openapi.puzzle_body("application/json", "One puzzle."),
)
async def solve_stream(request: Request) -> Response:
    """Solve one puzzle and tell the model's answer after every segment; closing the connection cancels it."""
    arrival_s = time.monotonic()
    asked = await decoded(schema.SolveRequest, request)
    return streams.EventStream(service_of(request).stream(asked, arrival_s=arrival_s))


@router.post(
    "/solve/batch",
    response_class=Response,
    responses=openapi.free_answer(
        streams.BATCH_TYPE, 'A line for each: {"line": n, "answer": ...} or {"line": n, "error": ...}.', 403, 415, 422
    ),
    openapi_extra=openapi.puzzle_body(streams.BATCH_TYPE, "One puzzle in each line."),
)
async def solve_batch(request: Request, order: Order = "as-finished") -> Response:
    """Solve any number of puzzles over one connection; read the answers while you send."""
    intake.check_type(request, streams.BATCH_TYPES)
    return streams.BatchStream(service_of(request), request, order)


@router.get("/models", responses=error_answers())
async def models(request: Request) -> schema.ModelsAnswer:
    """The served models."""
    service = service_of(request)
    return schema.ModelsAnswer(models=[service.view(model) for model in service.models.values()])


@router.get(
    "/models/{name}/tasks",
    response_class=Response,
    responses=openapi.free_answer(JSON, "As in a bundle's tasks.json.", 404, 422),
)
async def tasks(request: Request, name: ModelName) -> Response:
    """What the tasks ask for that the model knows by name: demonstrations, and test pairs that it was not shown."""
    model = service_of(request).models.get(name)
    if model is None or model.tasks_file is None:
        raise ServiceError(404, "no-tasks", f"no model {name!r} with tasks is served here", "see tasks in /models")
    with needing_a_thread():
        content = await to_thread.run_sync(model.tasks_file.read_bytes)
    return Response(content, media_type=JSON)


@router.get("/kinds", responses=error_answers())
async def kinds() -> schema.KindsAnswer:
    """The kinds of boards that can be made, with a model for them here or without."""
    return schema.KindsAnswer(kinds=list(boards.kinds()))


@router.get("/puzzle", responses=error_answers(422, 429, 503))
async def puzzle(request: Request, asked: Annotated[schema.FreshRequest, fastapi.Query()]) -> schema.FreshPuzzle:
    """A fresh puzzle from the generator with its proven answer; no model is asked."""
    return await service_of(request).made(request.receive, boards.fresh_puzzle, asked)


@router.post(
    "/puzzle",
    responses=error_answers(408, 413, 415, 422, 429, 503),
    openapi_extra=openapi.request_body("application/json", schema.LabelRequest.model_json_schema()),
)
async def label(request: Request) -> schema.LabelAnswer:
    """Whether an answer that somebody drew solves its puzzle; no model is asked."""
    asked = await decoded(schema.LabelRequest, request)
    return await service_of(request).made(request.receive, boards.judged, asked)


@router.get("/slots", responses=error_answers())
async def slots(request: Request) -> schema.SlotsAnswer:
    """Which puzzle sits in which slot, and how the engine fares."""
    return service_of(request).slots()


@router.get("/livez", responses=error_answers(503))
async def livez(request: Request) -> schema.LiveAnswer:
    """Whether the server is alive: it answers, and its engine makes steps while work waits."""
    engine_client = service_of(request).engine_client
    if engine_client.stalled:
        message = f"the engine made no step for {engine_client.step_age_s:.0f} s while work waits"
        remedy = "it is being killed and restarted; restart the server where that does not help"
        raise ServiceError(503, "engine-stalled", message, remedy, headers={"Retry-After": "5"})
    return schema.LiveAnswer(step_age_ms=1000 * engine_client.step_age_s)


@router.get("/health", responses=UNREADY)
@router.get("/readyz", responses=UNREADY)
async def readyz(request: Request) -> schema.ReadyAnswer:
    """Whether new work is taken; until then, what is being built."""
    service = service_of(request)
    state, manager = service.engine_client.state, service.model_manager
    if state != "ready":
        refusal = no_answer(state)
        if state == "engine-lost" and (error := service.engine_client.process.last_error):
            refusal.detail.message += f": {without_folders(error)}"
        refusal.beside["progress"] = manager.library.progress() if manager else None
        raise refusal
    return schema.ReadyAnswer(state=state)


@router.get("/metrics", response_class=PlainTextResponse, responses=error_answers())
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(service_of(request).metrics.page(), media_type=CONTENT_TYPE_LATEST)


@router.get("/docs", response_class=HTMLResponse, responses=error_answers())
async def docs() -> Response:
    """This description as a page; it needs no other server."""
    return HTMLResponse((WEB / "docs.html").read_text(encoding="utf-8"), headers=PAGE_HEADERS)


@router.get("/", response_class=HTMLResponse, responses=error_answers())
async def index() -> Response:
    """A board to type a puzzle into."""
    return HTMLResponse((WEB / "index.html").read_text(encoding="utf-8"), headers=PAGE_HEADERS)


@router.put(
    "/models/{name}",
    response_model=schema.ChangeAnswer,
    responses={
        201: {"model": schema.ChangeAnswer, "description": "Added"},
        **error_answers(403, 404, 408, 413, 415, 422, 503, 507),
    },
    openapi_extra=openapi.request_body("application/json", schema.BundleRequest.model_json_schema()),
)
async def put_model(request: Request, name: ModelName) -> Response:
    """Serve a bundle from now on: another model (201), or the one of this name loaded again (200).

    What was admitted to the old one is finished by it. A bundle that does not open leaves the old one serving.
    """
    manager = _model_manager(request)
    asked = await decoded(schema.BundleRequest, request)
    change = await manager.put(name, asked.bundle)
    return Response(as_json(change.model_dump(mode="json")), 200 if change.replaced else 201, media_type=JSON)


@router.delete("/models/{name}", responses=error_answers(403, 404, 409, 422, 503))
async def remove_model(request: Request, name: ModelName) -> schema.RemovedAnswer:
    """Serve a model no more; what was admitted to it is finished."""
    await _model_manager(request).remove(name)
    return schema.RemovedAnswer(removed=name)


def service_of(request: Request) -> SolveService:
    return cast(SolveService, request.app.state.service)


async def decoded(fields: type[intake.Fields], request: Request) -> intake.Fields:
    """The request's body; refuses with 408, 413, 415 or 422."""
    body = await intake.body_of(request)
    return await service_of(request).turnstile.decoded(fields, body)


def _model_manager(request: Request) -> ModelManager:
    """Refuses everybody but an admin with 403."""
    key = key_of(request.scope)
    manager = service_of(request).model_manager
    if manager is None or key is None or key.role != "admin":
        message = "only an admin may change what is served, and the request holds no admin's key"
        remedy = "start the server with --keys FILE and use a key of it that 'hrm-key add LABEL --admin' has made"
        raise ServiceError(403, "admin-only", message, remedy)
    return manager
