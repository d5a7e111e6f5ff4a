"""What a server may say instead of an answer, as exceptions: one class for each thing a caller would do about it."""

from __future__ import annotations

import httpx

from hrm_edge_runtime.http.schema import ErrorDetail

NOT_BY_THEN = "cannot-make-deadline"  # the one 503 that waiting does not mend, for the deadline counts from each asking


class ServerError(Exception):
    """A server's refusal; `detail` holds its reason, field, rule, cell, message and remedy."""

    def __init__(self, status: int, detail: ErrorDetail, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{detail.message}; {detail.remedy}.")
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class RefusedError(ServerError):
    """4xx: the request or its puzzle cannot be accepted; sending it again changes nothing."""


class KeyRefusedError(RefusedError):
    """401: the server asks for a key."""


class UnavailableError(ServerError):
    """Any other 503, or 429 where a key has used up its share: not now; try again after `retry_after_s`."""


class DeadlineMissedError(ServerError):
    """504: the deadline passed first; or 503: it could only pass first. Ask again with a later one."""


class UnreachableError(Exception):
    """No answer at all: nothing listens there, or the connection broke."""


def error_from(response: httpx.Response) -> ServerError:
    """The error of an answer that is no success."""
    try:
        detail = ErrorDetail.model_validate(response.json()["error"])
    except (ValueError, KeyError, TypeError):  # a proxy's answer, not ours
        detail = ErrorDetail(
            reason="unknown",
            field=None,
            rule=None,
            cell=None,
            message=f"the server answered {response.status_code} without a reason",
            remedy="look whether another server or a proxy listens at this address",
        )
    if detail.reason == NOT_BY_THEN:
        return DeadlineMissedError(response.status_code, detail)
    if response.status_code in (429, 503):
        return UnavailableError(response.status_code, detail, _seconds(response.headers.get("retry-after", "")))
    return _CLASS_OF.get(response.status_code, _class_of_range(response.status_code))(response.status_code, detail)


def _seconds(retry_after: str) -> float:
    """What the header says; a proxy may write a date instead, which counts as a second."""
    return float(retry_after) if retry_after.isdecimal() else 1.0


_CLASS_OF: dict[int, type[ServerError]] = {401: KeyRefusedError, 504: DeadlineMissedError}


def _class_of_range(status: int) -> type[ServerError]:
    return RefusedError if 400 <= status < 500 else ServerError
