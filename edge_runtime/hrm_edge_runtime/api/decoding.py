"""From the bytes of JSON to a request, bounded in values, depth and digits before they are interpreted.

Read by hand rather than by the framework: its parser takes NaN and doubled keys, and says too little of what is wrong.
"""

import json
import math
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from hrm_edge_runtime.api.errors import ServiceError, invalid

MAX_VALUES = 5000  # a question and its answer on the largest board are 1,800
MAX_DEPTH = 8
MAX_DIGITS = 18

Fields = TypeVar("Fields", bound=BaseModel)


def most_values(body: bytes) -> int:
    """An upper bound of the values in a JSON text: each follows a comma, or begins a list, an object or the text."""
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")


def validated(fields: type[Fields], body: bytes) -> Fields:
    """Bytes to request; every refusal is a 422 that says where and why."""
    if most_values(body) > MAX_VALUES:
        message = f"the JSON may hold more than {MAX_VALUES} values, by its commas and brackets"
        raise invalid("too-many-values", message, "send one puzzle, as text or as rows")
    try:
        value = _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise invalid(
            "not-utf-8", f"byte {error.start} of the body is not UTF-8", "send JSON in UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise invalid(
            "not-json", f"the body is not JSON: {error.msg} at {where}", 'send {"puzzle": ...}'
        ) from None
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


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise invalid(
            "doubled-key", "a key stands twice in the same object", "name each field once"
        )
    return fields


def _refuse_number(text: str) -> float:
    raise invalid("bad-number", f"{text[:40]} is no number that JSON knows", "send finite numbers")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


def _short_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise invalid(
            "bad-number", f"a whole number has {len(text)} digits", f"send at most {MAX_DIGITS}"
        )
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_twins,
    parse_constant=_refuse_number,
    parse_float=_finite,
    parse_int=_short_int,
)


def _too_deep() -> ServiceError:
    return invalid(
        "too-deep",
        f"the JSON is nested deeper than {MAX_DEPTH} levels",
        "send the puzzle as rows or text",
    )


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
        raise invalid(
            "not-unicode", "a string holds half a surrogate pair", "send whole characters"
        ) from None


def _from_validation(error: ValidationError, known: str) -> ServiceError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])[:80]
    if first["type"] == "extra_forbidden":
        return invalid(
            "unknown-field", f"the field {field!r} is not known", f"use {known}", field=field
        )
    if first["type"] == "missing":
        return invalid(
            "missing-field", f"the field {field!r} is missing", f"send {field!r}", field=field
        )
    message = f"the field {field!r} cannot be accepted: {first['msg']}"
    return invalid(
        first["type"].replace("_", "-"), message, "correct it; /docs lists every field", field=field
    )
