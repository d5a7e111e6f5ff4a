"""A request's body, untrusted: bounded in bytes, time, values, depth and digits before it is interpreted.

Read by hand rather than by the framework: its parser takes NaN and doubled keys, and says too little of what is wrong.
Behind the body the same channel carries the client's departure.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from hrm_edge_runtime.http.errors import JSON, ServiceError, invalid

MAX_BODY_BYTES = 64 * 1024  # ten times the longest notation of a 30 x 30 board
BODY_SECONDS = 10.0
MAX_VALUES = 5000  # a question and its answer on the largest board are 1,800
FEW_VALUES = 200  # are decoded within 0.2 ms
MAX_DEPTH = 8
MAX_DIGITS = 18
UNSAID = ("", "application/x-www-form-urlencoded")  # what curl -d says where nobody names a type

Fields = TypeVar("Fields", bound=BaseModel)
T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was there."""


async def unless_client_leaves(receive: Receive, work: Awaitable[T]) -> T:
    """Do the work, or drop it and raise ClientGoneError when the client leaves; its body must have been read."""
    ours, is_over = asyncio.current_task(), False
    assert ours is not None

    def give_up(_: object) -> None:
        if not is_over:
            ours.cancel()

    watch = asyncio.ensure_future(_disconnect(receive))
    watch.add_done_callback(give_up)
    try:
        return await work
    except asyncio.CancelledError:
        if watch.done():
            raise ClientGoneError from None
        raise
    finally:
        is_over = True
        watch.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def body_of(request: Request) -> bytes:
    """The bytes of a JSON body; refuses with 408, 413 or 415."""
    check_type(request, (JSON,))
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    message = f"the body has more than {MAX_BODY_BYTES} bytes"
                    remedy = "send one puzzle at a time, or many as lines to /solve/batch"
                    raise ServiceError(413, "body-too-large", message, remedy)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS:.0f} s"
        raise ServiceError(408, "body-too-slow", message, "send it in one piece") from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


class Turnstile:
    """Lets one large body through in each turn of the event loop: decoding one takes up to 4 ms."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def decoded(self, fields: type[Fields], body: bytes) -> Fields:
        """Bytes to request, as `validated`, after the large bodies that came before."""
        if _most_values(body) > FEW_VALUES:
            async with self._lock:
                await asyncio.sleep(0)
        return validated(fields, body)


def _most_values(body: bytes) -> int:
    """An upper bound of the values in a JSON text: each follows a comma, or begins a list, an object or the text."""
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")


def validated(fields: type[Fields], body: bytes) -> Fields:
    """Bytes to request; every refusal is a 422 that says where and why."""
    if _most_values(body) > MAX_VALUES:
        message = f"the JSON may hold more than {MAX_VALUES} values, by its commas and brackets"
        raise invalid("too-many-values", message, "send one puzzle, as text or as rows")
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise invalid("not-utf-8", f"byte {error.start} of the body is not UTF-8", "send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise invalid("not-json", f"the body is not JSON: {error.msg} at {where}", 'send {"puzzle": ...}') from None
    except RecursionError:
        raise _too_deep() from None
    _check_strings_and_depth(value)
    if not isinstance(value, dict):
        first = next(iter(fields.model_fields))
        raise invalid("not-an-object", "the body is JSON but no object", f'send {{"{first}": ...}}')
    try:
        return fields.model_validate(value)
    except ValidationError as error:
        raise _from_validation(error, ", ".join(fields.model_fields)) from None


def check_type(request: Request, media_types: Sequence[str]) -> None:
    """Refuse with 415 a body that says to be of another type, or is compressed; whether it is JSON, its text shows."""
    headers = request.headers
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in (*media_types, *UNSAID):
        message = f"the content type is {media_type[:80]!r} where {media_types[0]!r} is expected"
        remedy = f"send it with the header 'content-type: {media_types[0]}'"
        raise ServiceError(415, "unsupported-media-type", message, remedy)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ServiceError(415, "unsupported-encoding", "the body is compressed", "send it without content-encoding")


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise invalid("doubled-key", "a key stands twice in the same object", "name each field once")
    return fields


def _refuse_number(text: str) -> float:
    raise invalid("bad-number", f"{text[:40]} is no number that JSON knows", "send finite numbers")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _short_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise invalid("bad-number", f"a whole number has {len(text)} digits", f"send at most {MAX_DIGITS}")
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_twins, parse_constant=_refuse_number, parse_float=_finite, parse_int=_short_int
)


def _too_deep() -> ServiceError:
    return invalid("too-deep", f"the JSON is nested deeper than {MAX_DEPTH} levels", "send the puzzle as rows or text")


def _check_strings_and_depth(value: object) -> None:
    strings: list[str] = []
    level: list[object] = [value]
    for depth in range(MAX_DEPTH + 1):
        below: list[object] = []
        for one in level:
            if isinstance(one, str):
                strings.append(one)
            elif isinstance(one, dict | list):
                if depth == MAX_DEPTH:
                    raise _too_deep()
                below += [*one.keys(), *one.values()] if isinstance(one, dict) else one
        level = below
    try:
        "".join(strings).encode("utf-8")
    except UnicodeEncodeError:
        raise invalid("not-unicode", "a string holds half a surrogate pair", "send whole characters") from None


def _from_validation(error: ValidationError, known: str) -> ServiceError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])[:80]
    if first["type"] == "extra_forbidden":
        return invalid("unknown-field", f"the field {field!r} is not known", f"use {known}", field=field)
    if first["type"] == "missing":
        return invalid("missing-field", f"the field {field!r} is missing", f"send {field!r}", field=field)
    message = f"the field {field!r} cannot be accepted: {first['msg']}"
    return invalid(first["type"].replace("_", "-"), message, "correct it; /docs lists every field", field=field)
