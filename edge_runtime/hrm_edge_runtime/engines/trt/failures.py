"""Builds that failed on this machine, stored with the plans while their cause lasts.

A service that repeated a failed build at each start would never serve. A failure counts for the
same TensorRT (in the key) and driver; one for lack of memory counts until the next boot.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from hrm_edge_runtime.engines.trt import cache
from hrm_edge_runtime.engines.trt.cache import EngineKey
from hrm_edge_runtime.engines.trt.causes import Cause, TensorRTError
from hrm_host import atomic
from hrm_host.machine import Host

REMEMBERED: tuple[Cause, ...] = ("memory", "wrong GPU", "rejected")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/etc/nv_tegra_release"))
"""Files whose first line names the driver of a card and of a Jetson."""


class Failure(BaseModel):
    """The page of an engine that could not be built, and why; `boot` is set for lack of memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: EngineKey
    problem: str
    cause: Cause = "unknown"
    driver: str
    boot: str | None


def remember(key: EngineKey, error: TensorRTError) -> None:
    """Keep the failure if it would happen again."""
    if error.cause not in REMEMBERED:
        return
    boot = _first_line(BOOT_ID) if error.cause == "memory" else None
    failure = Failure(
        key=key, problem=error.problem, cause=error.cause, driver=_driver(), boot=boot
    )
    file = cache.file_of(key, "failure")
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(file, failure.model_dump_json(indent=2) + "\n")


def find(key: EngineKey) -> Failure | None:
    """Why the build of this engine fails here; None if it did not, or if that may have changed."""
    try:
        text = cache.file_of(key, "failure").read_text(encoding="utf-8")
        failure = Failure.model_validate_json(text)
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
    is_past = failure.boot is not None and failure.boot != _first_line(BOOT_ID)
    if failure.key != key or failure.driver != _driver() or is_past:
        return None
    return failure


def forget(key: EngineKey) -> None:
    cache.file_of(key, "failure").unlink(missing_ok=True)


def _driver() -> str:
    lines = [_first_line(file) for file in DRIVERS]
    return " ".join(filter(None, lines))


def _first_line(file: Path) -> str:
    text = Host().text(file) or ""
    return text.partition("\n")[0]
