"""Builds that failed on this machine, remembered beside the plans.

A build that runs out of memory does so again. A service that repeated it at each start would never
serve.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from hrm_edge_runtime.engines.trt import cache
from hrm_edge_runtime.engines.trt.cache import EngineKey
from hrm_host import atomic

KILLED = 9
USUAL_CAUSES = {
    4: "an instruction that this processor lacks",
    6: "an error that a native library found",
    7: "a memory error in a native library",
    KILLED: "usually out of memory",
    11: "a memory error in a native library",
}
STOPPED_BY = (1, 2, 15)  # hang-up, interrupt and terminate: somebody stopped the build


class Failure(BaseModel):
    """The page of an engine that could not be built, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: EngineKey
    problem: str


def describe_status(status: int) -> str:
    """The exit status of a process in words; negative numbers are signals."""
    if status >= 0:
        return f"ended with status {status}"
    number = -status
    killed = f"was killed by signal {number}"
    if number in USUAL_CAUSES:
        return f"{killed}, {USUAL_CAUSES[number]}"
    return killed


def is_worth_remembering(status: int) -> bool:
    return -status not in STOPPED_BY


def remember(key: EngineKey, problem: str) -> None:
    failure = Failure(key=key, problem=problem)
    file = _file(key)
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(file, failure.model_dump_json(indent=2) + "\n")


def find(key: EngineKey) -> str | None:
    """Why the build of this engine failed; None if it did not fail here."""
    try:
        failure = Failure.model_validate_json(_file(key).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
    return failure.problem if failure.key == key else None


def forget(key: EngineKey) -> None:
    _file(key).unlink(missing_ok=True)


def _file(key: EngineKey) -> Path:
    return cache.plan_folder() / f"{key.name}.failure"
