"""The base of our errors, and what is wrong with a value in our own words, not pydantic's."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class Error(Exception):
    """The base of every error that `import hrm_edge` raises: one sentence with the remedy."""


WORDS = {
    "missing": "it is missing",
    "extra_forbidden": "it is an unknown field",
    "json_invalid": "it is not JSON: {error}",
    "string_type": "it is not a string",
    "int_type": "it is not a whole number",
    "int_parsing": "it is not a whole number",
    "int_parsing_size": "it is too large",
    "int_from_float": "it is not a whole number",
    "float_type": "it is not a number",
    "float_parsing": "it is not a number",
    "finite_number": "it is not a finite number",
    "bool_type": "it is neither true nor false",
    "bool_parsing": "it is neither true nor false",
    "list_type": "it is not a list",
    "tuple_type": "it is not a list",
    "dict_type": "it is not an object",
    "model_type": "it is not an object",
    "model_attributes_type": "it is not an object",
    "none_required": "it is not null",
    "literal_error": "it is not {expected}",
    "string_pattern_mismatch": "it does not match {pattern}",
    "string_too_short": "it has fewer than {min_length} characters",
    "string_too_long": "it has more than {max_length} characters",
    "too_short": "it has fewer than {min_length} entries",
    "too_long": "it has more than {max_length} entries",
    "greater_than": "it is not above {gt}",
    "greater_than_equal": "it is below {ge}",
    "less_than": "it is not below {lt}",
    "less_than_equal": "it is above {le}",
}
UNNAMED = "it has a form that is not known"


def words_for(fault: Mapping[str, Any]) -> str:
    """A clause about one of the faults that a ValidationError lists."""
    context: dict[str, Any] = fault.get("ctx", {})
    if fault["type"] == "value_error":  # from one of our own validators
        return str(context["error"])
    return WORDS.get(fault["type"], UNNAMED).format(**context)


def first_fault(error: "ValidationError") -> str:
    """A clause about the first fault, after its place in the value."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"][:4]))
    if not place:
        return words_for(first)
    return f"{place}: {words_for(first)}"
