"""How a run stands, from its files alone, also while another process writes it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hrm_train.lock import writer_of
from hrm_train.telemetry import METRICS
from hrm_train.validation import History

SETTINGS = "run.json"
TAIL_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Status:
    """What `hrm-train status --json` prints; None where the run has not come so far."""

    run: str
    puzzle: str
    process: str | None
    step: int
    samples: int
    total_samples: int
    samples_per_s: float | None
    eta_s: float | None
    age_s: float | None
    train: Mapping[str, float]
    system: Mapping[str, float]
    phase_share: Mapping[str, float]
    last_validation: Mapping[str, Any] | None
    best_validation: Mapping[str, Any] | None
    checkpoints: tuple[str, ...]
    latest: str | None
    best: str | None


def read_status(run: Path) -> Status:
    """Refuses a directory that holds no run."""
    plan = _plan(run)
    recipe, moment = plan["recipe"], last_line(run / METRICS) or {}
    history = History(run).rows()
    whole = [row for row in history if row["kind"] == "whole"]
    speed, samples = moment.get("samples_per_s"), moment.get("samples", 0)
    remaining = recipe["total_samples"] - samples
    return Status(
        run=str(run),
        puzzle=recipe["puzzle"],
        process=writer_of(run),
        step=moment.get("step", 0),
        samples=samples,
        total_samples=recipe["total_samples"],
        samples_per_s=speed,
        eta_s=max(0, remaining) / speed if speed else None,
        age_s=time.time() - moment["time"] if moment else None,
        train=moment.get("train", {}),
        system=moment.get("system", {}),
        phase_share=_shares(moment),
        last_validation=_short(history[-1]) if history else None,
        best_validation=_short(max(whole, key=lambda row: row["score"])) if whole else None,
        checkpoints=tuple(path.name for path in sorted(run.glob("step_*"), key=lambda path: int(path.name[5:]))),
        latest=_pointed(run / "latest"),
        best=_pointed(run / "best"),
    )


def last_line(file: Path) -> dict[str, Any] | None:
    """The last whole JSON line of a file that may be long and still be growing."""
    if not file.exists():
        return None
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - TAIL_BYTES))
        lines = stream.read().decode(errors="replace").splitlines()
    for line in reversed(lines):
        try:
            return json.loads(line)
        except ValueError:
            continue
    return None


def _plan(run: Path) -> dict[str, Any]:
    try:
        return json.loads((run / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{run} holds no run ({error}); give the directory that hrm-train --run has made") from error


def _shares(moment: Mapping[str, Any]) -> dict[str, float]:
    """The parts of a step's wall time; what no phase covers is 'other'."""
    if not moment or not moment["step_ms"]:
        return {}
    shares = {phase: ms / moment["step_ms"] for phase, ms in moment["phase_ms"].items()}
    return {**shares, "other": max(0.0, 1 - sum(shares.values()))}


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """A validation without its curves: their last values."""
    return {name: value[-1] if isinstance(value, list) else value for name, value in row.items()}


def _pointed(file: Path) -> str | None:
    return file.read_text(encoding="utf-8").strip() if file.exists() else None


def show(status: Status, console: Console) -> None:
    """A table for people."""
    table = Table(title=f"{status.run} ({status.puzzle})", show_header=False)
    for name, text in _rows(status).items():
        table.add_row(name, text)
    console.print(table)


def to_json(status: Status) -> str:
    return json.dumps(asdict(status), indent=2)


def _rows(status: Status) -> dict[str, str]:
    done = 100 * status.samples / status.total_samples
    writing = f"process {status.process} writes it" if status.process else "no process writes it"
    rows = {
        "state": "finished" if status.samples >= status.total_samples and not status.process else writing,
        "step": f"{status.step:,}",
        "samples": f"{status.samples:,} of {status.total_samples:,} ({done:.1f} %)",
    }
    if status.samples_per_s and status.age_s is not None:
        rows["speed"] = f"{status.samples_per_s:.0f} samples/s, {_duration(status.age_s)} ago"
        rows["remaining"] = _duration(status.eta_s or 0) + (" from then" if status.process else " once it goes on")
    if status.train:
        rows["loss"] = f"{status.train['loss']:.4f}, {100 * status.train['exact']:.1f} % exact in training"
    if status.phase_share:
        rows["a step"] = ", ".join(f"{phase} {100 * share:.0f} %" for phase, share in status.phase_share.items())
    if status.system:
        rows["GPU"] = ", ".join(f"{name} {value:.4g}" for name, value in status.system.items())
    rows["last validation"] = _validation(status.last_validation)
    rows["best validation"] = _validation(status.best_validation)
    pointers = {"latest": status.latest, "best": status.best}
    names = [name + "".join(f" ({p})" for p in pointers if pointers[p] == name) for name in status.checkpoints]
    return {**rows, "checkpoints": ", ".join(names) or "none yet"}


def _validation(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "none yet"
    proven = f", {100 * row['proven']:.1f} % proven" if row["proof_exists"] else ""
    return f"{100 * row['exact']:.1f} % exact{proven} of {row['num_puzzles']} puzzles at step {row['step']:,}"


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"
