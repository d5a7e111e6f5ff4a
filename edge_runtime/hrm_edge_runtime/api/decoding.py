"""Turns JSON bytes into a request, with limits on values, depth and digits.

The framework's parser accepts NaN and duplicate keys, and its errors say too little.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError

from hrm_edge_runtime.api.errors import ServiceError, invalid
from hrm_edge_runtime.contract.errors import words_for
from hrm_host.reading import encoding_of

MAX_VALUES = 5000  # values; a question with its answer on the largest board has 1,800
MAX_DEPTH = 8
MAX_DIGITS = 18
WITHOUT_QUOTES = re.compile(r"""\s*(?:'|"?\{\s*(?:\w+\s*:|\\["']|'))""")
"""{puzzle:...}, '{"puzzle":...}' and {\\"puzzle\\":...}, as shells pass them on."""

Fields = TypeVar("Fields", bound=BaseModel)


def validated(fields: type[Fields], body: bytes) -> Fields:
    """The fields of a body. An invalid body is rejected with 422, which states place and reason."""
    # each value follows a comma, or begins a list, an object or the body
    most_values = 1 + body.count(b",") + body.count(b"[") + body.count(b"{")
    if most_values > MAX_VALUES:
        message = f"the JSON may hold more than {MAX_VALUES} values, by its commas and brackets"
        raise invalid("too-many-values", message, "send one puzzle, as text or as rows")
    value = _decoded(body)
    _check_strings_and_depth(value)
    if not isinstance(value, dict):
        first = next(iter(fields.model_fields))
        message = "the body is JSON but not an object"
        raise invalid("not-an-object", message, f'send {{"{first}": ...}}')
    try:
        return fields.model_validate(value)
    except ValidationError as error:
        known = ", ".join(fields.model_fields)
        raise _from_validation(error, known) from None


def validated_query(fields: type[Fields], parameters: Mapping[str, str]) -> Fields:
    """The fields of a query; unknown ones are ignored. An invalid one is rejected with 422."""
    try:
        return fields.model_validate(dict(parameters))
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        message = f"the parameter {field!r} is not valid: {words_for(first)}"
        remedy = "see /docs for its values"
        raise invalid(first["type"], message, remedy, field=field) from None


def _decoded(body: bytes) -> object:
    """The JSON of a body in UTF-8, or in UTF-16 if it begins with the mark of that."""
    encoding = encoding_of(body)
    try:
        return _DECODER.decode(body.decode(encoding))
    except UnicodeDecodeError as error:
        message = f"byte {error.start} of the body is not {encoding.upper().removesuffix('-SIG')}"
        raise invalid("not-utf-8", message, "send JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
        remedy = 'send {"puzzle": ...}'
        if WITHOUT_QUOTES.match(error.doc):
            reason = "double quotes are missing; the shell may have taken them"
            remedy = "put the JSON into a file and send that: curl -d @puzzle.json"
        raise invalid("not-json", f"the body is not JSON: {reason}", remedy) from None
    except RecursionError:
        raise _too_deep() from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise invalid("doubled-key", "duplicate key in an object", "name each field once")
    return fields


def _reject_number(text: str) -> float:
    raise invalid("bad-number", f"{text[:40]} is not a JSON number", "send finite numbers")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _reject_number(text)
    return number


def _short_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise invalid(
            "bad-number", f"a whole number has {len(text)} digits", f"send at most {MAX_DIGITS}"
        )
    return int(text)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_without_duplicates,
    parse_constant=_reject_number,
    parse_float=_finite,
    parse_int=_short_int,
)


def _too_deep() -> ServiceError:
    message = f"the JSON is nested deeper than {MAX_DEPTH} levels"
    return invalid("too-deep", message, "send the puzzle as rows or text")


def _check_strings_and_depth(value: object) -> None:
    """Walk the value level by level."""
    strings: list[str] = []
    level: list[object] = [value]
    for depth in range(MAX_DEPTH + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, str):
                strings.append(item)
                continue
            if depth == MAX_DEPTH and isinstance(item, dict | list):
                raise _too_deep()
            if isinstance(item, list):
                below += cast("list[object]", item)
            elif isinstance(item, dict):
                fields = cast("dict[str, object]", item)
                below += fields.keys()
                below += fields.values()
        level = below
    try:
        "".join(strings).encode("utf-8")
    except UnicodeEncodeError:
        message = "a string holds half a surrogate pair"
        raise invalid("not-unicode", message, "send whole characters") from None


def _from_validation(error: ValidationError, known: str) -> ServiceError:
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])[:80]
    if first["type"] == "extra_forbidden":
        message = f"the field {field!r} is not known"
        return invalid("unknown-field", message, f"use {known}", field=field)
    if first["type"] == "missing":
        message = f"the field {field!r} is missing"
        return invalid("missing-field", message, f"send {field!r}", field=field)
    rule = first["type"].replace("_", "-")
    message = f"the field {field!r} is not valid: {words_for(first)}"
    return invalid(rule, message, "correct it; /docs lists every field", field=field)
