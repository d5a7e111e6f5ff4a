"""What is remembered of one HTTP request while it is answered, for its log line and its trace: never a puzzle or a key.

The account of the request under way is found from anywhere below its middleware, tasks included.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from hrm_edge_runtime.batching.task import Conclusion

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
MAX_STAGES = 100  # of a long batch only the first puzzles have their own spans


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One answered puzzle; `ended_ns` is a moment of `time.time_ns`."""

    model: str
    segments: int
    attempts: int
    halted_by: str
    queue_s: float
    compute_s: float
    ended_ns: int


@dataclass(kw_only=True)
class Account:
    """One request. `stages` are the first of its answered puzzles; sums are over all."""

    request_id: str
    trace_id: str | None = None
    refused: str | None = None
    num_puzzles: int = 0
    segments: int = 0
    attempts: int = 0
    queue_s: float = 0.0
    compute_s: float = 0.0
    stages: list[Stage] = field(default_factory=list[Stage])

    def add(self, stage: Stage) -> None:
        self.num_puzzles += 1
        self.segments += stage.segments
        self.attempts += stage.attempts
        self.queue_s += stage.queue_s
        self.compute_s += stage.compute_s
        if len(self.stages) < MAX_STAGES:
            self.stages.append(stage)

    def fields(self) -> dict[str, object]:
        """What a log line tells of the puzzles; nothing where there was none."""
        if not self.stages:
            return {}
        return {
            "model": ",".join(sorted({stage.model for stage in self.stages})),
            "puzzles": self.num_puzzles,
            "attempts": self.attempts,
            "segments": self.segments,
            "halted_by": ",".join(sorted({stage.halted_by for stage in self.stages})),
            "queue_ms": round(1000 * self.queue_s, 3),
            "compute_ms": round(1000 * self.compute_s, 3),
        }


_current: ContextVar[Account | None] = ContextVar("account", default=None)


def opened(headers: Mapping[str, str]) -> Account:
    """Begin an account: its id is the client's where that is a plain word, else a fresh one."""
    asked = headers.get("x-request-id", "")
    traced = TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    account = Account(
        request_id=asked if SANE_ID.fullmatch(asked) else uuid.uuid4().hex,
        trace_id=traced[1] if traced else None,
    )
    _current.set(account)
    return account


def request_id() -> str:
    """Of the request under way; empty outside of one."""
    account = _current.get()
    return account.request_id if account else ""


def note_solved(model: str, conclusion: Conclusion) -> None:
    """An answer to a puzzle of the request under way."""
    if (account := _current.get()) is not None:
        result = conclusion.result
        account.add(
            Stage(
                model=model,
                segments=conclusion.total_segments,
                attempts=conclusion.num_attempts,
                halted_by=result.halted_by,
                queue_s=result.queue_s,
                compute_s=result.compute_s,
                ended_ns=time.time_ns(),
            )
        )


def note_refused(reason: str) -> None:
    """Why the request under way is refused, in the error's own word."""
    if (account := _current.get()) is not None:
        account.refused = reason
