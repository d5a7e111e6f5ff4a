"""The one error a client ever sees, whatever went wrong: a status and six keys that never change.

`reason` is a stable word for machines; `field`, `rule` and `cell` say where a puzzle breaks a rule; `message` and
`remedy` are for people. A 503 always carries Retry-After and a reason, so a balancer can tell overload from breakage.
"""

import math
from typing import Literal

from hrm_edge_runtime.worker.client import NoAnswerError
from hrm_puzzles.puzzle import PuzzleError

UnavailableReason = Literal[
    "queue-full", "loading", "draining", "engine-lost", "too-many-connections", "cannot-make-deadline"
]

MESSAGE_LIMIT = 500  # a message may quote what the client sent, and that can be long

_UNAVAILABLE: dict[UnavailableReason, tuple[str, str]] = {
    "queue-full": ("every slot and every place in the queue is taken", "send it again after Retry-After seconds"),
    "too-many-connections": ("every connection that this server may hold is busy", "send it again after a second"),
    "cannot-make-deadline": (
        "so many puzzles are ahead that this one could not even begin before its deadline",
        "allow a larger deadline_ms, or send it again after Retry-After seconds",
    ),
    "loading": ("the engine is still loading", "wait until /readyz answers 200"),
    "draining": ("the server is shutting down", "send it to another server, or again when this one is back"),
    "engine-lost": ("the engine process has died and is being restarted", "send it again after Retry-After seconds"),
}


class ServiceError(Exception):
    """A refusal on its way to the client."""

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
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = _shortened(message)
        self.remedy = _shortened(remedy)
        self.field = field
        self.rule = rule
        self.cell = cell
        self.headers = headers or {}

    def body(self) -> dict[str, object]:
        """The JSON answer; every key is always there."""
        return {
            "error": {
                "reason": self.reason,
                "field": self.field,
                "rule": self.rule,
                "cell": list(self.cell) if self.cell else None,
                "message": self.message,
                "remedy": self.remedy,
            }
        }


def refusal_from(error: ServiceError | NoAnswerError) -> ServiceError:
    """The one translation of what the engine's client raises: 503, 504 or 500."""
    if isinstance(error, ServiceError):
        return error
    if error.reason == "deadline-missed":
        return deadline_missed()
    if error.reason == "engine-failed":
        return engine_failed()
    return unavailable(error.reason, error.retry_after_s)


def invalid(rule: str, message: str, remedy: str, *, field: str | None = None) -> ServiceError:
    """422: something in the request cannot be accepted."""
    return ServiceError(422, "bad-request", message, remedy, field=field, rule=rule)


def bad_puzzle(error: PuzzleError) -> ServiceError:
    """422: the request is sound, but its puzzle breaks a rule of its kind."""
    return ServiceError(
        422, "bad-puzzle", error.problem, error.remedy, field="puzzle", rule=error.rule, cell=error.cell
    )


def unavailable(reason: UnavailableReason, retry_after_s: float = 1.0) -> ServiceError:
    """503: not now, perhaps later or elsewhere."""
    message, remedy = _UNAVAILABLE[reason]
    return ServiceError(503, reason, message, remedy, headers={"Retry-After": str(max(1, math.ceil(retry_after_s)))})


def stalled(step_age_s: float) -> ServiceError:
    """503 of the liveness probe alone: work waits and the engine makes no step."""
    return ServiceError(
        503,
        "engine-stalled",
        f"the engine made no step for {step_age_s:.0f} s while work waits",
        "it is being killed and restarted; restart the server where that does not help",
        headers={"Retry-After": "5"},
    )


def deadline_missed() -> ServiceError:
    """504: the client's own deadline passed before the answer was there."""
    return ServiceError(
        504,
        "deadline-missed",
        "the puzzle did not finish before its deadline",
        "allow a larger deadline_ms, or fewer max_segments",
        field="deadline_ms",
    )


def engine_failed() -> ServiceError:
    """500: the engine computed something that is no answer, such as values that are not finite."""
    return ServiceError(
        500,
        "engine-failed",
        "the engine gave no usable answer to this puzzle",
        "replay the bundle's golden traces on this machine; the device or the bundle is at fault, not the puzzle",
    )


def _shortened(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"
