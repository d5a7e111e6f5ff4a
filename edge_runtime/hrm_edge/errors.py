"""What a client can catch: a refused request, here or by a server, and a server out of reach."""

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.schema import ErrorDetail
from hrm_edge_runtime.contract.errors import Error
from hrm_host.command import CANNOT_BEGIN


class RefusedError(Error):
    """A refused request; `detail` holds reason, field, rule, cell, message and remedy."""

    def __init__(self, detail: ErrorDetail) -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.detail.message}; {self.detail.remedy}."


class ServerError(RefusedError):
    """A server's refusal with its HTTP status."""

    exit_status = CANNOT_BEGIN

    def __init__(self, status: int, detail: ErrorDetail, retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.args = (status, detail, retry_after_s)  # what pickle calls the class with
        self.status = status
        self.retry_after_s = retry_after_s


class UnavailableError(ServerError):
    """503, or 429 for a key over its limit: try again after `retry_after_s`."""


class UnreachableError(Error):
    """No answer: nothing listens at the address, or the connection broke.

    `retry_after_s` is None unless a proxy answered in the server's place.
    """

    exit_status = CANNOT_BEGIN

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def foreign(status: int, message: str, remedy: str = "") -> ServerError:
    """The error for an answer that does not come from hrm-serve."""
    remedy = remedy or "check whether another server or a proxy listens at this address"
    return ServerError(status, ServiceError(status, "unknown", message, remedy).detail)
