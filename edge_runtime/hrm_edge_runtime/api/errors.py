"""The one error that a client sees: a status and six keys that never change.

`reason` is a stable word for programs. `field`, `rule` and `cell` locate a broken rule. `message`
and `remedy` are for people. A 503 always carries Retry-After and a reason, so a load balancer can
tell overload from breakage.
"""

import json
import math
import re
from typing import Literal

from hrm_edge_runtime.api.schema import ErrorDetail
from hrm_edge_runtime.worker.client import NoAnswerError, NoAnswerReason
from hrm_puzzles.puzzle import PuzzleError

FAILED_RETRY_S = 60  # a model that failed needs an operator
MESSAGE_LIMIT = 500  # a message may quote what the client sent, and that can be long
JSON = "application/json"
SAFE_HEADERS = (  # headers of every answer
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)

FOLDERS = re.compile(r"(?<![\w.:/])(?:[A-Za-z]:)?[/\\](?:[^/\\\s'\"]+[/\\])*(?=[^/\\\s])")

as_json = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
"""One line of JSON in plain ASCII, which every terminal and proxy passes on; rejects NaN."""


Refused = NoAnswerReason | Literal["too-many-connections", "partial", "no-model"]


AGAIN = "send it again after Retry-After seconds"
NO_ANSWER: dict[Refused, tuple[str, str]] = {
    "queue-full": (
        "every slot and every place in the queue is taken",
        AGAIN,
    ),
    "too-many-connections": (
        "every connection that this server may hold is busy",
        "send it again after a second",
    ),
    "cannot-make-deadline": (
        "so many puzzles are ahead that this one could not even begin before its deadline",
        "allow a larger deadline_ms, or send it again after Retry-After seconds",
    ),
    "loading": (
        "the engine is still loading",
        "wait until /readyz answers 200",
    ),
    "model-loading": (
        "the engine of this model is still being built",
        "send it again after Retry-After seconds, or use a model that /models lists as ready",
    ),
    "partial": (
        "the server answers for some models, and others are still being built",
        "use a model that /models lists as ready, or wait until /readyz answers 200",
    ),
    "no-model": (
        "the server has no model that can answer",
        "see /models for the reason, or add a model",
    ),
    "draining": (
        "the server is shutting down",
        "send it to another server, or again when this one is back",
    ),
    "engine-lost": (
        "the engine process has died and is being restarted",
        AGAIN,
    ),
    "deadline-missed": (
        "the puzzle did not finish before its deadline",
        "allow a larger deadline_ms, or fewer max_segments",
    ),
    "engine-failed": (  # the engine returned unusable values, such as NaN
        "the engine gave no usable answer to this puzzle",
        "replay the bundle's golden traces on this machine; "
        "the device or the bundle is at fault, not the puzzle",
    ),
}
"""Message and remedy for a valid request that gets no answer."""
STATUS_OF: dict[Refused, int] = {"deadline-missed": 504, "engine-failed": 500}
"""The status of a reason if it is not 503."""


class ServiceError(Exception):
    """A refusal to send to the client; a 429 or 503 says after how many seconds to try again."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        remedy: str,
        *,
        field: str | None = None,
        rule: str | None = None,
        cell: tuple[int, int] | None = None,
        headers: dict[str, str] | None = None,
        retry_after_s: float = 1.0,
    ) -> None:
        super().__init__(status, reason, message, remedy)
        self.status = status
        self.headers = headers or {}
        if status in (429, 503):
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        self.beside: dict[str, object] = {}
        self.detail = ErrorDetail(
            reason=reason,
            field=field,
            rule=rule,
            cell=cell,
            message=_shortened(message),
            remedy=_shortened(remedy),
        )

    def __str__(self) -> str:
        return self.detail.message

    def body(self) -> dict[str, object]:
        return {"error": self.detail.model_dump(mode="json"), **self.beside}


def _shortened(text: str) -> str:
    if len(text) <= MESSAGE_LIMIT:
        return text
    return text[: MESSAGE_LIMIT - 1] + "…"


def refusal_from(error: ServiceError | NoAnswerError) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    return no_answer(error.reason, error.retry_after_s)


def no_answer(reason: Refused, retry_after_s: float = 1.0) -> ServiceError:
    """The error of an unanswered request: 503 (a retry or another server may work), 504 or 500."""
    message, remedy = NO_ANSWER[reason]
    status = STATUS_OF.get(reason, 503)
    field = "deadline_ms" if status == 504 else None
    return ServiceError(status, reason, message, remedy, field=field, retry_after_s=retry_after_s)


def status_of(reason: str) -> int:
    """The HTTP status of a reason that arrived in an event or a line; 500 if it is unknown."""
    if reason in NO_ANSWER:
        return STATUS_OF.get(reason, 503)
    return 500


def model_failed(name: str, problem: str) -> ServiceError:
    """The 503 of a configured model whose engine this machine could not build or open."""
    return ServiceError(
        503,
        "model-failed",
        f"the model {name!r} has no engine here: {without_folders(problem)}",
        "use another model of /models, or have an operator repair this one",
        field="model",
        retry_after_s=FAILED_RETRY_S,
    )


def out_of_threads() -> ServiceError:
    return ServiceError(503, "out-of-threads", "this machine starts no more threads", AGAIN)


def invalid(rule: str, message: str, remedy: str, *, field: str | None = None) -> ServiceError:
    """The 422 of a request that is not valid."""
    return ServiceError(422, "bad-request", message, remedy, field=field, rule=rule)


def bad_puzzle(error: PuzzleError) -> ServiceError:
    """The 422 of a valid request whose puzzle breaks a rule of its kind."""
    return ServiceError(
        422,
        "bad-puzzle",
        error.problem,
        error.remedy,
        field="puzzle",
        rule=error.rule,
        cell=error.cell,
    )


def bad_bundle(error: Exception, *, is_over_budget: bool = False) -> ServiceError:
    """The refusal of a bundle from the sentence of its error, `problem: remedy.`."""
    message, _, remedy = without_folders(str(error)).rpartition(": ")
    status = 422
    reason = "bad-bundle"
    if is_over_budget:
        status = 507
        reason = "over-budget"
    return ServiceError(status, reason, message or remedy, remedy.rstrip("."), field="bundle")


def without_folders(text: str) -> str:
    """Make a log sentence fit for a client: absolute paths keep only their last name."""
    return FOLDERS.sub("", text)
