"""The routes that only an admin's key opens: adding, reloading and removing models."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as InPath
from starlette.requests import Request
from starlette.responses import Response

from hrm_edge_runtime.http import body
from hrm_edge_runtime.http.errors import ServiceError
from hrm_edge_runtime.http.model_manager import Changes
from hrm_edge_runtime.http.openapi import errors
from hrm_edge_runtime.http.principal import Caller
from hrm_edge_runtime.http.responses import AsciiJSON
from hrm_edge_runtime.http.routes import service_of
from hrm_edge_runtime.http.schema import BundleRequest, ChangeAnswer, RemovedAnswer

router = APIRouter()

Name = Annotated[str, InPath(max_length=200, description="The model's name, which is its bundle's.")]
BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": BundleRequest.model_json_schema()}}}
}


@router.put(
    "/models/{name}",
    response_model=ChangeAnswer,
    responses={201: {"model": ChangeAnswer, "description": "Added"}, **errors(403, 404, 408, 413, 415, 422, 503, 507)},
    openapi_extra=BODY,
)
async def put_model(request: Request, name: Name) -> Response:
    """Serve a bundle from now on: another model (201), or the one of this name loaded again (200).

    What was admitted to the old one is finished by it. A bundle that does not open leaves the old one serving.
    """
    changes = _changes(request)
    asked = body.validated(BundleRequest, await body.body_of(request))
    change = await changes.put(name, asked.bundle)
    answer = ChangeAnswer(
        model=service_of(request).view(change.model), replaced=change.replaced, evicted=list(change.evicted)
    )
    return AsciiJSON(answer.model_dump(mode="json"), status_code=200 if change.replaced else 201)


@router.delete("/models/{name}", responses=errors(403, 404, 409, 422, 503))
async def remove_model(request: Request, name: Name) -> RemovedAnswer:
    """Serve a model no more; what was admitted to it is finished."""
    await _changes(request).remove(name)
    return RemovedAnswer(removed=name)


def _changes(request: Request) -> Changes:
    """The admin's hands; refuses with 403 everybody else."""
    caller = request.scope.get("state", {}).get("caller")
    changes = service_of(request).changes
    if changes is None or not isinstance(caller, Caller) or not caller.is_admin:
        raise ServiceError(
            403,
            "admin-only",
            "only an admin may change what is served, and the request holds no admin's key",
            "start the server with --keys FILE and use a key of it that 'hrm-key add LABEL --admin' has made",
        )
    return changes
